"""Dependencies: which earlier instructions each instruction must wait for, derived from the event stream alone.

Rule. NKI is sequential: the compiler keeps the order of any two instructions of a core that touch the same bytes, at
least one of them writing, and may reorder the rest (nki/get-started/nki-language-guide.rst, "sequential programming
model"). So each instruction depends, per byte that it touches, on

    RAW    the last instruction that wrote what it reads,
    WAW    the last instruction that wrote what it writes,
    WAR    the instructions that read, since that write, what it writes,
    ORDER  what `depends_on` names.

Bytes are those of a buffer; buffers with an explicit `address=` are compared by their bytes in SBUF or PSUM, so that
tiles placed on top of each other depend on each other. With `placement` every on-chip buffer is compared that way, which
adds the hazards of reusing memory. Overlap is exact but for the cases named in sim/footprint.py.

Queues. Each engine runs its instructions in program order, each DMA queue its transfers. Only the newest producer of a
queue is kept per consumer, because an in-order queue has finished the older ones by then: one edge that waits for
completion (RAW, WAW, ORDER), and one WAR edge if its reader is newer. Edges within one queue are kept too: the consumer
may start after the producer started, but must still wait for its result (`same_queue` tells them apart). With `reorder`
a queue may run its instructions in another order (a compiler that hoists): then every producer is kept.
A DMA's edge means its completion: the transfer, not the trigger.

Cores. Edges join instructions of one core. Where cores meet (`core_barrier`, `sendrecv`), `meetings` lists the events that
must all have started before any of them completes. A barrier counts as reading and writing its `data`: it waits for this
core's accesses to it, and later accesses wait for the barrier (nki/api/nki/isa/__init__.py, core_barrier). Two cores that
touch the same HBM without a barrier between them are a race, not a dependency.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nki_hf.sim.access_history import Access, Memory
from nki_hf.sim.events import Buffer, Event, Region
from nki_hf.sim.footprint import Footprint, footprint_of

__all__ = ["KINDS", "MEETINGS", "ORDER", "RAW", "WAR", "WAW", "Dependencies", "Edge", "Queue", "dependencies"]

RAW, WAW, ORDER, WAR = 0, 1, 2, 3
KINDS = ("RAW", "WAW", "ORDER", "WAR")
"""Names of the edge kinds, by number; the first three wait for the producer's completion, WAR for its reads."""

MEETINGS = ("core_barrier", "sendrecv")
"""Instructions at which the cores of a launch meet: the n-th of each core, per `pipe_id` if there is one."""

Placement = Mapping[int, tuple[int, int]]
"""`(partition, byte)` of on-chip buffers, by `Buffer.number`."""

_Ints = np.ndarray[tuple[int], np.dtype[np.int32]]


class Queue(NamedTuple):
    """One in-order stream of instructions: an engine's, or that of the DMAs which one engine triggers."""

    core: int
    engine: str
    name: str


class Edge(NamedTuple):
    """`consumer` must wait for `producer` (indices of events) because of `buffer` (its number; -1 for ORDER)."""

    producer: int
    consumer: int
    kind: int
    buffer: int


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The edges of one event stream, grouped by consumer.

    The producers of event `i` are `producers[starts[i]:starts[i + 1]]`; `kinds` and `buffers` run in parallel.

    Attributes:
      starts: int32[events + 1].
      producers: event index of each edge's producer, int32[edges].
      kinds: `RAW`, `WAW`, `ORDER` or `WAR`, int8[edges].
      buffers: number of the buffer that the two share, -1 for ORDER, int32[edges].
      queues: the queues, in order of first use.
      queue_of: number of each event's queue, int32[events].
      previous: the event before it in its queue, -1 for the first, int32[events].
      meetings: groups of events, one per core, at which the cores wait for each other.
    """

    starts: _Ints
    producers: _Ints
    kinds: np.ndarray[tuple[int], np.dtype[np.int8]]
    buffers: _Ints
    queues: tuple[Queue, ...]
    queue_of: _Ints
    previous: _Ints
    meetings: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.producers)

    def same_queue(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """True for each edge whose two ends are in one queue, bool[edges]."""
        consumers = np.repeat(np.arange(len(self.queue_of)), np.diff(self.starts))
        return np.asarray(self.queue_of[self.producers] == self.queue_of[consumers])

    def of(self, consumer: int) -> Iterator[Edge]:
        """The edges of one event."""
        for i in range(int(self.starts[consumer]), int(self.starts[consumer + 1])):
            yield Edge(int(self.producers[i]), consumer, int(self.kinds[i]), int(self.buffers[i]))

    def __iter__(self) -> Iterator[Edge]:
        for consumer in range(len(self.queue_of)):
            yield from self.of(consumer)


def dependencies(events: Sequence[Event], *, placement: Placement | None = None, reorder: bool = False) -> Dependencies:
    """The dependency edges of an event stream (see the module for the rule).

    Args:
      events: in order of execution, `events[i].index == i`.
      placement: addresses of on-chip buffers without an explicit one, e.g. from sim/memory.py; None compares those
        buffers by identity, as if each had memory of its own.
      reorder: keep every producer, for queues that need not run in program order.
    """
    return _Builder(events, placement or {}, reorder).build()


class _Place:
    """Where a buffer's bytes are: the memories it is compared in (per core), its start there, its known patterns."""

    __slots__ = ("buffer", "key", "memories", "patterns", "start", "written")

    def __init__(self, buffer: Buffer, key: object, start: tuple[int, int] | None) -> None:
        self.buffer, self.key, self.start = buffer, key, start
        self.memories: dict[int, Memory] = {}
        self.patterns: dict[tuple[object, ...], Footprint] = {}
        self.written = False


