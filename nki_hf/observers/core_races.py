"""Races between the two cores of a launch: only the meetings of the cores order their accesses (see races.py)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from nki_hf.observers.race import Race
from nki_hf.observers.written_twice import elements_of, written_twice
from nki_hf.sim.stream.access_history import Access, Accesses
from nki_hf.sim.stream.dependencies import Dependencies, dependencies
from nki_hf.sim.stream.events import Event, Region
from nki_hf.sim.stream.footprint import footprint_of

__all__ = ["races_between_cores"]


def races_between_cores(events: Sequence[Event]) -> Iterator[Race]:
    """Pairs of accesses of both cores that no meeting orders."""
    touched = _shared_accesses(events)
    if not touched:
        return
    after, before = _meetings(dependencies(events, reorder=True))
    for accesses in touched.values():
        twice = None
        index: dict[bool, Accesses] = {True: Accesses(), False: Accesses()}  # of core 1, by "is a write"
        regions: dict[int, list[tuple[bool, Region]]] = defaultdict(list)
        for event, region, writes in accesses:
            regions[event.index].append((writes, region))
            if event.core == 1:
                index[writes].add(Access(footprint_of(region), 0, event.index, 0))
        for event, region, writes in accesses:
            if event.core == 1:
                continue
            footprint = footprint_of(region)
            others = [(True, item) for item in index[True].overlapping(footprint)]
            if writes:
                others += [(False, item) for item in index[False].overlapping(footprint)]
            for other_writes, item in others:
                ordered = after[event.index] & before[item.event] or after[item.event] & before[event.index]
                if ordered:
                    continue
                theirs = next(r for w, r in regions[item.event] if w == other_writes)
                if _meet(region, theirs):
                    twice = written_twice(accesses) if twice is None else twice
                    yield _core_race(event, region, events[item.event], theirs, twice)


def _meet(a: Region, b: Region) -> bool:
    """Whether two regions that may meet do: where run-time indices choose elements, those that they chose in this run."""
    if not (a.indirect or b.indirect) or a.dtype.itemsize != b.dtype.itemsize:
        return True
    ours, theirs = elements_of(a), elements_of(b)
    return ours is None or theirs is None or bool(np.isin(ours, theirs).any())


def _shared_accesses(events: Sequence[Event]) -> dict[int, list[tuple[Event, Region, bool]]]:
    """Accesses to the HBM tensors that both cores touch and one writes, by buffer number."""
    cores: dict[int, set[int]] = defaultdict(set)
    written: set[int] = set()
    for event in events:
        for region in event.writes:
            if region.buffer.core is None:
                cores[region.buffer.number].add(event.core)
                written.add(region.buffer.number)
        for region in event.reads:
            if region.buffer.core is None:
                cores[region.buffer.number].add(event.core)
    wanted = {number for number in written if len(cores[number]) > 1}
    found: dict[int, list[tuple[Event, Region, bool]]] = {number: [] for number in wanted}
    for event in events if wanted else ():
        if event.opcode == "core_barrier":
            continue
        for writes, regions in ((False, event.reads), (True, event.writes)):
            for region in regions:
                if region.buffer.number in wanted:
                    found[region.buffer.number].append((event, region, writes))
    return found


def _meetings(graph: Dependencies) -> tuple[list[int], list[int]]:
    """Bit sets of the meetings that each event leads to, and of those that lead to it.

    Every instruction that leads to a meeting ran before its first participant in the simulator, and every one that it leads
    to ran after it, so one pass in each direction is enough.
    """
    count = len(graph.queue_of)
    after, before = [0] * count, [0] * count
    groups = {group[0]: (1 << number, group) for number, group in enumerate(sorted(map(sorted, graph.meetings)))}
    members = {event for _, group in groups.values() for event in group}
    starts, producers = graph.starts.tolist(), graph.producers.tolist()
    for event in range(count):
        if event in groups:
            bit, group = groups[event]
            mask = bit
            for member in group:
                for position in range(starts[member], starts[member + 1]):
                    mask |= before[producers[position]]
            for member in group:
                before[member] = mask
        elif event not in members:
            mask = 0
            for position in range(starts[event], starts[event + 1]):
                mask |= before[producers[position]]
            before[event] = mask
    for event in range(count - 1, -1, -1):
        if event in groups:
            bit, group = groups[event]
            mask = bit
            for member in group:
                mask |= after[member]
            for member in group:
                after[member] = mask
                for position in range(starts[member], starts[member + 1]):
                    after[producers[position]] |= mask
        elif event not in members and after[event]:
            for position in range(starts[event], starts[event + 1]):
                after[producers[position]] |= after[event]
    return after, before


def _core_race(a: Event, a_region: Region, b: Event, b_region: Region, twice: bool) -> Race:
    if b.index < a.index:
        a, a_region, b, b_region = b, b_region, a, a_region
    name = a_region.buffer.name
    if _same_write(a, a_region, b, b_region) or twice:
        split = "a share of the rows for each core: both write the same elements. Divide them by nl.program_id(0)"
        return Race(a, b, a_region, b_region, "cores", split, same=True)
    return Race(a, b, a_region, b_region, "cores", f"core_barrier(data={name}, cores=(0, 1)) between the two on both cores")


def _same_write(a: Event, a_region: Region, b: Event, b_region: Region) -> bool:
    """One instruction of the kernel that writes the same elements on both cores."""
    writes = any(a_region is item for item in a.writes) and any(b_region is item for item in b.writes)
    same = (a.file, a.line, a.opcode) == (b.file, b.line, b.opcode)
    return writes and same and footprint_of(a_region).covers(footprint_of(b_region))
