"""Steering: which elements of a kernel's inputs say how often a loop of run time turns, which elements a register or an index
chooses, or how a comparison of single numbers ends.

Found backwards over the events of a launch, element by element where an instruction works so, by rows where it reduces, and by
all that it reads where it moves numbers between partitions. So it may name too many elements, and none too few, but for those
that only say whether another loop writes what is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nki_hf.sim import LaunchResult
from nki_hf.sim.execution.loops import Loop, turns_of
from nki_hf.sim.stream.events import Event, Region

__all__ = ["Steering", "all_loops", "steering"]

Array = np.ndarray[Any, Any]
Place = tuple[str, int]

_LOADS, _STORES = ("register_load", "scalar_load"), ("register_store", "scalar_store")
_BY_ELEMENT = frozenset(
    "activate2 activation activation_reduce affine_select dma_compute dma_copy exponential range_select reciprocal "
    "scalar_tensor_tensor select_reduce tensor_copy tensor_copy_predicated tensor_scalar tensor_scalar_reduce "
    "tensor_tensor".split()
)
_BY_ROW = _BY_ELEMENT | frozenset(
    "bn_aggr bn_stats max8 nc_find_index8 nc_match_replace8 tensor_reduce tensor_scalar_cumulative tensor_tensor_scan".split()
)
_COMPARISONS = frozenset("less less_equal greater greater_equal equal not_equal".split())
_FEW = 4
"""Elements of a comparison that counts as a condition; larger ones are masks, whose elements differ."""
_PASSES = 4
"""Ways back over the events: a turn of a loop may take what a later instruction of the turn before wrote."""


@dataclass(frozen=True, kw_only=True)
class Steering:
    """What elements of inputs steer.

    Attributes:
      what: `loop`, `register` (an offset that is loaded), `index` (offsets that an instruction reads) or `condition`.
      file, line: of the loop, or of the instruction that loads, reads or compares.
      loops: those of that line that they make turn; empty for the others.
      elements: bool arrays by the name of the kernel's input, in its shape, True for those that steer.
    """

    what: str
    file: str
    line: int
    loops: Sequence[Loop]
    elements: Mapping[str, Array]


def all_loops(loops: Iterable[Loop], depth: int = 0) -> list[tuple[Loop, int]]:
    """The loops and those within them, each with the number of loops around it."""
    found = []
    for loop in loops:
        found += [(loop, depth), *all_loops((node for node in loop.nodes if isinstance(node, Loop)), depth + 1)]
    return found


def steering(result: LaunchResult) -> list[Steering]:
    """What inputs steer in a launch with values, loops first; loops of one line and depth are one entry."""
    events = list(result.events)
    loads, indices, conditions = _roots(events)
    if not loads and not indices and not conditions:
        return []
    for loop in result.run.short:
        if not loop.turned:
            events += turns_of(loop, 1)  # what it would do
    loads = _roots(events)[0]
    places = {event.attrs["load"]: (event.file, event.line) for event in events if event.opcode in _LOADS}
    back = _Backwards(events, loads)
    found = []
    lines: dict[tuple[str, int, int], list[Loop]] = {}
    for loop, depth in all_loops(result.run.loops):
        lines.setdefault((loop.file, loop.line, depth), []).append(loop)
    known = set[int]()
    for (file, line, _), loops in lines.items():
        numbers = {number for loop in loops for number in loop.loads}
        known |= numbers
        elements = back.inputs([region for number in sorted(numbers) for region in loads.get(number, [])])
        if elements:
            found.append(Steering(what="loop", file=file, line=line, loops=loops, elements=elements))
    registers: Roots = {}
    for number, regions in loads.items():
        if number not in known:
            registers.setdefault(places[number], []).extend(regions)
    for what, roots in (("register", registers), ("index", indices), ("condition", conditions)):
        for (file, line), regions in roots.items():
            if elements := back.inputs(regions):
                found.append(Steering(what=what, file=file, line=line, loops=(), elements=elements))
    return found


Roots = dict[Place, list[Region]]
Loads = dict[int, list[Region]]


def _roots(events: Iterable[Event]) -> tuple[Loads, Roots, Roots]:
    """What is loaded into registers, by the instruction's number; what is read as indices, and written by comparisons of few
    numbers, by place.
    """
    loads: Loads = {}
    indices: Roots = {}
    conditions: Roots = {}
    for event in events:
        place = (event.file, event.line)
        if event.opcode in _LOADS:
            loads.setdefault(event.attrs["load"], []).extend(event.reads)
        elif any(region.indirect for region in (*event.reads, *event.writes)):
            wholes = [region for region in event.reads if not region.indirect and region.dtype.is_integer]
            if wholes:
                indices.setdefault(place, []).extend(wholes)
        elif any(event.attrs.get(name) in _COMPARISONS for name in ("op", "op0", "op1")):
            if event.writes and event.writes[0].elements <= _FEW:
                conditions.setdefault(place, []).extend(event.writes)
    return loads, indices, conditions


class _Backwards:
    """The way back from regions to inputs."""

    def __init__(self, events: Sequence[Event], loads: Loads) -> None:
        self.events = events
        self.loads = loads

    def inputs(self, roots: Sequence[Region]) -> dict[str, Array]:
        """The elements of inputs that the roots follow from, by the input's name."""
        live: dict[int, Array] = {}
        found: dict[int, Any] = {}
        more = list(roots)
        numbers = set[int]()
        for _ in range(_PASSES):
            for region in more:
                _mark(live, found, region, None)
            more = []
            before = {number: int(flags.sum()) for number, flags in live.items()}
            for event in reversed(self.events):  # what becomes live has its writers before, or is found in the next pass
                if not any(region.buffer.number in live for region in event.writes):
                    continue
                for region in event.writes:
                    hit = _hit(live, region)
                    if hit is None:
                        continue
                    if event.opcode in _STORES:
                        new = set(event.attrs["loads"]) - numbers
                        numbers |= new
                        more += [item for number in new for item in self.loads.get(number, [])]
                    _reads(live, found, event, region, hit)
            if not more and {number: int(flags.sum()) for number, flags in live.items()} == before:
                break
        return {
            buffer.name: live[number].reshape(buffer.shape)
            for number, buffer in found.items()
            if buffer.role == "input" and live[number].any() and live[number].size == buffer.elements
        }


