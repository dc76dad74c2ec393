"""Workload: an event stream as plain lists of numbers, which is what the two schedulers loop over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from nki_hf.chips import Chip
from nki_hf.observers.costs import Cost, cost_of
from nki_hf.sim.dependencies import RAW, WAR, Dependencies, Queue, dependencies
from nki_hf.sim.events import Buffer, Event, Region
from nki_hf.sim.footprint import footprint_of, overlap
from nki_hf.sim.memory import taken_bytes

__all__ = ["OUTPUT", "SPACES", "Allocation", "Workload", "prepare"]

SPACES = ("sbuf", "psum")

OUTPUT = -1
"""An edge kind beside those of sim/dependencies.py: RAW on the first destination of an instruction whose accumulator is
usable later (`Cost.output_ns`)."""

_Form = tuple[object, ...]
_COSTS: dict[int, tuple[object, dict[_Form, Cost]]] = {}
"""Costs by the id of a chip's numbers (held here, so that the id stays theirs) and the form of an instruction."""
_ATTRS = ("op", "perf_mode", "is_transpose", "onezero", "zero")


@dataclass(slots=True)
class Allocation:
    """One on-chip buffer, from its first to its last instruction in program order.

    Attributes:
      number: `Buffer.number`.
      pool: index of the (core, space) whose capacity it takes.
      nbytes: bytes per partition.
      first, last: event indices.
      uses: how many events touch it.
    """

    number: int
    pool: int
    nbytes: int
    first: int
    last: int
    uses: int


@dataclass(slots=True)
class Workload:
    """Everything a scheduler needs, one entry per event unless said otherwise.

    Attributes:
      events: the stream.
      chip: the chip whose costs these are.
      costs: cost records, shared between events of the same form.
      engine: index of the in-order resource: a core's engine, or a DMA queue (see `queues`).
      queues: the resources by index.
      starts, producers, kinds: edges grouped by consumer, as in `Dependencies`; a kind may also be `OUTPUT`.
      allocations: every pooled on-chip buffer, in order of its first instruction.
      touches: events -> positions in `allocations` that this instruction uses.
      pools: `(core, space, capacity in bytes per partition)`.
      no_reorder: True where the kernel pinned the order.
      banks: a number for the PSUM bank that a Vector or Scalar instruction uses, -1 if none. Buffers are taken to lie in
        banks of their own, because addresses are the compiler's choice.
    """

    events: Sequence[Event]
    chip: Chip
    costs: list[Cost]
    engine: list[int]
    queues: tuple[Queue, ...]
    starts: list[int]
    producers: list[int]
    kinds: list[int]
    allocations: list[Allocation] = field(default_factory=list)
    touches: list[tuple[int, ...]] = field(default_factory=list)
    pools: list[tuple[int, str, int]] = field(default_factory=list)
    no_reorder: list[bool] = field(default_factory=list)
    banks: list[int] = field(default_factory=list)

    def overflows(self) -> bool:
        """True if, in program order, the tiles between their first and last use exceed a pool somewhere."""
        used = [0] * len(self.pools)
        ends: list[list[tuple[int, int]]] = [[] for _ in self.pools]
        for item in self.allocations:
            open_ends = ends[item.pool]
            while open_ends and open_ends[0][0] < item.first:
                used[item.pool] -= heappop(open_ends)[1]
            used[item.pool] += item.nbytes
            heappush(open_ends, (item.last, item.nbytes))
            if used[item.pool] > self.pools[item.pool][2]:
                return True
        return False


def prepare(events: Sequence[Event], chip: Chip, *, reorder: bool = False) -> Workload:
    """The workload of an event stream on `chip`; `reorder` keeps the edges that a reordering scheduler needs."""
    edges = dependencies(events, reorder=reorder)
    starts, producers, kinds = edges.starts.tolist(), edges.producers.tolist(), edges.kinds.tolist()
    costs = _costs(events, chip)
    _mark_outputs(edges, events, costs, kinds)
    if edges.meetings:
        starts, producers, kinds = _meet(edges, starts, producers, kinds)
    work = Workload(
        events=events, chip=chip, costs=costs, engine=edges.queue_of.tolist(),
        queues=edges.queues, starts=starts, producers=producers, kinds=kinds,
        no_reorder=[bool(event.attrs) and bool(event.attrs.get("no_reorder")) for event in events],
    )  # fmt: skip
    bank_bytes = int(chip.psum_bank_bytes)
    work.banks = [_bank(event, bank_bytes) if cost.psum_ns else -1 for event, cost in zip(events, work.costs, strict=True)]
    _find_allocations(work)
    return work


