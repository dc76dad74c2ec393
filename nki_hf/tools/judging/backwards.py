"""One step back over an instruction: which elements of what it reads the elements that it writes follow from."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim.stream.events import Event, Region
from nki_hf.sim.stream.region_elements import elements_of

__all__ = ["hit_of", "mark", "mark_reads"]

Array = np.ndarray[Any, Any]

_BY_ELEMENT = frozenset(
    "activate2 activation activation_reduce affine_select dma_compute dma_copy exponential range_select reciprocal "
    "scalar_tensor_tensor select_reduce tensor_copy tensor_copy_predicated tensor_scalar tensor_scalar_reduce "
    "tensor_tensor".split()
)
_BY_ROW = _BY_ELEMENT | frozenset(
    "bn_aggr bn_stats max8 nc_find_index8 nc_match_replace8 tensor_reduce tensor_scalar_cumulative tensor_tensor_scan".split()
)


def hit_of(live: dict[int, Array], region: Region) -> Array | None:
    """Which elements of a written region are live; None if none is."""
    flags = live.get(region.buffer.number)
    if flags is None:
        return None
    view = elements_of(flags, region)
    if view is None:
        return np.ones(region.shape, np.bool_) if flags.any() else None
    return view.copy() if view.any() else None


def mark(live: dict[int, Array], found: dict[int, Any], region: Region, which: Array | None, *, value: bool = True) -> None:
    """Make elements of a region live (or no longer, with `value` False); None = all of them."""
    number = region.buffer.number
    if number not in live:
        live[number], found[number] = np.zeros(region.buffer.elements, np.bool_), region.buffer
    view = elements_of(live[number], region)
    if view is None:
        live[number][:] |= value  # of another type: none of them is known to be over
    elif which is None:
        view[...] = value
    else:
        view[np.broadcast_to(which, view.shape)] = value  # elements may be there more than once


def mark_reads(live: dict[int, Array], found: dict[int, Any], event: Event, written: Region, hit: Array) -> None:
    """Make live what an event reads for the elements of a written region that are."""
    for place, region in enumerate(event.reads):
        mark(live, found, region, None if written.indirect or region.indirect else _needed(event, place, region, hit))


def _needed(event: Event, place: int, region: Region, hit: Array) -> Array | None:
    """Which elements of a read region the written ones follow from; None = all."""
    if event.opcode in _BY_ELEMENT and region.elements == hit.size:
        return hit.reshape(region.shape)
    partitions = region.shape[0] if region.shape else 0
    if event.opcode in _BY_ROW and region.buffer.on_chip and partitions == hit.shape[0]:
        return hit.reshape(partitions, -1).any(1).reshape(partitions, *[1] * (len(region.shape) - 1))
    if event.opcode in ("nc_transpose", "dma_transpose") and len(region.shape) == 2 and hit.shape == region.shape[::-1]:
        return hit.T
    if event.opcode == "nc_matmul" and len(region.shape) == 2 and hit.ndim == 2 and place < 2:
        alive = hit.any(1 - place)  # rows of the product are columns of stationary, its columns those of moving
        return np.broadcast_to(alive, region.shape) if alive.shape == region.shape[1:] else None
    return None
