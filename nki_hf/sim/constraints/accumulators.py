"""Rules of the Vector engine's instructions that use its accumulator registers, and of selections."""

from __future__ import annotations

from nki_hf.sim.constraints.families import isa
from nki_hf.sim.constraints.operand import is_tile, operator_name, show
from nki_hf.sim.constraints.rule import Operands, Violation, rule

_COMPARE = ("equal", "less", "less_equal", "greater", "greater_equal")
_FP32_MIN = -3.4028235e38
_EXACT_INDEX = 1 << 24


def _commands(opcode: str, *allowed: str) -> None:
    @rule(opcode, "argument", f"reduce_cmd must be {', '.join(allowed)}", isa(opcode), name="reduce_cmd")
    def reduce_cmd(o: Operands) -> Violation:
        return f"reduce_cmd={o.reduce_cmd.name}" if o.reduce_cmd.name not in allowed else None


_commands("tensor_scalar_reduce", "reset_reduce", "reduce", "load_reduce")
_commands("tensor_scalar_cumulative", "reset_reduce", "reduce", "load_reduce")
_commands("exponential", "idle", "reset_reduce", "reduce", "load_reduce")
_commands("select_reduce", "idle", "reset_reduce", "reduce")


@rule("tensor_scalar_reduce", "argument", "reduce_op must be add, multiply, max or min", isa("tensor_scalar_reduce"))
def _four_reductions(o: Operands) -> Violation:
    name = operator_name(o.reduce_op)
    return f"reduce_op={name}" if name not in ("add", "multiply", "maximum", "minimum") else None


@rule(
    "tensor_scalar_cumulative", "argument", "op1 must be add, subtract, multiply, max or min", isa("tensor_scalar_cumulative")
)
def _five_reductions(o: Operands) -> Violation:
    name = operator_name(o.op1)
    return f"op1={name}" if name not in ("add", "subtract", "multiply", "maximum", "minimum") else None


@rule("tensor_scalar_reduce", "unsupported", "reverse0 is not supported yet", isa("tensor_scalar_reduce"), documented=False)
def _no_reverse(o: Operands) -> Violation:
    return "reverse0=True" if o.reverse0 else None


@rule(
    "tensor_scalar_reduce",
    "argument",
    "reduce_init goes with reduce_cmd=load_reduce, and only with it",
    isa("tensor_scalar_reduce"),
)
def _initial_value(o: Operands) -> Violation:
    if (o.reduce_init is not None) != (o.reduce_cmd.name == "load_reduce"):
        return f"reduce_init={o.reduce_init!r} with reduce_cmd={o.reduce_cmd.name}"
    return None


@rule("tensor_scalar_cumulative", "argument", "imm1 goes with reduce_cmd=load_reduce", isa("tensor_scalar_cumulative"))
def _initial_immediate(o: Operands) -> Violation:
    if o.imm1 is None and o.reduce_cmd.name == "load_reduce":
        return "imm1=None with reduce_cmd=load_reduce"
    return None


@rule("exponential", "argument", "reduce_init is 0.0 unless reduce_cmd=load_reduce", isa("exponential"))
def _initial_zero(o: Operands) -> Violation:
    if o.reduce_cmd.name != "load_reduce" and (is_tile(o.reduce_init) or o.reduce_init not in (None, 0)):
        return f"reduce_init={o.reduce_init!r} with reduce_cmd={o.reduce_cmd.name}"
    return None


@rule("exponential", "shape", "src and dst have at most 4 axes", isa("exponential"))
def _four_axes(o: Operands) -> Violation:
    for name, tile in o.tiles(("src", "dst")):
        if tile.ndim > 4:
            return f"{name} {show(tile)} has {tile.ndim} axes"
    return None


@rule(("range_select", "select_reduce"), "argument", "reduce_op must be max", isa("range_select"))
def _only_max(o: Operands) -> Violation:
    return f"reduce_op={operator_name(o.reduce_op)}" if operator_name(o.reduce_op) not in ("", "maximum") else None


@rule("range_select", "argument", f"comparisons must be {', '.join(_COMPARE)}", isa("range_select"))
def _comparisons(o: Operands) -> Violation:
    for name in ("comp_op0", "comp_op1"):
        if operator_name(o.arguments[name]) not in _COMPARE:
            return f"{name}={operator_name(o.arguments[name])}"
    return None


@rule("range_select", "argument", f"on_false_value must be {_FP32_MIN:.8g}", isa("range_select"))
def _fill_value(o: Operands) -> Violation:
    value = o.on_false_value
    if value is not Ellipsis and not abs(float(value) / _FP32_MIN - 1) < 1e-6:
        return f"on_false_value={value}"
    return None


@rule("range_select", "argument", "range_start must be a compile-time integer, and every index below 2^24", isa("range_select"))
def _exact_indices(o: Operands) -> Violation:
    if not isinstance(o.range_start, int):
        return f"range_start={o.range_start!r}"
    if o.range_start + o.on_true_tile.free_size > _EXACT_INDEX:
        return f"range_start={o.range_start:,} with {o.on_true_tile.free_size:,} elements"
    return None


@rule("range_select", "dtype", "reduce_res must be float32 if dst is narrower", isa("range_select"))
def _wide_maximum(o: Operands) -> Violation:
    if is_tile(o.reduce_res) and o.dst.dtype.itemsize < 4 and o.reduce_res.dtype.name != "float32":
        return f"reduce_res {show(o.reduce_res)} is {o.reduce_res.dtype} and dst {o.dst.dtype}"
    return None


@rule("affine_select", "argument", "cmp_op must be a comparison", isa("affine_select"))
def _affine_comparison(o: Operands) -> Violation:
    name = operator_name(o.cmp_op)
    return f"cmp_op={name}" if name not in (*_COMPARE, "not_equal") else None


@rule(("affine_select", "iota"), "argument", "pattern has at most 4 pairs [step, num]", isa("iota"))
def _four_pairs(o: Operands) -> Violation:
    return f"pattern={list(o.pattern)}" if not 1 <= len(o.pattern) <= 4 else None


@rule(
    ("affine_select", "iota"),
    "shape",
    "the nums of pattern are 1 or more and multiply to the elements per partition of dst",
    isa("iota"),
)
def _pattern_size(o: Operands) -> Violation:
    total = 1
    for _, num in o.pattern:
        total *= num
    wrong = total != o.dst.free_size or any(num < 1 for _, num in o.pattern)
    return f"pattern={list(o.pattern)} for dst {show(o.dst)}" if wrong else None


@rule(("affine_select", "iota"), "argument", "offset, channel_multiplier and steps are int32", isa("iota"))
def _int32(o: Operands) -> Violation:
    for name, value in (
        ("offset", o.offset),
        ("channel_multiplier", o.channel_multiplier),
        *((f"step {i}", p[0]) for i, p in enumerate(o.pattern)),
    ):
        if not -(1 << 31) <= value < 1 << 31:
            return f"{name}={value}"
    return None


@rule("affine_select", "argument", "on_false_value must be a float32 number", isa("affine_select"))
def _fill_number(o: Operands) -> Violation:
    return f"on_false_value={o.on_false_value!r}" if is_tile(o.on_false_value) else None
