"""Races: two accesses to the same bytes, one of them a write, that nothing orders.

What orders. The compiler keeps the sequential order of a kernel wherever two instructions of one core depend on each other
through data ("the compiler may reorder operations that have no data dependencies, but this is functionally transparent",
nki/get-started/nki-language-guide.rst), `depends_on` adds edges, and `nl.no_reorder` adds them between all instructions of
its block (nki/guides/how-to-scheduling-apis.rst). So within one core the dependencies of sim/stream/dependencies.py are
ordered. Across the two cores of a launch nothing is, but where they meet: `core_barrier` (waits for this core's accesses to
its `data`, and holds back the later ones; nki/api/nki/isa/__init__.py) and `sendrecv`. Two accesses of different cores are
therefore ordered only if the first leads to a meeting, by dependencies, that leads to the second.
The order of issue within an engine's queue does not count there, because the compiler may change it.

Three kinds of dependency within a core are only inferred to be tracked; `Trust` says whether to rely on them:

* `addresses`: tiles that share bytes by `address=`. Public kernels rely on it (nki-library's attention kernels rotate over
  PSUM banks and SBUF addresses with no synchronisation of their own).
* `hbm`: an HBM tensor written by one DMA and read by another. Public kernels rely on it (nki-samples' attention with HBM
  round trips, nki-library's attention backward accumulates in HBM).
* `indices`: accesses whose elements run-time indices choose, taken as touching the whole tensor. No public statement. Between
  cores they are taken as touching what they chose in this run, where it computed values.

What is not trusted is ordered only if other dependencies and the order of the queues imply it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nki_hf.errors import FaultRecord, KernelFault
from nki_hf.observers.written_twice import elements_of, written_twice
from nki_hf.sim.stream.access_history import Access, Accesses
from nki_hf.sim.stream.dependencies import Dependencies, dependencies
from nki_hf.sim.stream.events import Event, Region
from nki_hf.sim.stream.footprint import footprint_of

__all__ = ["Race", "Trust", "check_races", "races"]


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Which inferred dependencies within a core count as tracked by the compiler; see the module.

    Attributes:
      addresses: between tiles that share bytes by `address=`. Default: True.
      hbm: between DMAs of different queues through one HBM tensor. Default: True.
      indices: through accesses with run-time indices. Default: True.
    """

    addresses: bool = True
    hbm: bool = True
    indices: bool = True


@dataclass(frozen=True, slots=True)
class Race:
    """One unordered pair of accesses.

    Attributes:
      first, second: the two events, in order of execution in the simulator.
      first_region, second_region: what they touch.
      cause: `cores`, `addresses`, `hbm` or `indices`.
      missing: what would order them.
      same: True if both cores write the same elements by one instruction of the kernel, or read such elements after their own
        core has written them: if both write the same values, it does not matter which comes first.
      count: pairs at the same two source lines.
    """

    first: Event
    second: Event
    first_region: Region
    second_region: Region
    cause: str
    missing: str
    count: int = 1
    same: bool = False

    def record(self) -> FaultRecord:
        """The race as a fault at the second access."""
        a, b = self.first, self.second
        return FaultRecord(
            kind="race",
            instruction=b.opcode,
            message=f"{_access(b, self.second_region)} and {_access(a, self.first_region)} ({a.file}:{a.line}) are not ordered"
            + (f" ({self.count:,} pairs at these lines)" if self.count > 1 else ""),
            limit=f"missing: {self.missing}",
            operands=(_tile(self.first_region), _tile(self.second_region)),
            file=b.file,
            line=b.line,
            details={
                "cause": self.cause,
                "missing": self.missing,
                "count": self.count,
                "first": {"event": a.index, "core": a.core, "queue": a.queue, "file": a.file, "line": a.line},
                "second": {"event": b.index, "core": b.core, "queue": b.queue, "file": b.file, "line": b.line},
            },
        )

    def __str__(self) -> str:
        return str(KernelFault(self.record()))


