"""Between HBM and SBUF, and between layouts: load, store, transposes, broadcasts, gathers, matmul."""

from __future__ import annotations

from typing import Any

from nki_hf.sim import isa as nisa
from nki_hf.sim.faults import fault
from nki_hf.sim.language.movement import sbuf_tile
from nki_hf.sim.machine import current_machine
from nki_hf.sim.tensor import NkiTensor

__all__ = [
    "broadcast_to", "expand_dims", "gather_flattened", "load", "load_transpose2d", "matmul", "store", "transpose",
]  # fmt: skip

_QUADRANT = 32
"""Partitions that nc_stream_shuffle moves data among (docstring of nc_stream_shuffle)."""


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tile with the values of the HBM tensor, whose first axis becomes the partition axis."""
    tile = sbuf_tile(src.shape, src.dtype if dtype is None else dtype)
    nisa.dma_copy(dst=tile, src=src)
    return tile


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Copy an SBUF tile into an HBM tensor of as many elements."""
    nisa.dma_copy(dst=dst, src=value)


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tile `[columns, rows]` with the transpose of the HBM tensor `[rows, columns]`."""
    if src.ndim != 2:
        fault("shape", "load_transpose2d", f"{src!r}", limit="must have two axes")
    tile = sbuf_tile((src.shape[1], src.shape[0]), src.dtype if dtype is None else dtype)
    nisa.dma_copy(dst=tile, src=src.permute((1, 0)))
    return tile


def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new PSUM tile `[free, partitions]` with the transpose of the tile `[partitions, free]`."""
    if x.ndim != 2:
        fault("shape", "transpose", f"{x!r}", limit="must have two axes")
    result = sbuf_tile((x.shape[1], x.shape[0]), x.dtype if dtype is None else dtype, "psum")
    nisa.nc_transpose(dst=result, data=x)
    return result


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """`x @ y` (or `x.T @ y`) as a new float32 PSUM tile.

    Args:
      x: SBUF tile `[M, K]`, or `[K, M]` with `transpose_x`; K and M at most 128.
      y: SBUF tile `[K, N]`, N at most 512.
      transpose_x: True if the contraction axis of `x` already lies on partitions; otherwise it is transposed first.
    """
    stationary = x
    if not transpose_x:
        flipped = transpose(x)
        stationary = sbuf_tile(flipped.shape, x.dtype)
        nisa.tensor_copy(dst=stationary, src=flipped)
    result = sbuf_tile((stationary.shape[1], y.shape[1]), "float32", "psum")
    nisa.nc_matmul(dst=result, stationary=stationary, moving=y)
    return result


def broadcast_to(x: NkiTensor, shape: Any, dtype: Any = None) -> NkiTensor:
    """`x` repeated along its axes of size 1 to `shape`, as a new tile; `x` itself if nothing changes."""
    wanted = tuple(shape)
    element = x.dtype if dtype is None else current_machine("nl.broadcast_to").element(dtype)
    if x.shape == wanted:
        if element == x.dtype:
            return x
        same = sbuf_tile(wanted, element)
        nisa.tensor_copy(dst=same, src=x)
        return same
    if len(wanted) != x.ndim or any(have not in (1, want) for have, want in zip(x.shape, wanted, strict=True)):
        fault("shape", "broadcast_to", f"shape={wanted} of {x!r}", limit="the same rank, each size equal or from 1")
    if x.shape[0] != wanted[0]:
        x = _over_partitions(x, wanted[0])
    for axis in range(1, x.ndim):
        if x.shape[axis] != wanted[axis]:
            x = x.broadcast(axis, wanted[axis])
    result = sbuf_tile(wanted, element)
    nisa.tensor_copy(dst=result, src=x)
    return result


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """View of the tile with a new axis of size 1 at position `axis` (negative counts from the end of the result)."""
    return x.expand_dim(axis if axis >= 0 else x.ndim + 1 + axis)


def gather_flattened(data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None) -> NkiTensor:
    """`result[p, i] = data[p, indices[p, i]]`, free axes flattened, as a new tile of the shape of `indices`."""
    if axis not in (0, -data.ndim):
        fault("argument", "gather_flattened", f"axis={axis}", limit="only 0: each partition gathers from its own elements")
    if indices.dtype.name != "uint32":
        converted = sbuf_tile(indices.shape, "uint32")
        nisa.tensor_copy(dst=converted, src=indices)
        indices = converted
    result = sbuf_tile(indices.shape, data.dtype)
    nisa.nc_n_gather(dst=result, data=data, indices=indices)
    if dtype is None:
        return result
    cast = sbuf_tile(indices.shape, dtype)
    nisa.tensor_copy(dst=cast, src=result)
    return cast


def _over_partitions(x: NkiTensor, partitions: int) -> NkiTensor:
    """The one partition of `x` in `partitions` partitions, quadrant by quadrant."""
    result = sbuf_tile((partitions, *x.shape[1:]), x.dtype)
    for start in range(0, partitions, _QUADRANT):
        count = min(_QUADRANT, partitions - start)
        nisa.nc_stream_shuffle(dst=result[start : start + count], src=x, shuffle_mask=[0] * _QUADRANT)
    return result
