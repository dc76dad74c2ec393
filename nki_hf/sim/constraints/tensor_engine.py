"""Rules of the Tensor engine's matrix products; transposes.py has those of nc_transpose."""

from __future__ import annotations

from nki_hf.sim.constraints.families import isa
from nki_hf.sim.constraints.operand import is_tile, show
from nki_hf.sim.constraints.rule import Operands, Violation, rule
from nki_hf.sim.tensors.tensor import NkiTensor

_MM, _MX = isa("nc_matmul"), isa("nc_matmul_mx")
_BOTH = ("nc_matmul", "nc_matmul_mx")
_FP32 = ("float32", "tfloat32")
_DOUBLE_ROW = ("float8_e4m3", "float8_e5m2", "float8_e4m3fn")
_INDIRECT = ("float16", "bfloat16", "float8_e4m3", "float8_e5m2", "float8_e4m3fn")


def _double_row(o: Operands) -> bool:
    return getattr(o.arguments.get("perf_mode"), "name", "none") == "double_row"


def _free(o: Operands, name: str) -> int:
    """Free size of an operand; the packed axis of double_row is part of the contraction."""
    tile: NkiTensor = o.arguments[name]
    return tile.free_size // 2 if _double_row(o) else tile.free_size


def _tiling(o: Operands) -> tuple[int, int]:
    size = tuple(o.arguments.get("tile_size") or ())
    if len(size) == 2:
        return int(size[0]), int(size[1])
    return int(o.machine.chip.partitions), int(o.machine.chip.stationary_free_max)


@rule(_BOTH, "shape", "stationary and moving must have the same number of partitions", _MM)
def _same_contraction(o: Operands) -> Violation:
    if o.stationary.partitions != o.moving.partitions:
        return f"stationary has {o.stationary.partitions} partitions and moving {o.moving.partitions}"
    return None


@rule(_BOTH, "shape", "the free size of stationary is at most 128", _MM)
def _stationary_free(o: Operands) -> Violation:
    size = _free(o, "stationary")
    if size > o.machine.chip.stationary_free_max:
        return f"stationary {show(o.stationary)} has {size:,} free elements", "Split it; each part gives its own dst rows"
    return None


@rule(
    "nc_matmul",
    "shape",
    "the free size of moving is at most 512; from NeuronCore-v4 4,096 (float32 dst) or 8,192 (bfloat16)",
    _MM,
)
def _moving_free(o: Operands) -> Violation:
    chip = o.machine.chip
    most = chip.moving_free_max if o.generation < 4 else chip.psum_partition_bytes // max(o.dst.dtype.itemsize, 1)
    size = _free(o, "moving")
    if size > most:
        return f"moving {show(o.moving)} has {size:,} free elements on {chip.name}", "Split it; each part fills one PSUM bank"
    return None


@rule("nc_matmul_mx", "shape", "the free size of moving is at most 4,096 (float32 dst) or 8,192 (bfloat16)", _MX)
def _moving_free_mx(o: Operands) -> Violation:
    if o.moving.free_size > o.machine.chip.psum_partition_bytes // o.dst.dtype.itemsize:
        return f"moving {show(o.moving)} has {o.moving.free_size:,} free elements"
    return None


@rule(_BOTH, "shape", "dst is [free size of stationary, free size of moving]", _MM)
def _dst_shape(o: Operands) -> Violation:
    wanted = (_free(o, "stationary"), _free(o, "moving"))
    if (o.dst.partitions, o.dst.free_size) != wanted:
        return f"dst is {list(o.dst.shape)}, stationary {list(o.stationary.shape)} and moving {list(o.moving.shape)}"
    return None


@rule("nc_matmul", "shape", "the free axes of dst lie within one PSUM bank (2 KiB per partition) before NeuronCore-v4", _MM)
def _one_bank(o: Operands) -> Violation:
    chip, dst = o.machine.chip, o.dst
    if o.generation >= 4 or dst.space != "psum" or dst.indirection is not None:
        return None
    row = dst.storage.buffer.bytes_per_partition // dst.itemsize
    start = dst.offset % row if row else 0
    end = start + sum(stride * (size - 1) for size, stride in zip(dst.shape[1:], dst.strides[1:], strict=True))
    base = dst.storage.buffer.address[1] if dst.storage.buffer.address else 0
    first, last = (base + start * dst.itemsize) // chip.psum_bank_bytes, (base + end * dst.itemsize) // chip.psum_bank_bytes
    if first != last:
        return f"dst {show(dst)} spans PSUM banks {first} to {last}", "Start each product at a multiple of 512 fp32 elements"
    return None


@rule("nc_matmul", "dtype", "float32 and tfloat32 may not be mixed with other dtypes", _MM)
def _no_mixed_fp32(o: Operands) -> Violation:
    if (o.stationary.dtype.name in _FP32) != (o.moving.dtype.name in _FP32):
        return f"stationary is {o.stationary.dtype} and moving {o.moving.dtype}", "Copy one of them to the other's dtype"
    return None