def races(events: Sequence[Event], *, trust: Trust | None = None) -> list[Race]:
    """Every unordered pair of conflicting accesses of a run, one `Race` per pair of source lines."""
    trust = trust or Trust()
    found = list(_between_cores(events)) if any(event.core for event in events) else []
    if trust != Trust():
        found += _within_cores(events, trust)
    merged: dict[tuple[object, ...], Race] = {}
    for race in found:
        key = (race.cause, race.first.file, race.first.line, race.second.file, race.second.line)
        known = merged.get(key)
        merged[key] = (
            race
            if known is None
            else Race(
                known.first,
                known.second,
                known.first_region,
                known.second_region,
                known.cause,
                known.missing,
                known.count + 1,
                known.same and race.same,
            )
        )
    return list(merged.values())


def check_races(events: Sequence[Event], *, trust: Trust | None = None) -> None:
    """Raise the first race of a run as a `KernelFault`."""
    for race in races(events, trust=trust):
        raise KernelFault(race.record())


# ---- two cores --------------------------------------------------------------------------------------------------------


def _between_cores(events: Sequence[Event]) -> Iterator[Race]:
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


# ---- one core -----------------------------------------------------------------------------------------------------------


def _within_cores(events: Sequence[Event], trust: Trust) -> Iterator[Race]:
    graph = dependencies(events, reorder=True)
    doubtful: list[tuple[int, int, str, Region, Region]] = []
    kept: list[list[int]] = [[] for _ in events]
    for edge in graph:
        pair = None if edge.buffer < 0 else _doubt(events[edge.producer], events[edge.consumer], edge.buffer, trust)
        if pair is None:
            kept[edge.consumer].append(edge.producer)
        else:
            doubtful.append((edge.producer, edge.consumer, *pair))
    clocks = _clocks(graph, kept)
    for producer, consumer, cause, ours, theirs in doubtful:
        queue = int(graph.queue_of[producer])
        if clocks[consumer][queue] < producer:
            a, b = events[producer], events[consumer]
            missing = f"an edge from queue {a.queue} to queue {b.queue}, e.g. depends_on, or a dependency through other data"
            yield Race(a, b, ours, theirs, cause, missing)


def _doubt(a: Event, b: Event, buffer: int, trust: Trust) -> tuple[str, Region, Region] | None:
    """The cause for not trusting the edge from `a` to `b`, and the two regions; None if it is trusted."""
    if a.index in b.attrs.get("depends_on", ()) or (a.attrs.get("no_reorder") and b.attrs.get("no_reorder")):
        return None
    first = next(region for region in (*a.writes, *a.reads) if region.buffer.number == buffer)
    same = [region for region in (*b.writes, *b.reads) if region.buffer.number == buffer]
    if not same:
        other = next((r for r in (*b.writes, *b.reads) if r.buffer.space == first.buffer.space and r.buffer.address), None)
        return None if trust.addresses or other is None else ("addresses", first, other)
    if not trust.indices and (first.indirect or any(region.indirect for region in same)):
        return "indices", first, same[0]
    if not trust.hbm and not first.buffer.on_chip and a.engine == b.engine == "dma" and a.queue != b.queue:
        return "hbm", first, same[0]
    return None


def _clocks(graph: Dependencies, producers: Iterable[list[int]]) -> list[list[int]]:
    """For each event, the newest event of every queue that is ordered before it (vector clocks; -1 = none)."""
    previous, queue_of = graph.previous.tolist(), graph.queue_of.tolist()
    clocks: list[list[int]] = []
    for event, waited in enumerate(producers):
        clock = [-1] * len(graph.queues)
        for earlier in (previous[event], *waited):
            if earlier >= 0:
                clock = [max(mine, theirs) for mine, theirs in zip(clock, clocks[earlier], strict=True)]
                clock[queue_of[earlier]] = max(clock[queue_of[earlier]], earlier)
        clocks.append(clock)
    return clocks


def _access(event: Event, region: Region) -> str:
    how = "write" if any(region is item for item in event.writes) else "read"
    return f"the {how} of {region.buffer.name} by {event.opcode} on core {event.core}, queue {event.queue}"


def _tile(region: Region) -> str:
    return f"{region.buffer.name}{list(region.buffer.shape)} {region.buffer.dtype} {region.buffer.space}"
