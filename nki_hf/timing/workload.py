"""Workload: an event stream as plain lists of numbers, which is what the two schedulers loop over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nki_hf.chips import Chip
from nki_hf.sim.stream.access_table import AccessTable, Ints
from nki_hf.sim.stream.dependencies import RAW, WAR, Dependencies, Queue, dependencies
from nki_hf.sim.stream.events import Event, Region
from nki_hf.sim.stream.footprint import footprint_of, overlap
from nki_hf.sim.stream.memory import placement
from nki_hf.timing.costs import Cost
from nki_hf.timing.instruction_kinds import costs_of, kinds_of
from nki_hf.timing.tiles import Tiles

__all__ = ["OUTPUT", "Workload", "prepare"]

OUTPUT = -1
"""An edge kind beside those of sim/stream/dependencies.py: RAW on the first destination of an instruction whose accumulator is
usable later (`Cost.output_ns`)."""


@dataclass(frozen=True)
class Workload:
    """Everything a scheduler needs, one entry per event unless said otherwise.

    Attributes:
      events: the stream.
      chip: the chip whose costs these are.
      cores: how many cores share HBM.
      kind: a number for the form of each event, int64[events].
      cost_of_kind: the cost of each form.
      queue_of: index of the in-order resource: a core's engine, or a DMA queue (see `queues`), int64[events].
      queues: the resources by index.
      starts, producers, kinds: edges grouped by consumer, as in `Dependencies`, int64; a kind may also be `OUTPUT`.
      tiles: the on-chip buffers that share a memory.
      no_reorder: True where the kernel pinned the order.
      banks: a number for the first PSUM bank that a Vector or Scalar instruction uses, -1 if none. Buffers are taken to lie
        in banks of their own, because addresses are the compiler's choice.
      spans: how many banks it uses, from that one on.
    """

    events: Sequence[Event]
    chip: Chip
    cores: int
    kind: Ints
    cost_of_kind: list[Cost]
    queue_of: Ints
    queues: tuple[Queue, ...]
    starts: Ints
    producers: Ints
    kinds: Ints
    tiles: Tiles
    no_reorder: list[bool]
    banks: list[int]
    spans: list[int]

    @cached_property
    def engine(self) -> list[int]:
        """`queue_of` as a list."""
        return self.queue_of.tolist()

    @cached_property
    def costs(self) -> list[Cost]:
        """The cost of each event."""
        return [self.cost_of_kind[k] for k in self.kind.tolist()]

    def costs_on(self, chip: Chip) -> list[Cost]:
        """The cost of each form on another chip."""
        examples = [self.events[i] for i in np.unique(self.kind, return_index=True)[1].tolist()]
        return costs_of(examples, chip, self.cores)

    def cost(self, name: str) -> np.ndarray[tuple[int], np.dtype[Any]]:
        """One attribute of `Cost`, per event."""
        return np.array([getattr(cost, name) for cost in self.cost_of_kind])[self.kind]

    def cost_list(self, name: str) -> list[Any]:
        """The same as a list in which events of one form share an object: several of these stay in the processor's cache."""
        found = self._cost_lists.get(name)
        if found is None:
            values = [getattr(cost, name) for cost in self.cost_of_kind]
            found = self._cost_lists[name] = [values[k] for k in self.kind.tolist()]
        return found

    @cached_property
    def _cost_lists(self) -> dict[str, list[Any]]:
        return {}


def prepare(
    events: Sequence[Event],
    chip: Chip,
    *,
    reorder: bool = False,
    cores: int | None = None,
    table: AccessTable | None = None,
    tiles: Tiles | None = None,
    stack: bool = False,
) -> Workload:
    """The workload of an event stream on `chip`.

    Args:
      events: the stream.
      chip: whose costs are taken.
      reorder: keep the edges that a reordering scheduler needs.
      cores: how many share HBM; default: those that have events.
      table, tiles: the events' accesses and tiles, if they are known already.
      stack: SBUF tiles have the bytes that a stack allocator gives them, see `_stacked`.
    """
    table = AccessTable(events) if table is None else table
    kind, examples = kinds_of(events, table)
    cores = len({core for core, _, _, _ in table.heads}) if cores is None else cores
    cost_of_kind = costs_of(examples, chip, cores)
    latency, addresses = _latency(kind, examples, cost_of_kind), _stacked(events, table, chip) if stack else None
    edges = dependencies(events, placement=addresses, reorder=reorder, table=table, latency=latency)
    pinned = [bool(event.attrs) and bool(event.attrs.get("no_reorder")) for event in examples]
    columns = (edges.starts, edges.producers, edges.kinds, edges.queue_of)
    starts, producers, kinds, queue_of = (np.array(column, np.int64) for column in columns)
    _mark_outputs(edges, events, np.array([cost.output_ns > 0 for cost in cost_of_kind], bool)[kind], kinds)
    if edges.meetings:
        starts, producers, kinds = _meet(edges, starts, producers, kinds)
    banks, spans = _banks(table, kind, examples, cost_of_kind, chip)
    return Workload(
        events=events,
        chip=chip,
        cores=cores,
        kind=kind,
        cost_of_kind=cost_of_kind,
        queue_of=queue_of,
        queues=edges.queues,
        starts=starts,
        producers=producers,
        kinds=kinds,
        tiles=Tiles.of(table, chip) if tiles is None else tiles,
        no_reorder=np.array(pinned, bool)[kind].tolist(),
        banks=banks,
        spans=spans,
    )


