"""Rules of element-wise instructions, copies and reductions: Vector, and where there is a choice Scalar or GpSimd."""

from __future__ import annotations

from nki_hf.sim.constraints.families import isa
from nki_hf.sim.constraints.operand import engine_name, is_tile, operator_kind, operator_name, show
from nki_hf.sim.constraints.rule import Operands, Violation, rule

_ALU = "nki/api/nki.api.shared.rst: Supported Math Operators for NKI ISA"
_UNARY = ("abs", "square", "relu", "rsqrt", "reciprocal")
_ALU_KINDS = ("arith", "compare", "logical", "bitwise")
_PARTITION_REDUCTIONS = ("add", "average", "maximum", "bitwise_or", "bitwise_and")


def _ops(o: Operands) -> list[tuple[str, str, str]]:
    """`(argument, operator, kind)` of the operators given."""
    names = [name for name in ("op", "op0", "op1") if o.arguments.get(name) is not None]
    return [(name, operator_name(o.arguments[name]), operator_kind(o.arguments[name])) for name in names]


def _bitwise(o: Operands) -> bool:
    return any(kind == "bitwise" for _, _, kind in _ops(o))


_ELEMENTWISE = ("tensor_tensor", "tensor_scalar", "scalar_tensor_tensor", "tensor_tensor_scan", "tensor_scalar_reduce")


@rule((*_ELEMENTWISE, "tensor_scalar_cumulative"), "argument", "operators are those of the arithmetic and bitvec tables", _ALU)
def _alu_operator(o: Operands) -> Violation:
    for name, op, kind in _ops(o):
        if kind not in _ALU_KINDS and op not in _UNARY:
            return f"{name}={op}", "Use activation for functions of the Scalar engine"
    return None


@rule(
    (*_ELEMENTWISE, "tensor_scalar_cumulative", "tensor_reduce", "activation_reduce"),
    "generation",
    "abs_max and abs_min from NeuronCore-v4 on",
    "nki/api/nki/language/__init__.py: abs_max",
)
def _by_magnitude(o: Operands) -> Violation:
    for name in ("op", "op0", "op1", "reduce_op"):
        asked = operator_name(o.arguments.get(name))
        if asked in ("abs_max", "abs_min") and o.generation < 4:
            return f"{name}={asked} on {o.machine.chip.name}"
    return None


@rule(("tensor_tensor", "tensor_tensor_scan"), "argument", "operators must be binary", isa("tensor_tensor"))
def _binary(o: Operands) -> Violation:
    for name, op, _ in _ops(o):
        if op in _UNARY or op == "invert":
            return f"{name}={op}"
    return None


@rule(("tensor_tensor", "tensor_scalar", "tensor_reduce"), "dtype", "bitvec operators need integer tiles", _ALU)
def _bitwise_integers(o: Operands) -> Violation:
    if _bitwise(o):
        for name, tile in o.tiles():
            if not tile.dtype.is_integer:
                return f"{name} {show(tile)} is {tile.dtype} with a bitvec operator"
    return None


@rule("tensor_scalar", "argument", "op0 and op1 must both be bitvec or both arithmetic", isa("tensor_scalar"))
def _one_kind(o: Operands) -> Violation:
    kinds = {kind == "bitwise" for _, _, kind in _ops(o)}
    return f"op0={operator_name(o.op0)} and op1={operator_name(o.op1)}" if len(kinds) > 1 else None


@rule(
    ("scalar_tensor_tensor", "tensor_tensor_scan", "tensor_scalar_reduce", "tensor_scalar_cumulative"),
    "argument",
    "bitvec operators are not supported",
    isa("scalar_tensor_tensor"),
)
def _no_bitwise(o: Operands) -> Violation:
    for name, op, kind in _ops(o):
        if kind == "bitwise":
            return f"{name}={op}"
    return None


@rule(("tensor_tensor", "tensor_scalar"), "engine", "bitvec operators run on the Vector engine", isa("tensor_scalar"))
def _bitwise_engine(o: Operands) -> Violation:
    if _bitwise(o) and engine_name(o.engine) not in ("vector", "unknown"):
        return f"engine={engine_name(o.engine)} with a bitvec operator"
    return None


@rule("tensor_tensor", "placement", "power runs on GpSimd, which cannot access PSUM", isa("tensor_tensor"))
def _power_memory(o: Operands) -> Violation:
    for name, tile in o.tiles():
        if operator_name(o.op) == "power" and tile.space == "psum":
            return f"{name} {show(tile)} is in psum with op=power"
    return None


@rule("tensor_tensor", "engine", "power runs on GpSimd only", isa("tensor_tensor"))
def _power_engine(o: Operands) -> Violation:
    if operator_name(o.op) == "power" and engine_name(o.engine) not in ("gpsimd", "unknown"):
        return f"engine={engine_name(o.engine)} with op=power"
    return None


@rule("tensor_scalar", "argument", "op1 and operand1 must be given together", isa("tensor_scalar"))
def _second_stage(o: Operands) -> Violation:
    op1, operand1 = operator_name(o.op1), o.operand1
    if not op1 and operand1 is not None:
        return f"operand1={operand1} without op1"
    return f"op1={op1} without operand1" if op1 and operand1 is None and op1 not in (*_UNARY, "invert") else None


