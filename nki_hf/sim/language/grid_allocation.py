"""Allocations that are grids, and `nl.empty_like`, which takes tensors and grids."""

from __future__ import annotations

import math
from typing import Any

from nki_hf.errors import KernelTypeFault
from nki_hf.sim.execution.current_machine import current_machine
from nki_hf.sim.faults import fault
from nki_hf.sim.language.allocation import ndarray
from nki_hf.sim.tensors.grid_axes import Backing, axes_over
from nki_hf.sim.tensors.grids import NkiBlockGrid, NkiGrid, NkiTileGrid, blocks, grid_over, packed_like, whole_numbers
from nki_hf.sim.tensors.regions import MemoryRegion, as_region

__all__ = ["alloc_blocks", "alloc_tiles", "empty_like"]

_ORDERS = ((1, 0), (2, 1, 0), (3, 1, 2, 0))


def alloc_tiles(
    *, tile_shape: tuple[int, ...], element_shape: tuple[int, ...], buffer: Any, dtype: Any, address: Any = None, name: str = ""
) -> NkiTileGrid:
    """One new allocation, never written, as a grid of tiles.

    In HBM it has exactly `element_shape`. On chip it has two axes, `[rows of a tile, the rest]`, with room for whole tiles;
    tiles along the partition axis follow one another along the free axis. `address` and `name` are those of `nl.ndarray`.
    """
    sizes = whole_numbers("alloc_tiles", "tile_shape", tile_shape)
    elements = whole_numbers("alloc_tiles", "element_shape", element_shape)
    backing, on_chip = _allocated(elements, sizes, buffer, dtype, address, name)
    return grid_over(backing, axes_over("alloc_tiles", elements, sizes, (1,) * len(sizes), on_chip=on_chip))


def alloc_blocks(
    *,
    tile_shape: tuple[int, ...],
    block_shape: tuple[int, ...],
    element_shape: tuple[int, ...],
    buffer: Any,
    dtype: Any,
    address: Any = None,
    name: str = "",
) -> NkiBlockGrid:
    """What `alloc_tiles` allocates, in the same order of tiles, as a grid of blocks of tiles."""
    whole_numbers("alloc_blocks", "block_shape", block_shape)
    made = alloc_tiles(
        tile_shape=tile_shape, element_shape=element_shape, buffer=buffer, dtype=dtype, address=address, name=name
    )
    return blocks(made, block_shape=block_shape)


def empty_like(
    x: Any,
    dtype: Any = None,
    buffer: MemoryRegion | str | None = None,
    name: str = "",
    *,
    transpose_axes: tuple[int, ...] | None = None,
    address: Any = None,
) -> Any:
    """A new tensor or grid, never written, shaped like `x`; dtype and memory are those of `x` unless given.

    Of a grid, the cells that it selects lie without gaps in the new allocation, under the same coordinates.

    Args:
      transpose_axes: (1, 0), (2, 1, 0) or (3, 1, 2, 0): shape the result, which is in SBUF, as the destination of a
        `nki.isa.dma_transpose` of `x` in that order.
      address: as of `nl.ndarray`.
    """
    element = x.dtype if dtype is None else dtype
    region = x.buffer if buffer is None else buffer
    if transpose_axes is not None:
        _check_order(tuple(transpose_axes), len(x.element_shape if isinstance(x, NkiGrid) else x.shape), region)
    if not isinstance(x, NkiGrid):
        shape = x.shape if transpose_axes is None else tuple(x.shape[axis] for axis in transpose_axes)
        return ndarray(shape, element, region, name, address)
    elements, sizes = x.element_shape, x.tile_shape
    if transpose_axes is not None:
        elements = tuple(elements[axis] for axis in transpose_axes)
        sizes = tuple(sizes[axis] for axis in transpose_axes)
    backing, _ = _allocated(elements, sizes, as_region(region), element, address, name)
    return packed_like(x, backing, transpose_axes)


def _allocated(
    elements: tuple[int, ...], sizes: tuple[int, ...], buffer: Any, dtype: Any, address: Any, name: str
) -> tuple[Backing, bool]:
    machine = current_machine("nl.alloc_tiles")
    if not isinstance(buffer, MemoryRegion):
        fault(
            "argument",
            "alloc_tiles",
            f"buffer={buffer!r}",
            limit="must be a region such as nl.sbuf or nl.shared_hbm",
            raised=KernelTypeFault,
        )
    space = buffer.value
    if space not in ("sbuf", "psum"):
        return Backing(ndarray(elements, dtype, buffer, name, address)), False
    axes_over("alloc_tiles", elements, sizes, (1,) * len(sizes), on_chip=True)  # refuses wrong ranks before the allocation
    if sizes[0] > machine.chip.partitions:
        fault("shape", "alloc_tiles", f"tile_shape={sizes} in {space}", limit=f"at most {machine.chip.partitions} partitions")
    counts = [-(-extent // size) for extent, size in zip(elements, sizes, strict=True)]
    room = tuple(count * size for count, size in zip(counts[1:], sizes[1:], strict=True))
    tensor = ndarray((sizes[0], counts[0] * math.prod(room)), dtype, buffer, name, address)
    return Backing(tensor, (sizes[0], counts[0], *room)), True


def _check_order(order: tuple[int, ...], rank: int, region: Any) -> None:
    if order not in _ORDERS or len(order) != rank:
        fault(
            "argument",
            "empty_like",
            f"transpose_axes={order} for {rank} axes",
            limit=f"must be one of {_ORDERS} of that length",
        )
    if as_region(region).value != "sbuf":
        fault(
            "argument",
            "empty_like",
            f"transpose_axes={order} with buffer={region}",
            limit="the destination is in SBUF",
            advice="Pass buffer=nl.sbuf",
        )
