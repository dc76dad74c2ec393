"""Between HBM and SBUF, and between layouts: load, store, transposes, broadcasts, gathers, matmul."""

from __future__ import annotations

from typing import Any

from nki_hf.sim import isa as nisa
from nki_hf.sim.execution.current_machine import current_machine
from nki_hf.sim.faults import fault
from nki_hf.sim.language.movement import sbuf_tile
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = [
    "broadcast_to",
    "expand_dims",
    "gather_flattened",
    "load",
    "load_transpose2d",
    "matmul",
    "store",
    "transpose",
]

_QUADRANT = 32
"""Partitions that nc_stream_shuffle moves data among (docstring of nc_stream_shuffle)."""

_PRODUCTS = ("bfloat16", "float16", "float32")
"""Dtypes whose values a product with 1 keeps, on every generation."""


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
        if x.shape == wanted and element == x.dtype:
            return x
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
    """The one partition of `x` in `partitions` partitions of a new SBUF tile.

    Floats that the Tensor engine takes in any generation: a product with a row of ones, as the language does it
    (nki/guides/architecture/trainium_inferentia2_arch.rst, alternative use cases of TensorE), copied out of PSUM. Others:
    shuffled, quadrant by quadrant.
    """
    result = sbuf_tile((partitions, *x.shape[1:]), x.dtype)
    if x.dtype.name in _PRODUCTS:
        if x.space != "sbuf":
            inside = sbuf_tile(x.shape, x.dtype)
            nisa.tensor_copy(dst=inside, src=x)
            x = inside
        _spread(result, _ones(partitions, x), x)
        return result
    for start in range(0, partitions, _QUADRANT):
        count = min(_QUADRANT, partitions - start)
        nisa.nc_stream_shuffle(dst=result[start : start + count], src=x, shuffle_mask=[0] * _QUADRANT)
    return result


def _spread(dst: NkiTensor, ones: NkiTensor, x: NkiTensor) -> None:
    """`dst = ones.T @ x` in pieces that one product takes."""
    most = int(current_machine("nl.broadcast_to").chip.moving_free_max)
    if x.free_size <= most:
        product = sbuf_tile(dst.shape, "float32", "psum")
        nisa.nc_matmul(dst=product, stationary=ones, moving=x, is_stationary_onezero=True)
        nisa.tensor_copy(dst=dst, src=product)
        return
    axis = next(axis for axis in range(1, x.ndim) if x.shape[axis] > 1)
    step = max(1, most * x.shape[axis] // x.free_size)
    for start in range(0, x.shape[axis], step):
        part = (*[slice(None)] * axis, slice(start, min(start + step, x.shape[axis])))
        _spread(dst[part], ones, x[part])


def _ones(columns: int, x: NkiTensor) -> NkiTensor:
    """`[1, columns]` ones in the dtype of `x`, filled once per kernel."""
    state = current_machine("nl.broadcast_to").state
    key = f"row of {columns} ones in {x.dtype.name}"
    if key not in state:
        state[key] = sbuf_tile((1, columns), x.dtype)
        nisa.memset(dst=state[key], value=1.0)
    row: NkiTensor = state[key]
    return row
