"""MX formats of NeuronCore-v4: quantize_mx (Vector engine) and nc_matmul_mx (Tensor engine).

A scaling group is 8 partitions x 4 elements of a packed x4 type. Its scale, a power of two, lies in the same quadrant of
32 partitions, in row `partition % 32 // 8` of it, and in the column of the packed element.
Source: docstrings of both instructions, Trainium3 architecture guide (MX layout), OCP Microscaling Formats 1.0.
"""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.sim.dtypes import DType, as_dtype
from nki_hf.sim.isa.instruction import NkiInstruction, begin
from nki_hf.sim.isa.tensor_engine import kept, product_action, warn_in_loop, written_before
from nki_hf.sim.tensors.casts import cast
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import Array, Reader, mark_written, native_reader, reader, storer

__all__ = ["PACKED_ELEMENTS", "nc_matmul_mx", "quantize_mx"]

PACKED_ELEMENTS = {
    "float8_e4m3fn_x4": "float8_e4m3fn",
    "float8_e5m2_x4": "float8_e5m2",
    "float4_e2m1fn_x4": "float4_e2m1fn",
}
_MAX_EXPONENT = {"float8_e4m3fn_x4": 8, "float8_e5m2_x4": 15}
_PACK, _GROUP, _QUADRANT, _BIAS = 4, 8, 32, 127


def quantize_mx(dst: NkiTensor, src: NkiTensor, dst_scale: NkiTensor, name: str | None = None) -> NkiInstruction:
    """`dst [P, F / 4]` (float8 x4) and `dst_scale` with `src [P, F]` ~ dst * 2 ** (scale - 127), one scale per 32 elements.

    The scale is 2 ** (floor(log2(largest magnitude)) - (largest exponent of the element type - 1)), and 2 ** -127 for a
    group of zeros; values are divided by it in float32 and rounded to nearest even.
    """
    this = begin("quantize_mx", dst=dst, src=src, dst_scale=dst_scale)
    action = None
    where = np.zeros((dst_scale.partitions, 1), np.bool_)
    where[_scale_rows(src.partitions)] = True
    if this.values:
        read, store, store_scale = reader(src), storer(dst), storer(dst_scale)
        as_code = dst_scale.dtype.name == "uint8"
        element, emax = as_dtype(PACKED_ELEMENTS[dst.dtype.name]), _MAX_EXPONENT[dst.dtype.name]
        rows, columns = src.partitions, src.free_size // _PACK
        scale_rows, scale_dtype = dst_scale.partitions, dst_scale.dtype

        def action() -> None:
            groups = read().reshape(rows // _GROUP, _GROUP, columns, _PACK)
            largest = np.abs(groups).max(axis=(1, 3))
            exponent = np.where(largest > 0, np.frexp(largest)[1] - 1 - (emax - 1), -_BIAS).astype(np.int32)
            exponent = np.clip(exponent, -_BIAS, _BIAS)
            scaled = np.ldexp(groups, -exponent[:, None, :, None])
            packed = cast(scaled, element).view(np.uint8).reshape(rows, columns * _PACK)
            store(packed.view(np.uint32))
            scales = np.zeros((scale_rows, columns), np.int32 if as_code else np.float32)
            scales[_scale_rows(rows)] = exponent + _BIAS if as_code else np.ldexp(np.float32(1), exponent)
            store_scale(cast(scales, scale_dtype), where)

    issued = this.issue(
        engine="vector", reads=(src,), writes=(dst, dst_scale), action=action, marked=(dst,), keeps=() if where.all() else (1,)
    )
    mark_written(dst_scale, where)
    return issued


def nc_matmul_mx(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    stationary_scale: NkiTensor,
    moving_scale: NkiTensor,
    tile_position: tuple[int, ...] | None = None,
    tile_size: tuple[int, ...] | None = None,
    accumulate: bool | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """`dst[M, N] (=|+=) stationary.T @ moving` of MX operands `[P, M]` and `[P, N]` in packed x4 types.

    The contraction runs over partitions and the four packed elements; each operand is scaled by its groups' powers of two,
    products are exact and sums in float32. `accumulate` as in `nc_matmul`.
    """
    this = begin(
        "nc_matmul_mx",
        dst=dst,
        stationary=stationary,
        moving=moving,
        stationary_scale=stationary_scale,
        moving_scale=moving_scale,
        tile_position=tile_position,
        tile_size=tile_size,
        accumulate=accumulate,
    )
    adds = written_before(dst, accumulate)
    warn_in_loop("nc_matmul_mx", dst, adds, accumulate)
    action = None
    if this.values:
        left, right = _dequantized(stationary, stationary_scale), _dequantized(moving, moving_scale)
        action = product_action(dst, left, right, adds, accumulate)
    return this.issue(
        engine="tensor",
        reads=(stationary, moving, stationary_scale, moving_scale),
        writes=(dst,),
        action=action,
        parts=(None, None, _looked_at(stationary, stationary_scale), _looked_at(moving, moving_scale)),
        accumulate=adds is not False,
        **kept(adds),
        perf_mode="mx",
        tile_position=tuple(tile_position or ()),
        tile_size=tuple(tile_size or ()),
    )


def _scale_rows(partitions: int) -> Array:
    """Row of the scale tensor of each group of 8 partitions."""
    groups = np.arange(-(-partitions // _GROUP))
    per_quadrant = _QUADRANT // _GROUP
    return groups // per_quadrant * _QUADRANT + groups % per_quadrant


def _looked_at(data: NkiTensor, scale: NkiTensor) -> Array:
    """Rows of the scale tensor that hold a scale, 4 of each 32: `bool[partitions, 1, ...]`."""
    rows = np.zeros((scale.partitions,) + (1,) * (scale.ndim - 1), np.bool_)
    holding = _scale_rows(data.partitions)
    rows[holding[holding < scale.partitions]] = True
    return rows


def _dequantized(data: NkiTensor, scale: NkiTensor) -> Reader:
    """Closure that gives `float32 [partitions * 4, columns]`."""
    packed, scales, unpack = native_reader(data), _scale_reader(scale), _unpacker(data.dtype)
    rows, columns = data.partitions, data.free_size
    chosen = np.repeat(_scale_rows(rows), _GROUP)[:rows]

    def read() -> Array:
        values = unpack(np.ascontiguousarray(packed())).reshape(rows, columns, _PACK) * scales()[chosen][:, :, None]
        return values.transpose(0, 2, 1).reshape(rows * _PACK, columns)

    return read


def _scale_reader(scale: NkiTensor) -> Reader:
    """Closure that gives the scales as float32 powers of two; the code 255 is NaN."""
    if scale.dtype.name != "uint8":
        return reader(scale)
    codes, table = native_reader(scale), np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    return lambda: table[codes()]


def _unpacker(dtype: DType) -> Any:
    """Function from packed words to float32 elements, least significant first."""
    name = PACKED_ELEMENTS[dtype.name]
    if name == "float4_e2m1fn":
        table = _nibbles()
        return lambda words: table[(words[..., None] >> np.arange(0, 16, 4, dtype=np.uint16)) & 15]
    table = np.arange(256, dtype=np.uint8).view(as_dtype(name).dtype).astype(np.float32)
    return lambda words: table[words.view(np.uint8)]


@functools.cache
def _nibbles() -> Array:
    return np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
