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
adds the hazards of reusing memory. Overlap is exact but for the cases named in sim/stream/footprint.py.

Queues. Each engine runs its instructions in program order, each DMA queue its transfers. Only the newest producer of an
engine is kept per consumer, because an in-order engine has finished the older ones by then (`latency` names those that it may
not have): one edge that waits for a result
(RAW, ORDER), one WAW edge if its writer is newer, and one WAR edge if its reader is newer than both. (A WAW edge within an
engine waits for no result, so it cannot stand for an older RAW.) Edges within one queue are kept too: the consumer
may start after the producer started, but must still wait for its result (`same_queue` tells them apart). With `reorder`
a queue may run its instructions in another order (a compiler that hoists): then every producer is kept.
A DMA's edge means its completion: the transfer, not the trigger. Transfers of one queue may complete in any order, since
each uses the DMA engines of its partitions: all of them are kept.

Cores. Edges join instructions of one core. Where cores meet (`core_barrier`, `sendrecv`), `meetings` lists the events that
must all have started before any of them completes. A barrier counts as reading and writing its `data`: it waits for this
core's accesses to it, and later accesses wait for the barrier (nki/api/nki/isa/__init__.py, core_barrier). Two cores that
touch the same HBM without a barrier between them are a race, not a dependency.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from nki_hf.sim.stream.access_table import AccessTable, Ints
from nki_hf.sim.stream.conflicts import RAW, WAR, WAW, Conflicts, Placement, conflicts_of
from nki_hf.sim.stream.events import Event

__all__ = ["KINDS", "MEETINGS", "ORDER", "RAW", "WAR", "WAW", "Dependencies", "Edge", "Queue", "dependencies"]

ORDER = 2
KINDS = ("RAW", "WAW", "ORDER", "WAR")
"""Names of the edge kinds, by number; the first three wait for the producer's completion, WAR for its reads."""

MEETINGS = ("core_barrier", "sendrecv")
"""Instructions at which the cores of a launch meet: the n-th of each core, per `pipe_id` if there is one."""

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


def dependencies(
    events: Sequence[Event],
    *,
    placement: Placement | None = None,
    reorder: bool = False,
    table: AccessTable | None = None,
    latency: Ints | None = None,
) -> Dependencies:
    """The dependency edges of an event stream (see the module for the rule).

    Args:
      events: in order of execution, `events[i].index == i`.
      placement: addresses of on-chip buffers without an explicit one, e.g. from sim/stream/memory.py; None compares those
        buffers by identity, as if each had memory of its own.
      reorder: keep every producer, for queues that need not run in program order.
      table: the accesses of `events`, if they are known.
      latency: a number for how late each event's result follows its instruction, int64[events], if that differs: a newer
        instruction then stands for older ones of the same number alone, since the result of another may come later.
    """
    table = AccessTable(events) if table is None else table
    numbers: dict[tuple[int, str, str], int] = {}
    queue_of_head = [numbers.setdefault(head[:3], len(numbers)) for head in table.heads]
    queue_of = np.array(queue_of_head, np.int64)[table.head]
    transfers = np.array([engine == "dma" for _, engine, _ in numbers], np.bool_)
    conflicts = conflicts_of(table, placement or {}, None if reorder else queue_of, transfers)
    lanes = np.arange(len(events)) + len(numbers)  # instructions that no later one stands for have a lane of their own
    if not reorder:
        in_order = queue_of if latency is None else latency * len(numbers) + queue_of
        lanes = np.where(transfers[queue_of], lanes + int(in_order.max(initial=0)), in_order)
    producers, consumers, kinds, buffers = _kept(_with_order(events, table, conflicts), lanes)
    return Dependencies(
        starts=np.searchsorted(consumers, np.arange(len(events) + 1)).astype(np.int32),
        producers=producers.astype(np.int32),
        kinds=kinds.astype(np.int8),
        buffers=buffers.astype(np.int32),
        queues=tuple(Queue(*name) for name in numbers),
        queue_of=queue_of.astype(np.int32),
        previous=_previous(queue_of),
        meetings=_meetings(events, table),
    )


def _with_order(events: Sequence[Event], table: AccessTable, conflicts: Conflicts) -> Conflicts:
    """The conflicts and, behind those of each event, what its `depends_on` names."""
    named = [event.attrs.get("depends_on", ()) for event in events]
    counts = np.array([len(places) for places in named], np.int64)
    if not counts.any():
        return conflicts
    producers = np.array(list(chain.from_iterable(named)), np.int64)
    consumers = np.concatenate([conflicts.consumers, np.repeat(np.arange(len(events)), counts)])
    order = np.argsort(consumers, kind="stable")
    return Conflicts(
        np.concatenate([conflicts.producers, producers])[order],
        consumers[order],
        np.concatenate([conflicts.kinds, np.full(len(producers), ORDER)])[order],
        np.concatenate([conflicts.buffers, np.full(len(producers), -1)])[order],
    )


def _kept(found: Conflicts, lane_of: Ints) -> Conflicts:
    """Of each consumer the newest producer per lane: one whose result it needs, one whose write and one whose read is over by
    the time it starts.
    """
    producers, consumers, kinds, buffers = found
    if not len(producers):
        return found
    count = int(consumers.max()) + 1
    lanes = lane_of[producers]
    step = (kinds == WAW) + 2 * (kinds == WAR)
    slot = 3 * (consumers * (int(lanes.max()) + 1) + lanes) + step
    order = np.argsort((slot * (count + 1) + count - producers) * 4 + kinds, kind="stable")
    slot = slot[order]
    first = np.flatnonzero(np.concatenate([[True], slot[1:] != slot[:-1]]))  # the best of each slot
    noticed = np.minimum.reduceat(order, first)  # when the slot was first found: the order of the edges
    slot, best = slot[first], order[first]
    # A lane that is waited for at a later instruction's result need not be waited for at an earlier write or read.
    covered = np.zeros(len(best), np.bool_)
    for back in (1, 2):
        weaker = (slot[back:] // 3 == slot[:-back] // 3) & (producers[best[:-back]] >= producers[best[back:]])
        covered[back:] |= weaker
    best = best[~covered][np.argsort(noticed[~covered], kind="stable")]
    return Conflicts(producers[best], consumers[best], kinds[best], buffers[best])


def _previous(queue_of: Ints) -> _Ints:
    """The event before each one in its queue, -1 for the first."""
    previous = np.full(len(queue_of), -1, np.int32)
    order = np.argsort(queue_of, kind="stable")
    same = queue_of[order[1:]] == queue_of[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _meetings(events: Sequence[Event], table: AccessTable) -> tuple[tuple[int, ...], ...]:
    meets = [opcode in MEETINGS for _, _, _, opcode in table.heads]
    if not any(meets):
        return ()
    met: dict[tuple[int, object], int] = {}
    groups: dict[tuple[object, int], list[int]] = {}
    for index, head in enumerate(table.head.tolist()):
        if meets[head]:
            event = events[index]
            kind = (event.opcode, event.attrs.get("pipe_id"))
            position = met[event.core, kind] = met.get((event.core, kind), -1) + 1
            groups.setdefault((kind, position), []).append(index)
    return tuple(tuple(group) for group in groups.values())