def _stacked(events: Sequence[Event], table: AccessTable, chip: Chip) -> dict[int, tuple[int, int]]:
    """Addresses of SBUF tiles in the order of the source, each in the first bytes that are free there.

    So the tiles of each turn of an unrolled loop lie where those of the turn before did, and what writes them waits for what
    still reads those.
    """
    inside = {buffer.number for buffer in table.buffers if buffer.space == "sbuf"}
    return {number: place for number, place in placement(events, chip).items() if number in inside}


def _latency(kind: Ints, examples: Sequence[Event], costs: Sequence[Cost]) -> Ints:
    """The `latency` of `dependencies`: 0 where the result is there before that of any later instruction of the engine.

    A later instruction starts after `busy_ns` of this one, so its result comes later if it takes at least this one's
    `done_ns - busy_ns` from its start, or if it follows its own instruction by as much.
    """
    soonest: dict[str, float] = {}  # from an instruction's start to what is usable first, of each engine
    for event, cost in zip(examples, costs, strict=True):
        soonest[event.engine] = min(soonest.get(event.engine, np.inf), cost.output_ns or cost.done_ns)
    numbers: dict[object, int] = {}
    found = []
    for place, (event, cost) in enumerate(zip(examples, costs, strict=True)):
        behind = round(cost.done_ns - cost.busy_ns, 6)
        if behind <= soonest[event.engine]:
            found.append(0)
        else:
            found.append(numbers.setdefault((behind, place if cost.output_ns else -1), len(numbers) + 1))
    return np.array(found, np.int64)[kind]


def _mark_outputs(edges: Dependencies, events: Sequence[Event], late: np.ndarray[Any, np.dtype[np.bool_]], kinds: Ints) -> None:
    """Turn RAW into `OUTPUT` where the consumer needs the producer's first destination and not its accumulator.

    One edge stands for everything that two instructions share, so the consumer's operands are compared with the accumulator;
    an edge through another buffer's bytes (explicit addresses) waits for everything.

    Args:
      edges: the edges.
      events: the stream.
      late: True for each event whose accumulator is usable later than its first destination.
      kinds: of each edge, changed in place.
    """
    asked = np.flatnonzero(late[edges.producers] & (edges.kinds == RAW))
    consumers = np.searchsorted(edges.starts, asked, side="right") - 1
    columns = (asked, edges.producers[asked], consumers, edges.buffers[asked])
    for e, p, c, number in zip(*(column.tolist() for column in columns), strict=True):
        output, *others = events[p].writes
        if number == output.buffer.number:
            operands = (*events[c].reads, *events[c].writes)
            if not any(_may_overlap(a, b) for b in others for a in operands):
                kinds[e] = OUTPUT


def _may_overlap(a: Region, b: Region) -> bool:
    """True if they share bytes, or lie in two buffers with explicit addresses, which are not compared here."""
    if a.buffer.number != b.buffer.number:
        return a.buffer.address is not None and b.buffer.address is not None
    return overlap(footprint_of(a), footprint_of(b))


def _banks(
    table: AccessTable, kind: Ints, examples: Sequence[Event], costs: Sequence[Cost], chip: Chip
) -> tuple[list[int], list[int]]:
    """A number for the first PSUM bank of each event that holds a PSUM port, else -1, and how many it uses."""
    access, bank, span = [], [], []  # of each kind: which of its accesses is in PSUM, in which banks of that tile
    size = int(chip.psum_bank_bytes)
    for event, cost in zip(examples, costs, strict=True):
        reads = len(event.reads)
        operands = [*enumerate(event.writes, reads), *enumerate(event.reads)]
        psum = next(((k, region) for k, region in operands if cost.psum_ns and region.buffer.space == "psum"), None)
        if psum is None:
            access.append(0)
            bank.append(-1)
            span.append(0)
        else:
            region = psum[1]
            row = max(region.buffer.bytes_per_partition, 1)
            access.append(psum[0])
            begin = region.offset * region.dtype.itemsize % row
            steps = zip(region.shape[1:], region.strides[1:], strict=True)
            last = begin + sum((count - 1) * abs(stride) for count, stride in steps) * region.dtype.itemsize
            bank.append(begin // size)
            span.append(min(last, row - 1) // size - begin // size + 1)
    of_kind = np.array(bank, np.int64)[kind]
    found = np.full(len(kind), -1, np.int64)
    mine = np.flatnonzero(of_kind >= 0)
    tile = table.buffer[table.starts[mine] + np.array(access, np.int64)[kind[mine]]]
    found[mine] = tile * int(chip.psum_banks) + of_kind[mine]
    return found.tolist(), np.array(span, np.int64)[kind].tolist()


def _meet(edges: Dependencies, starts: Ints, producers: Ints, kinds: Ints) -> tuple[Ints, Ints, Ints]:
    """Edges in which every event of a meeting also waits for what the others of the meeting wait for."""
    extra: list[tuple[int, int, int]] = []  # consumer, producer, kind
    for group in edges.meetings:
        for event in group:
            for other in group:
                if other != event:
                    theirs = slice(starts[other], starts[other + 1])
                    pairs = zip(producers[theirs].tolist(), kinds[theirs].tolist(), strict=True)
                    extra += [(event, p, k if k == WAR else RAW) for p, k in pairs]
                    previous = int(edges.previous[other])
                    extra += [(event, previous, RAW)] if previous >= 0 else []
    more = np.array(extra, np.int64).reshape(-1, 3).T
    consumers = np.concatenate([np.repeat(np.arange(len(starts) - 1), starts[1:] - starts[:-1]), more[0]])
    order = np.argsort(consumers, kind="stable")
    producers, kinds = np.concatenate([producers, more[1]])[order], np.concatenate([kinds, more[2]])[order]
    return np.searchsorted(consumers[order], np.arange(len(starts))), producers, kinds
