"""Steering: which elements of a kernel's inputs say how often a loop of run time turns, which elements a register or an index
chooses, how a comparison of few numbers ends, or stand by themselves.

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
from nki_hf.sim.execution.loop_events import turns_of
from nki_hf.sim.execution.loops import Loop
from nki_hf.sim.stream.events import Event, Region
from nki_hf.tools.judging.backwards import hit_of, mark, mark_reads
from nki_hf.tools.judging.single_numbers import single_numbers

__all__ = ["Steering", "all_loops", "steering"]

Array = np.ndarray[Any, Any]
Place = tuple[str, int]

_LOADS, _STORES = ("register_load", "scalar_load"), ("register_store", "scalar_store")
_COMPARISONS = frozenset("less less_equal greater greater_equal equal not_equal".split())
_FEW = 4
"""Elements of a comparison that counts as a condition; larger ones are masks, whose elements differ."""
_PASSES = 4
"""Ways back over the events: a turn of a loop may take what a later instruction of the turn before wrote."""


@dataclass(frozen=True, kw_only=True)
class Steering:
    """What elements of inputs steer.

    Attributes:
      what: `loop`, `register` (an offset that is loaded), `index` (offsets that an instruction reads), `condition` or `number`
        (a few elements that an instruction reads by themselves).
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
        return _numbers(events, [])
    straight = list(events)
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
    return [*found, *_numbers(straight, found)]


def _numbers(events: Sequence[Event], known: Sequence[Steering]) -> list[Steering]:
    """Single numbers, but for those that steer already."""
    before = [{name: flags.tobytes() for name, flags in item.elements.items()} for item in known]
    return [
        Steering(what="number", file=event.file, line=event.line, loops=(), elements=elements)
        for event, elements in single_numbers(events)
        if {name: flags.tobytes() for name, flags in elements.items()} not in before
    ]


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
                mark(live, found, region, None)
            more = []
            before = {number: int(flags.sum()) for number, flags in live.items()}
            for event in reversed(self.events):  # what becomes live has its writers before, or is found in the next pass
                if not any(region.buffer.number in live for region in event.writes):
                    continue
                for region in event.writes:
                    hit = hit_of(live, region)
                    if hit is None:
                        continue
                    if event.opcode in _STORES:
                        new = set(event.attrs["loads"]) - numbers
                        numbers |= new
                        more += [item for number in new for item in self.loads.get(number, [])]
                    mark_reads(live, found, event, region, hit)
            if not more and {number: int(flags.sum()) for number, flags in live.items()} == before:
                break
        return {
            buffer.name: live[number].reshape(buffer.shape)
            for number, buffer in found.items()
            if buffer.role == "input" and live[number].any() and live[number].size == buffer.elements
        }
