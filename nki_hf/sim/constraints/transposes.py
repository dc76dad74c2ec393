"""Rules of nc_transpose, on the Tensor engine and on Vector."""

from __future__ import annotations

from nki_hf.sim.constraints.families import isa
from nki_hf.sim.constraints.operand import engine_name, show
from nki_hf.sim.constraints.rule import Operands, Violation, rule

_TP = isa("nc_transpose")


def _transpose_engine(o: Operands) -> str:
    asked = engine_name(o.engine)
    if asked != "unknown":
        return asked
    return "tensor" if o.data.space == "sbuf" and o.dst.space == "psum" else "vector"


@rule("nc_transpose", "shape", "dst is [free size of data, partitions of data]", _TP)
def _transposed_shape(o: Operands) -> Violation:
    if (o.dst.partitions, o.dst.free_size) != (o.data.free_size, o.data.partitions):
        return f"dst is {list(o.dst.shape)} and data {list(o.data.shape)}"
    return None


def _through_float32(o: Operands) -> bool:
    """A product with an identity: 16-bit floats into float32 PSUM, which holds them exactly."""
    return _transpose_engine(o) == "tensor" and o.dst.dtype.name == "float32" and o.data.dtype.name in ("bfloat16", "float16")


@rule("nc_transpose", "dtype", "dst must have the dtype of data", _TP)
def _transposed_dtype(o: Operands) -> Violation:
    if o.dst.dtype.name == o.data.dtype.name or _through_float32(o) or o.data.dtype.itemsize == 1:
        return None
    return f"dst is {o.dst.dtype} and data {o.data.dtype}", "Allocate dst with the dtype of data"


@rule(
    "nc_transpose",
    "dtype",
    "dst must have the dtype of data, for 16-bit floats into float32 PSUM too",
    f"{_TP}; but autocomp's sols/trn-advanced-nki2 (6_csa_2048_ref.py, 8_mha_ref.py) do so, which run on chips",
    documented=False,
)
def _transposed_to_float32(o: Operands) -> Violation:
    return f"dst is {o.dst.dtype} and data {o.data.dtype}" if _through_float32(o) else None


@rule(
    "nc_transpose",
    "dtype",
    "8-bit data has a dst of its own dtype",
    f"{_TP}; trainium2_arch.rst: NeuronCore-v3 writes 8-bit data into 16-bit elements",
    documented=False,
)
def _transposed_8_bit(o: Operands) -> Violation:
    other = o.dst.dtype.name != o.data.dtype.name and o.data.dtype.itemsize == 1
    return f"dst is {o.dst.dtype} and data {o.data.dtype}" if other else None


@rule("nc_transpose", "placement", "on the Tensor engine data must be in SBUF and dst in PSUM", _TP)
def _tensor_transpose_memory(o: Operands) -> Violation:
    if _transpose_engine(o) == "tensor" and (o.data.space != "sbuf" or o.dst.space != "psum"):
        return f"data {show(o.data)} is in {o.data.space} and dst {show(o.dst)} in {o.dst.space}"
    return None


@rule("nc_transpose", "shape", "at most 128 x 128 on the Tensor engine", _TP)
def _tensor_transpose_size(o: Operands) -> Violation:
    if _transpose_engine(o) == "tensor" and o.data.free_size > o.machine.chip.partitions:
        return f"data {show(o.data)} has {o.data.free_size:,} free elements", "Transpose it in blocks of 128 columns"
    return None


@rule("nc_transpose", "shape", "at most 32 x 32 on the Vector engine", _TP)
def _vector_transpose_size(o: Operands) -> Violation:
    most = o.machine.chip.vector_transpose_max
    if _transpose_engine(o) == "vector" and (o.data.partitions > most or o.data.free_size > most):
        return f"data {show(o.data)}", "Use the Tensor engine (SBUF to PSUM), or blocks of 32 x 32"
    return None