def _mark_outputs(edges: Dependencies, events: Sequence[Event], costs: Sequence[Cost], kinds: list[int]) -> None:
    """Turn RAW into `OUTPUT` where the consumer needs the producer's first destination and not its accumulator.

    One edge stands for everything that two instructions share, so the consumer's operands are compared with the accumulator;
    an edge through another buffer's bytes (explicit addresses) waits for everything.
    """
    late = np.array([cost.output_ns > 0 for cost in costs], bool)
    if not late.any():
        return
    consumers = np.repeat(np.arange(len(events)), np.diff(edges.starts))
    for e in np.flatnonzero(late[edges.producers] & (edges.kinds == RAW)).tolist():
        producer, consumer = events[int(edges.producers[e])], events[int(consumers[e])]
        output, *others = producer.writes
        operands = (*consumer.reads, *consumer.writes)
        if edges.buffers[e] == output.buffer.number and not any(_may_meet(a, b) for a in operands for b in others):
            kinds[e] = OUTPUT


def _may_meet(a: Region, b: Region) -> bool:
    """True if they share bytes, or lie in two buffers with explicit addresses, which are not compared here."""
    if a.buffer.number != b.buffer.number:
        return a.buffer.address is not None and b.buffer.address is not None
    return overlap(footprint_of(a), footprint_of(b))


def _bank(event: Event, bank_bytes: int) -> int:
    for region in (*event.writes, *event.reads):
        if region.buffer.space == "psum":
            row = max(region.buffer.bytes_per_partition, 1)
            return region.buffer.number * 8 + region.offset * region.dtype.itemsize % row // bank_bytes
    return -1


def _costs(events: Sequence[Event], chip: Chip) -> list[Cost]:
    """The cost of every event; events of one form share one record."""
    if id(chip.params) not in _COSTS and len(_COSTS) > 64:
        _COSTS.clear()
    known = _COSTS.setdefault(id(chip.params), (chip.params, {}))[1]
    if len(known) > 100_000:
        known.clear()
    costs = []
    for event in events:
        form = _form(event)
        found = known.get(form)
        if found is None:
            found = known[form] = cost_of(event, chip)
        costs.append(found)
    return costs


def _form(event: Event) -> _Form:
    attrs = event.attrs
    dma = event.engine == "dma"
    return (
        event.opcode, event.engine, len(event.reads), *[attrs.get(name) for name in _ATTRS],
        *[
            (r.shape, r.strides, r.dtype.name, r.buffer.space, r.indirect, r.partition_start if dma else 0)
            for regions in (event.reads, event.writes)
            for r in regions
        ],
    )  # fmt: skip


def _find_allocations(work: Workload) -> None:
    pool_of: dict[tuple[int, str], int] = {}
    position: dict[int, int] = {}  # by buffer number; -1 for buffers that take no room in a pool
    chip = work.chip
    capacity = {"sbuf": int(chip.sbuf_partition_bytes), "psum": int(chip.psum_partition_bytes)}
    for index, event in enumerate(work.events):
        touched: list[int] = []
        for region in (*event.writes, *event.reads):
            number = region.buffer.number
            place = position.get(number)
            if place is None:
                place = position[number] = _open(work, pool_of, capacity, region.buffer, event.core, index)
            if place >= 0 and place not in touched:
                touched.append(place)
        for place in touched:
            work.allocations[place].last = index
            work.allocations[place].uses += 1
        work.touches.append(tuple(touched))


def _open(
    work: Workload, pool_of: dict[tuple[int, str], int], capacity: dict[str, int], buffer: Buffer, core: int, index: int
) -> int:
    if not buffer.on_chip or buffer.address is not None:
        return -1
    key = (core, buffer.space)
    if key not in pool_of:
        pool_of[key] = len(work.pools)
        work.pools.append((core, buffer.space, capacity[buffer.space]))
    place = len(work.allocations)
    work.allocations.append(Allocation(buffer.number, pool_of[key], taken_bytes(buffer, work.chip), index, index, 0))
    return place


def _meet(
    edges: Dependencies, starts: list[int], producers: list[int], kinds: list[int]
) -> tuple[list[int], list[int], list[int]]:
    """Edges in which every event of a meeting also waits for what the others of the meeting wait for."""
    extra: dict[int, list[tuple[int, int]]] = {}
    for group in edges.meetings:
        for event in group:
            for other in group:
                if other != event:
                    begin, end = starts[other], starts[other + 1]
                    pairs = [(p, k if k == WAR else RAW) for p, k in zip(producers[begin:end], kinds[begin:end], strict=True)]
                    previous = int(edges.previous[other])
                    extra.setdefault(event, []).extend(pairs + ([(previous, RAW)] if previous >= 0 else []))
    new_starts, new_producers, new_kinds = [0], [], []
    for event in range(len(starts) - 1):
        begin, end = starts[event], starts[event + 1]
        new_producers += producers[begin:end] + [p for p, _ in extra.get(event, ())]
        new_kinds += kinds[begin:end] + [k for _, k in extra.get(event, ())]
        new_starts.append(len(new_producers))
    return new_starts, new_producers, new_kinds