def _view(flags: Array, region: Region) -> Array | None:
    """The region's elements in an array of flags over its buffer; None where they are not elements of the buffer's type."""
    if region.indirect or region.dtype.itemsize != region.buffer.dtype.itemsize:
        return None
    return np.ndarray(region.shape, np.bool_, buffer=flags, offset=region.offset, strides=region.strides)


def _hit(live: dict[int, Array], region: Region) -> Array | None:
    """Which elements of a written region are live; None if none is."""
    flags = live.get(region.buffer.number)
    if flags is None:
        return None
    view = _view(flags, region)
    if view is None:
        return np.ones(region.shape, np.bool_) if flags.any() else None
    return view.copy() if view.any() else None


def _mark(live: dict[int, Array], found: dict[int, Any], region: Region, which: Array | None) -> None:
    """Make elements of a region live; None = all of them."""
    number = region.buffer.number
    if number not in live:
        live[number], found[number] = np.zeros(region.buffer.elements, np.bool_), region.buffer
    view = _view(live[number], region)
    if view is None:
        live[number][:] = True
    elif which is None:
        view[...] = True
    else:
        view[np.broadcast_to(which, view.shape)] = True  # elements may be there more than once


def _reads(live: dict[int, Array], found: dict[int, Any], event: Event, written: Region, hit: Array) -> None:
    """Make live what an event reads for the elements of a written region that are."""
    for place, region in enumerate(event.reads):
        _mark(live, found, region, None if written.indirect or region.indirect else _needed(event, place, region, hit))


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