@rule("nc_matmul", "dtype", "float8_e4m3 and float8_e4m3fn may not be mixed", _MM)
def _no_mixed_fp8(o: Operands) -> Violation:
    if {o.stationary.dtype.name, o.moving.dtype.name} == {"float8_e4m3", "float8_e4m3fn"}:
        return f"stationary is {o.stationary.dtype} and moving {o.moving.dtype}"
    return None


@rule("nc_matmul", "generation", "float8_e4m3fn operands from NeuronCore-v4 on", _MM)
def _ocp_fp8(o: Operands) -> Violation:
    if o.generation < 4 and "float8_e4m3fn" in (o.stationary.dtype.name, o.moving.dtype.name):
        return f"an operand is float8_e4m3fn on {o.machine.chip.name}"
    return None


@rule("nc_matmul", "dtype", "dst must be float32 (from NeuronCore-v4 also bfloat16); transposes keep their dtype", _MM)
def _dst_dtype(o: Operands) -> Violation:
    allowed = ("float32",) if o.generation < 4 else ("float32", "bfloat16")
    if not o.is_transpose and o.dst.dtype.name not in allowed:
        return f"dst {show(o.dst)} is {o.dst.dtype} on {o.machine.chip.name}"
    return None


@rule(
    "nc_matmul",
    "dtype",
    "with is_transpose=True, dst must be as wide as stationary from NeuronCore-v3 on",
    "trainium2_arch.rst: transpose mode (16-bit data gives 16-bit PSUM); nki-library: core/moe/moe_cte/bwmm_shard_on_I.py "
    "takes float32 PSUM before NeuronCore-v3, and the dtype of the data from then on",
)
def _transpose_dtype(o: Operands) -> Violation:
    if o.is_transpose and o.generation >= 3 and o.dst.dtype.itemsize != o.stationary.dtype.itemsize > 1:
        return f"dst is {o.dst.dtype} and stationary {o.stationary.dtype}", "Allocate dst with the dtype of stationary"
    return None


@rule(
    "nc_matmul",
    "dtype",
    "with is_transpose=True, 8-bit data has a dst of its own width",
    "trainium2_arch.rst: NeuronCore-v3 writes 8-bit data into 16-bit elements",
    documented=False,
)
def _transpose_8_bit(o: Operands) -> Violation:
    if o.is_transpose and o.generation >= 3 and o.stationary.dtype.itemsize == 1 != o.dst.dtype.itemsize:
        return f"dst is {o.dst.dtype} and stationary {o.stationary.dtype}"
    return None


@rule("nc_matmul", "generation", "perf_mode=double_row from NeuronCore-v3 on", _MM)
def _double_row_generation(o: Operands) -> Violation:
    return f"perf_mode=double_row on {o.machine.chip.name}" if _double_row(o) and o.generation < 3 else None


@rule("nc_matmul", "dtype", "double_row takes float8_e4m3 and float8_e5m2 (from NeuronCore-v4 also float8_e4m3fn)", _MM)
def _double_row_dtype(o: Operands) -> Violation:
    for name in ("stationary", "moving"):
        if _double_row(o) and o.arguments[name].dtype.name not in _DOUBLE_ROW:
            return f"{name} is {o.arguments[name].dtype}"
    return None


@rule("nc_matmul", "shape", "with double_row, the first free axis of stationary and moving has size 2", _MM)
def _double_row_shape(o: Operands) -> Violation:
    for name in ("stationary", "moving"):
        tile = o.arguments[name]
        if _double_row(o) and (tile.ndim < 3 or tile.shape[1] != 2):
            return f"{name} is {list(tile.shape)}"
    return None


@rule("nc_matmul", "argument", "double_row cannot be combined with column tiling", _MM)
def _double_row_tiling(o: Operands) -> Violation:
    if _double_row(o) and _tiling(o)[1] != o.machine.chip.stationary_free_max:
        return f"tile_size={tuple(o.tile_size)}"
    return None


@rule("nc_matmul", "argument", "is_transpose and double_row exclude each other", "trainium2_arch.rst: double FP8 mode")
def _double_row_transpose(o: Operands) -> Violation:
    return "is_transpose=True with perf_mode=double_row" if o.is_transpose and _double_row(o) else None


@rule(_BOTH, "argument", "tile_position and tile_size must be given together", _MM)
def _tiling_pair(o: Operands) -> Violation:
    if bool(o.arguments.get("tile_position")) != bool(o.arguments.get("tile_size")):
        return f"tile_position={o.arguments.get('tile_position')} and tile_size={o.arguments.get('tile_size')}"
    return None