class _Builder:
    def __init__(self, events: Sequence[Event], placement: Placement, reorder: bool) -> None:
        self.events = events
        self.placement = placement
        self.reorder = reorder
        self.places: dict[int, _Place] = {}  # by buffer number
        self.patterns: dict[tuple[object, ...], dict[tuple[object, ...], Footprint]] = {}  # shared by buffers of one shape
        self.memories: dict[object, dict[int, Memory]] = {}
        self.queues: dict[tuple[int, str, str], int] = {}
        self.met: dict[tuple[int, object], int] = {}
        self.meetings: dict[tuple[object, int], list[int]] = {}

    def build(self) -> Dependencies:
        self._find_written()
        starts, producers, kinds, buffers = [0], [], [], []
        queue_of: list[int] = []
        previous: list[int] = []
        newest: list[int] = []
        for index, event in enumerate(self.events):
            name = (event.core, event.engine, event.queue)
            queue = self.queues.get(name)
            if queue is None:
                queue = self.queues[name] = len(newest)
                newest.append(-1)
            queue_of.append(queue)
            previous.append(newest[queue])
            newest[queue] = index
            found: dict[int, tuple[int, int, int]] = {}  # by 2 * lane (+ 1 for WAR): producer, kind, buffer
            # Producers are kept one per lane: the queue if it runs in program order, else the instruction itself.
            self._conflicts(event, index, index if self.reorder else queue, found)
            if event.attrs:
                for producer in event.attrs.get("depends_on", ()):
                    _keep(found, 2 * (producer if self.reorder else queue_of[producer]), producer, ORDER, -1)
            if event.opcode in MEETINGS:
                self._meet(event, index)
            for slot, (producer, kind, buffer) in found.items():
                if slot & 1 and slot - 1 in found and found[slot - 1][0] >= producer:
                    continue  # that queue is waited for at a later instruction anyway
                producers.append(producer)
                kinds.append(kind)
                buffers.append(buffer)
            starts.append(len(producers))
        return Dependencies(
            starts=np.array(starts, np.int32), producers=np.array(producers, np.int32), kinds=np.array(kinds, np.int8),
            buffers=np.array(buffers, np.int32), queues=tuple(Queue(*name) for name in self.queues),
            queue_of=np.array(queue_of, np.int32), previous=np.array(previous, np.int32),
            meetings=tuple(tuple(group) for group in self.meetings.values()),
        )  # fmt: skip

    def _find_written(self) -> None:
        """Mark the memories that anything writes: nothing ever waits for a read of the others."""
        keys = set()
        for event in self.events:
            for region in _writes(event):
                place = self.places.get(region.buffer.number) or self._place(region.buffer)
                keys.add(place.key)
            for region in event.reads:
                if region.buffer.number not in self.places:
                    self._place(region.buffer)
        for place in self.places.values():
            place.written = place.key in keys

    def _conflicts(self, event: Event, index: int, lane: int, found: dict[int, tuple[int, int, int]]) -> None:
        core = event.core
        reads = []
        for region in event.reads:
            place = self.places[region.buffer.number]
            if place.written:
                memory, footprint = self._locate(place, core, region)
                if memory.writes is not None:
                    for _, other, producer, buffer in memory.writes.meeting(footprint):
                        _keep(found, 2 * other, producer, RAW, buffer)
                reads.append((memory, footprint, region.buffer.number))
        writes = []
        for region in _writes(event):
            memory, footprint = self._locate(self.places[region.buffer.number], core, region)
            if memory.writes is not None:
                for _, other, producer, buffer in memory.writes.meeting(footprint):
                    _keep(found, 2 * other, producer, WAW, buffer)
            if memory.reads is not None:
                for _, other, producer, buffer in memory.reads.meeting(footprint):
                    _keep(found, 2 * other + 1, producer, WAR, buffer)
            writes.append((memory, footprint, region.buffer.number))
        for memory, footprint, number in reads:
            memory.note_read(Access(footprint, lane, index, number), not self.reorder)
        for memory, footprint, number in writes:
            memory.note_write(Access(footprint, lane, index, number))

    def _locate(self, place: _Place, core: int, region: Region) -> tuple[Memory, Footprint]:
        memory = place.memories.get(core)
        if memory is None:
            memory = place.memories[core] = Memory()
        key = (region.offset, region.shape, region.strides, region.dtype.itemsize, region.indirect)
        footprint = place.patterns.get(key)
        if footprint is None:
            footprint = footprint_of(region)
            if place.start is not None:
                footprint = footprint.moved(*place.start)
            place.patterns[key] = footprint
        return memory, footprint

    def _meet(self, event: Event, index: int) -> None:
        kind = (event.opcode, event.attrs.get("pipe_id"))
        position = self.met[event.core, kind] = self.met.get((event.core, kind), -1) + 1
        self.meetings.setdefault((kind, position), []).append(index)

    def _place(self, buffer: Buffer) -> _Place:
        address = buffer.address if buffer.address is not None else self.placement.get(buffer.number)
        start = address if buffer.on_chip else None
        key: object = buffer.number if start is None else (buffer.core, buffer.space)
        place = self.places[buffer.number] = _Place(buffer, key, start)
        place.memories = self.memories.setdefault(key, {})
        place.patterns = self.patterns.setdefault((buffer.shape, buffer.dtype.itemsize, buffer.on_chip, start), {})
        return place


def _writes(event: Event) -> tuple[Region, ...]:
    """What an instruction writes; a barrier counts as writing its data."""
    return event.reads if event.opcode == "core_barrier" else event.writes


def _keep(found: dict[int, tuple[int, int, int]], slot: int, producer: int, kind: int, buffer: int) -> None:
    known = found.get(slot)
    if known is None or producer > known[0] or (producer == known[0] and kind < known[1]):
        found[slot] = (producer, kind, buffer)