@rule(
    ("tensor_scalar", "tensor_scalar_reduce"),
    "argument",
    "a unary operator takes None or 0 as its operand",
    isa("tensor_scalar"),
)
def _unary_operand(o: Operands) -> Violation:
    for which in ("0", "1"):
        operand = o.arguments.get(f"operand{which}")
        if operator_name(o.arguments.get(f"op{which}")) in (*_UNARY, "invert") and (
            is_tile(operand) or operand not in (None, 0)
        ):
            return f"op{which}={operator_name(o.arguments[f'op{which}'])} with operand{which}={operand!r}"
    return None


@rule("tensor_scalar", "dtype", "operands of arithmetic operators must be float32", isa("tensor_scalar"), documented=False)
def _operand_fp32(o: Operands) -> Violation:
    if not _bitwise(o):
        for name, tile in o.tiles(("operand0", "operand1")):
            if tile.dtype.name != "float32":
                return f"{name} {show(tile)} is {tile.dtype}"
    return None


@rule("tensor_scalar", "engine", "the Scalar engine takes multiply then add, multiply alone or add alone", isa("tensor_scalar"))
def _scalar_engine_ops(o: Operands) -> Violation:
    pair = (operator_name(o.op0), operator_name(o.op1))
    if engine_name(o.engine) == "scalar" and pair not in (("multiply", "add"), ("multiply", ""), ("add", "")):
        return f"engine=scalar with op0={pair[0]} and op1={pair[1] or None}"
    return None


@rule(
    "tensor_scalar",
    "generation",
    "tensor_scalar runs on the Scalar engine from NeuronCore-v3 on",
    isa("tensor_scalar"),
    documented=False,
)
def _scalar_engine_generation(o: Operands) -> Violation:
    if engine_name(o.engine) == "scalar" and o.generation < 3:
        return f"engine=scalar on {o.machine.chip.name}", "Use activation with scale and bias"
    return None


@rule(
    "tensor_scalar",
    "engine",
    "GpSimd takes rsqrt only",
    f"{isa('tensor_scalar')} (its engine=; its text says that arithmetic operators run on GpSimd, too)",
    documented=False,
)
def _gpsimd_rsqrt(o: Operands) -> Violation:
    if engine_name(o.engine) == "gpsimd" and operator_name(o.op0) != "rsqrt":
        return f"engine=gpsimd with op0={operator_name(o.op0)}", "Use the Vector engine"
    return None


@rule("tensor_copy", "generation", "tensor_copy runs on the Scalar engine from NeuronCore-v3 on", isa("tensor_copy"))
def _copy_engine(o: Operands) -> Violation:
    if engine_name(o.engine) == "scalar" and o.generation < 3:
        return f"engine=scalar on {o.machine.chip.name}", "Use activation with op=nl.copy"
    return None


@rule("memset", "argument", "packed dtypes can only be set to 0", isa("memset"))
def _packed_zero(o: Operands) -> Violation:
    return f"value={o.value} for {o.dst.dtype}" if o.dst.dtype.family == "packed" and o.value != 0 else None


@rule(
    "memset",
    "argument",
    "value must be of the kind of dst: a whole number for integers",
    "release notes NKI 0.3: memset",
    documented=False,
)
def _memset_value(o: Operands) -> Violation:
    if o.dst.dtype.is_integer and isinstance(o.value, float) and o.value != int(o.value):
        return f"value={o.value} for {o.dst.dtype}"
    return None


@rule("tensor_reduce", "argument", "op must be a reduction", _ALU)
def _reduction(o: Operands) -> Violation:
    return f"op={operator_name(o.op)}" if getattr(o.op, "reduce", None) is None else None


@rule(
    "tensor_reduce",
    "shape",
    "dst holds one element per partition for each of data's that are not reduced",
    isa("tensor_reduce"),
)
def _reduced_shape(o: Operands) -> Violation:
    kept = 1
    for axis in range(1, o.data.ndim):
        kept *= 1 if axis in o.axis else o.data.shape[axis]
    if (o.dst.partitions, o.dst.free_size) != (o.data.partitions, kept):
        return f"dst is {list(o.dst.shape)} and data {list(o.data.shape)} with axis={o.axis}"
    return None


@rule("tensor_reduce", "argument", "negate needs an arithmetic operator", isa("tensor_reduce"))
def _negate(o: Operands) -> Violation:
    return f"negate=True with op={operator_name(o.op)}" if o.negate and _bitwise(o) else None


@rule(
    "tensor_partition_reduce",
    "argument",
    "op must be add, average, max, bitwise_or or bitwise_and",
    isa("tensor_partition_reduce"),
)
def _partition_reduction(o: Operands) -> Violation:
    return f"op={operator_name(o.op)}" if operator_name(o.op) not in _PARTITION_REDUCTIONS else None


@rule(
    "tensor_partition_reduce", "shape", "dst is one partition of as many elements as data has", isa("tensor_partition_reduce")
)
def _one_partition(o: Operands) -> Violation:
    if (o.dst.partitions, o.dst.free_size) != (1, o.data.free_size):
        return f"dst is {list(o.dst.shape)} and data {list(o.data.shape)}"
    return None


@rule("tensor_copy", "placement", "on the Scalar engine a scattered dst cannot be in PSUM", isa("tensor_copy"))
def _copy_scatter(o: Operands) -> Violation:
    if engine_name(o.engine) == "scalar" and o.dst.indirection is not None and o.dst.space == "psum":
        return f"dst {show(o.dst)} is indirect and in psum"
    return None