@rule("nc_matmul", "argument", "tile sizes are 64 or 128, from NeuronCore-v3 also 32", _MM)
def _tile_sizes(o: Operands) -> Violation:
    allowed = (64, 128) if o.generation < 3 else (32, 64, 128)
    if o.arguments.get("tile_size") and any(size not in allowed for size in _tiling(o)):
        return f"tile_size={tuple(o.tile_size)} on {o.machine.chip.name}"
    return None


@rule("nc_matmul_mx", "argument", "tile_size is (32, 64 or 128, 128) and tile_position starts at column 0", _MX)
def _row_tiling_only(o: Operands) -> Violation:
    size, position = o.arguments.get("tile_size"), o.arguments.get("tile_position")
    if size and (size[0] not in (32, 64, 128) or size[1] != 128 or (position and position[1] != 0)):
        return f"tile_size={tuple(size)} and tile_position={position}"
    return None


@rule(_BOTH, "argument", "tile_position must be a multiple of tile_size and within the 128 x 128 array", _MM)
def _tile_position(o: Operands) -> Violation:
    position = tuple(o.arguments.get("tile_position") or ())
    if len(position) != 2:
        return None
    for start, size in zip(position, _tiling(o), strict=True):
        if size <= 0 or start % size or start < 0 or start + size > o.machine.chip.partitions:
            return f"tile_position={position} with tile_size={_tiling(o)}"
    return None


@rule(_BOTH, "shape", "stationary must fit tile_size", _MM)
def _fits_tile(o: Operands) -> Violation:
    rows, columns = _tiling(o)
    if o.arguments.get("tile_size") and (o.stationary.partitions > rows or _free(o, "stationary") > columns):
        return f"stationary {show(o.stationary)} with tile_size=({rows}, {columns})"
    return None


@rule(
    "nc_matmul", "uninitialized", "accumulate=True needs PSUM that a product has written", _MM, stateful=True, documented=False
)
def _accumulate_on_nothing(o: Operands) -> Violation:
    if o.arguments.get("accumulate") is not True or not is_tile(o.dst):
        return None
    flags = o.dst.written() if o.dst.indirection is None else None
    if flags is not None and not flags.all():
        missing = int(flags.size - flags.sum())
        return f"{missing:,} of {flags.size:,} elements of dst {show(o.dst)} were never written", "Pass accumulate=(i > 0)"
    return None


@rule(
    "nc_matmul",
    "uninitialized",
    "before NeuronCore-v4 only a product may start an accumulation",
    _MM,
    stateful=True,
    documented=False,
)
def _accumulate_on_others(o: Operands) -> Violation:
    if o.generation >= 4 or o.arguments.get("accumulate") is False or o.arguments.get("is_transpose") or not is_tile(o.dst):
        return None
    foreign = o.dst.written_by_others()
    if foreign is None or not foreign.any():
        return None
    return (
        f"{int(foreign.sum()):,} of {foreign.size:,} elements of dst {show(o.dst)} were written by another instruction than a "
        "product, to which this one is added",
        "Pass accumulate=False to the first product, and add the other term afterwards",
    )


@rule(_BOTH, "argument", "operands with run-time indices need an untiled array: tile_position unset or (0, 0)", _MM)
def _indirect_untiled(o: Operands) -> Violation:
    position = tuple(o.arguments.get("tile_position") or ())
    if any(position) and any(tile.indirection is not None for _, tile in o.tiles()):
        return f"tile_position={position} with an indirect operand"
    return None


@rule("nc_matmul", "dtype", "operands with run-time indices are 16-bit or 8-bit floats", _MM)
def _indirect_dtype(o: Operands) -> Violation:
    for name, tile in o.tiles(("stationary", "moving")):
        if tile.indirection is not None and tile.dtype.name not in _INDIRECT:
            return f"{name} {show(tile)} is {tile.dtype}"
    return None


@rule("nc_matmul", "argument", "with is_transpose=True, moving takes no run-time indices", _MM)
def _transpose_direct(o: Operands) -> Violation:
    return f"moving {show(o.moving)} is indirect" if o.is_transpose and o.moving.indirection is not None else None


@rule("nc_matmul_mx", "shape", "the partitions of stationary and moving must be a multiple of 32", _MX)
def _mx_partitions(o: Operands) -> Violation:
    return f"stationary {show(o.stationary)}" if o.stationary.partitions % 32 else None


@rule("nc_matmul_mx", "shape", "the free size of stationary must be even", _MX)
def _mx_even(o: Operands) -> Violation:
    return f"stationary {show(o.stationary)}" if o.stationary.free_size % 2 else None


@rule("nc_matmul_mx", "argument", "an operand and its scale share one run-time index, or have none", _MX)
def _mx_index(o: Operands) -> Violation:
    for name in ("stationary", "moving"):
        first, second = o.arguments[name].indirection, o.arguments[f"{name}_scale"].indirection
        if getattr(first, "index", None) is not getattr(second, "index", None):
            return f"{name} and {name}_scale have different run-time indices"
    return None
