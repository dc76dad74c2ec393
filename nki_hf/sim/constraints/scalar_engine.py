"""Rules of the Scalar engine: activations."""

from __future__ import annotations

from nki_hf.sim.constraints.families import isa
from nki_hf.sim.constraints.operand import is_tile, operator_name, show
from nki_hf.sim.constraints.rule import Operands, Violation, rule

_BOTH = ("activation", "activation_reduce")
_ALL = (*_BOTH, "activate2")
_TABLE = "nki/api/nki.api.shared.rst: Supported Activation Functions for NKI ISA"
_FUNCTIONS = (
    "copy", "square", "sigmoid", "relu", "prelu", "gelu", "gelu_dx", "gelu_apprx_tanh", "gelu_apprx_sigmoid",
    "gelu_apprx_sigmoid_dx", "silu", "silu_dx", "tanh", "softplus", "mish", "erf", "erf_dx", "exp", "log", "sin", "arctan",
    "sqrt", "rsqrt", "reciprocal", "sign", "abs",
)  # fmt: skip
_STAGES = {
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
}


@rule(_ALL, "argument", f"op must be one of {', '.join(_FUNCTIONS)}", _TABLE)
def _function(o: Operands) -> Violation:
    return f"op={operator_name(o.op)}" if operator_name(o.op) not in _FUNCTIONS else None


@rule(_BOTH, "generation", "before NeuronCore-v3 bias must be a [partitions, 1] tile", isa("activation"))
def _bias_tile(o: Operands) -> Violation:
    if o.generation < 3 and o.bias is not None and not is_tile(o.bias):
        return f"bias={o.bias} on {o.machine.chip.name}", "Put it in a [partitions, 1] tile with memset"
    return None


@rule(_BOTH, "dtype", "bias must not be tfloat32", isa("activation"))
def _bias_dtype(o: Operands) -> Violation:
    return f"bias {show(o.bias)} is tfloat32" if is_tile(o.bias) and o.bias.dtype.name == "tfloat32" else None


@rule(_BOTH, "dtype", "bias must be a float", "nki_api: bias of any float dtype", documented=False)
def _bias_float(o: Operands) -> Violation:
    return f"bias {show(o.bias)} is {o.bias.dtype}" if is_tile(o.bias) and not o.bias.dtype.is_float else None


@rule(_BOTH, "generation", "reciprocal takes no bias before NeuronCore-v3", "nki/api/nki.api.shared.rst: engine selection")
def _reciprocal_bias(o: Operands) -> Violation:
    if o.generation < 3 and operator_name(o.op) == "reciprocal" and o.bias is not None:
        return f"op=reciprocal with a bias on {o.machine.chip.name}"
    return None


@rule("activation", "argument", "reduce_op must be add", isa("activation"))
def _reduce_add(o: Operands) -> Violation:
    return f"reduce_op={operator_name(o.reduce_op)}" if operator_name(o.reduce_op) not in ("", "add") else None


@rule("activation_reduce", "generation", "before NeuronCore-v3 reduce_op must be add", isa("activation_reduce"))
def _reduce_add_first(o: Operands) -> Violation:
    if o.generation < 3 and operator_name(o.reduce_op) not in ("", "add"):
        return f"reduce_op={operator_name(o.reduce_op)} on {o.machine.chip.name}"
    return None


@rule("activate2", "argument", "reduce_op must be add, maximum, minimum, abs_max or abs_min", isa("activate2"))
def _reduce_five(o: Operands) -> Violation:
    if operator_name(o.reduce_op) not in ("", "add", "maximum", "minimum", "abs_max", "abs_min"):
        return f"reduce_op={operator_name(o.reduce_op)}"
    return None


@rule(("activation", "activate2"), "argument", "reduce_cmd must be idle, reset, reduce or reset_reduce", isa("activation"))
def _reduce_command(o: Operands) -> Violation:
    return f"reduce_cmd={o.reduce_cmd.name}" if o.reduce_cmd.name == "load_reduce" else None


@rule(
    "activate2",
    "argument",
    "(op0, op1) must be (multiply, add), (multiply, subtract), (multiply, bypass), (add, bypass), "
    "(subtract, bypass) or (bypass, bypass)",
    isa("activate2"),
)
def _stages(o: Operands) -> Violation:
    pair = (operator_name(o.op0) or "bypass", operator_name(o.op1) or "bypass")
    return f"op0={pair[0]} and op1={pair[1]}" if pair not in _STAGES else None


@rule("activate2", "argument", "reverse0 needs op0, reverse1 needs op1", isa("activate2"))
def _reverse(o: Operands) -> Violation:
    for which in "01":
        if o.arguments[f"reverse{which}"] and operator_name(o.arguments[f"op{which}"]) in ("", "bypass"):
            return f"reverse{which}=True without op{which}"
    return None


@rule(_ALL, "placement", "on the Scalar engine a scattered dst cannot be in PSUM", isa("activation"))
def _scatter_psum(o: Operands) -> Violation:
    return f"dst {show(o.dst)} is indirect and in psum" if o.dst.indirection is not None and o.dst.space == "psum" else None
