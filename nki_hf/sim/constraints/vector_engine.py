"""Rules of the Vector engine's instructions (and of those that several engines share)."""

from __future__ import annotations

from nki_hf.sim.constraints.rule import Operands, Violation, rule

_ISA = "nki/api/nki/isa/__init__.py: tensor_copy"


@rule("tensor_copy", "shape", "equal partitions and equal elements per partition", _ISA)
def _same_shape(o: Operands) -> Violation:
    if (o.dst.partitions, o.dst.free_size) != (o.src.partitions, o.src.free_size):
        return f"dst is {list(o.dst.shape)} and src {list(o.src.shape)}"
    return None
