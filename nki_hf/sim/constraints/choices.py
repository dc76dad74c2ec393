"""Calls whose result public sources disagree about: nothing is refused, every kernel that makes one is warned.

`limit` says what is computed here.
"""

from __future__ import annotations

from nki_hf.sim.constraints.families import isa
from nki_hf.sim.constraints.operand import is_tile, operator_name, show
from nki_hf.sim.constraints.rule import Operands, Violation, rule


@rule(
    ("activation", "activation_reduce"),
    "argument",
    "on NeuronCore-v2 op=copy adds the bias, as documented; the chip is reported to drop it",
    f"{isa('activation')}; a field report of trn1",
    choice=True,
)
def _copy_with_bias(o: Operands) -> Violation:
    bias = o.arguments.get("bias")
    if o.generation > 2 or operator_name(o.op) != "copy" or bias is None or (not is_tile(bias) and bias == 0):
        return None
    return f"op=copy with bias={show(bias) if is_tile(bias) else bias} on {o.machine.chip.name}"


@rule(
    "quantize_mx",
    "argument",
    "the scale is 2 ** (floor(log2(largest)) - largest exponent of the type + 1), as the docstring "
    "has it, where nki-library's reference takes half of that; rows of dst_scale that belong to no group keep what they hold, "
    "where the reference writes them",
    f"{isa('quantize_mx')}; nki-library: core/utils/mx_torch_common.py",
    choice=True,
)
def _mx_scale(o: Operands) -> Violation:
    return f"dst_scale {show(o.dst_scale)} of dst {show(o.dst)}"
