"""The schedule of a kernel whose compiler hoists: each queue may run any of its next `window` instructions.

An event-driven list scheduler. Whenever a queue is free it takes, among its next `window` instructions in program order,
the most urgent whose operands are ready (the first to become ready if none is). Where Scalar needs several activation tables,
each is an operand: what needs another one is ready when that could be loaded, so that functions of one table run together.
Ports and DMA engines are served by arrival. On-chip memory is granted to whichever instruction touches a tile first in
time, see timing/grants.py.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np

from nki_hf.sim.stream.dependencies import WAR
from nki_hf.timing.grants import UNTAKEN, Grants
from nki_hf.timing.resources import LANDED, Resources, moments
from nki_hf.timing.times import MEMORY, Times
from nki_hf.timing.workload import OUTPUT, Workload

__all__ = ["run_in_window", "run_in_window_below"]

_NEVER = float("inf")


def run_in_window(work: Workload, window: int) -> Times:
    """Times of every event.

    Args:
      work: see `prepare`, with `reorder=True`.
      window: how many of a queue's next instructions the compiler may choose from.

    Raises:
      ValueError: window is not positive.
      MemoryError: a pool overflows even in program order; the message names it.
    """
    if window < 1:
        raise ValueError(f"window={window} is not a window: it must be 1 or more.")
    window_order = _Window(work, window)
    window_order.run()
    return window_order.resources.times()


def run_in_window_below(work: Workload, window: int, limit_ns: float) -> Times | None:
    """The same, or None as soon as no rest of the schedule can end before `limit_ns`.

    From an instruction's start on, an engine executes all that it has not started; only the last of these may be free later
    than its result is there.
    """
    window_order = _Window(work, window)
    return window_order.resources.times() if window_order.run(limit_ns * (1 + 1e-9)) else None


def _urgency(work: Workload) -> list[float]:
    """The longest path from each event's start to the end of the kernel, in ns, transfers included."""
    starts, producers = work.starts.tolist(), work.producers.tolist()
    busy, kinds, of = work.cost("busy_ns"), work.kinds, work.producers
    arrives = work.cost("done_ns") + work.cost("lead_ns") + np.maximum(work.cost("payload_ns"), work.cost("software_ns"))
    arrives += work.cost("tail_ns")
    done = np.where(kinds == OUTPUT, work.cost("output_ns")[of], arrives[of])
    lasts = np.where((kinds < WAR) & (done != 0), done - busy[of], 0.0).tolist()  # from the producer's end on
    below = [0.0] * len(work.kind)  # from the event's end
    ends, urgency = arrives.tolist(), busy.tolist()
    end = len(producers)
    for i in range(len(below) - 1, -1, -1):
        urgency[i] = path = max(below[i] + urgency[i], ends[i])
        begin = starts[i]
        for e in range(begin, end):
            through, producer = path + lasts[e], producers[e]
            if through > below[producer]:
                below[producer] = through
        end = begin
    return urgency


class _Window:
    def __init__(self, work: Workload, window: int) -> None:
        self.work, self.window = work, window
        self.resources, self.memory = Resources(work), Grants(work)
        queues, count = len(work.queues), len(work.kind)
        engine = work.queue_of
        lines = [np.flatnonzero(engine == queue) for queue in range(queues)]
        place = np.zeros(count, np.int64)
        for line in lines:
            place[line] = np.arange(len(line))
        self.lines = [line.tolist() for line in lines]  # each queue's events in program order
        self.place = place.tolist()  # position in its line
        self.head = [0] * queues  # position of each queue's first event that has not started
        self.ready = [0.0] * count
        self.missing = np.diff(work.starts).tolist()  # producers that have not started
        self.most_urgent = np.argsort(-np.array(_urgency(work)), kind="stable").tolist()
        self.rank = np.argsort(self.most_urgent).tolist()  # each event's position there
        self.now: list[list[int]] = [[] for _ in range(queues)]  # heaps of ranks: ready when the queue is free
        self.pending: list[list[tuple[float, int]]] = [[] for _ in range(queues)]  # heaps by time of readiness
        self.offer = [_NEVER] * queues  # when the next event of each queue could start
        tables = np.array(self.resources.tables, object)
        # Queues whose events need several activation tables: those that entered, and the one to start next.
        self.entered: list[set[int] | None] = [set() if len({*tables[line], ""}) > 2 else None for line in lines]
        self.chosen = [-1] * queues

    def run(self, limit_ns: float = _NEVER) -> bool:
        """Start one instruction after the other, always the one that can start first; False if `limit_ns` cannot be kept."""
        work, window, resources, memory = self.work, self.window, self.resources, self.memory
        engine, touches, place, lines, head = work.engine, work.tiles.touches, self.place, self.lines, self.head
        ready, missing, cause = self.ready, self.missing, resources.cause
        now, pending, offer, most_urgent = self.now, self.pending, self.offer, self.most_urgent
        left, until, gone = memory.left, memory.until, [False] * len(ready)
        start, free, ends, hop_ns = resources.start, resources.free, resources.done, resources.hop_ns
        output_ns, lands_ns = resources.output_ns, resources.lands_ns
        places, free_at, rank, entered, chosen = resources.place, resources.free_at, self.rank, self.entered, self.chosen
        consumers, moment, first_edge = self._consumers()
        enter, renew = self._entrance(), self._renew
        alone, ported = ([self._together(queue, port) for queue in range(len(lines))] for port in (False, True))
        psum_ns, busy_ns, rest_ns = resources.psum_ns, resources.busy_ns, self._rest_ns()
        for line in lines:
            for i in line[:window]:
                if not missing[i]:
                    enter(i)
        for _ in range(len(ready)):
            at = min(offer)
            queue = offer.index(at)
            if at == _NEVER:
                raise RuntimeError("the window scheduler is stuck: no instruction can start; this is a defect of the model.")
            several = entered[queue]
            if several is not None:
                i = chosen[queue]
                several.remove(i)
            else:
                i = most_urgent[heappop(now[queue])] if now[queue] else heappop(pending[queue])[1]
            end = places[queue](i, ready[i])
            gone[i] = True
            others = ported[queue] if psum_ns[i] else alone[queue]
            if others:
                for other in others:
                    renew(other)
            else:
                at, waiting, ranks = free_at[queue], pending[queue], now[queue]
                while waiting and waiting[0][0] <= at:
                    heappush(ranks, rank[heappop(waiting)[1]])
                offer[queue] = at if ranks else waiting[0][0] if waiting else _NEVER
            for tile in touches[i]:
                if end > until[tile]:
                    until[tile] = end
                left[tile] -= 1
                if not left[tile]:
                    memory.close(tile, i)
            begin, done = start[i], ends[i]
            if begin + rest_ns[queue] > limit_ns:
                return False
            rest_ns[queue] -= busy_ns[i]
            moments_of = begin, done, done + hop_ns, free[i] + hop_ns, begin + output_ns[i] + hop_ns, done
            for e in range(first_edge[i], first_edge[i + 1]):
                j = consumers[e]
                at = moments_of[moment[e]]
                if moment[e] == LANDED:
                    at -= lands_ns[j]
                if at > ready[j]:
                    ready[j], cause[j] = at, i
                missing[j] -= 1
                if not missing[j] and place[j] < head[engine[j]] + window:
                    enter(j)
            if place[i] == head[queue]:
                self._advance(queue, gone, enter)
            if memory.woken:
                for j in memory.retry():
                    enter(j)
        return True

    def _rest_ns(self) -> list[float]:
        """What each engine has to execute, its longest instruction left out; of transfers nothing."""
        busy, work = self.work.cost("busy_ns"), self.work
        return [
            -_NEVER if queue.engine == "dma" or not line else float(busy[line].sum() - busy[line].max())
            for queue, line in zip(work.queues, self.lines, strict=True)
        ]

    def _consumers(self) -> tuple[list[int], list[int], list[int]]:
        """The edges by producer: their consumers, the moments they wait for, and the first edge of each event."""
        producers, starts = self.work.producers, self.work.starts
        order = np.argsort(producers, kind="stable")
        count = len(starts) - 1
        consumers = np.repeat(np.arange(count), starts[1:] - starts[:-1])[order]
        first = np.searchsorted(producers[order], np.arange(count + 1))
        return consumers.tolist(), moments(self.work)[order].tolist(), first.tolist()

    def _entrance(self) -> Callable[[int], None]:
        """What is called when an event has all its producers started and lies in its queue's window."""
        resources, memory, work = self.resources, self.memory, self.work
        engine, touches, ready, rank, place, head = (
            work.engine,
            work.tiles.touches,
            self.ready,
            self.rank,
            self.place,
            self.head,
        )
        freed_by, freed_at, is_dma, hop_ns = memory.freed_by, memory.freed_at, resources.is_dma, resources.hop_ns
        reason, cause, free_at = resources.reason, resources.cause, resources.free_at
        pinned = work.no_reorder if any(work.no_reorder) else None
        now, pending, offer, entered = self.now, self.pending, self.offer, self.entered
        bound = [shares or issuer >= 0 for shares, issuer in zip(resources.shares_psum, resources.issuer, strict=True)]

        def enter(i: int) -> None:
            queue = engine[i]
            if pinned is not None and pinned[i] and place[i] != head[queue]:
                return  # enters again when it is at the head
            at, freed = ready[i], -1
            for tile in touches[i]:
                if freed_by[tile] == UNTAKEN and not memory.open(i):
                    return  # enters again when memory is freed
                user = freed_by[tile]
                if user >= 0:
                    free = freed_at[tile]
                    if engine[user] != queue and not is_dma[engine[user]]:
                        free += hop_ns
                    if free > at:
                        at, freed = free, user
            if freed >= 0:
                ready[i], reason[i], cause[i] = at, MEMORY, freed
            several = entered[queue]
            if several is not None:
                several.add(i)
            elif at <= free_at[queue]:
                heappush(now[queue], rank[i])
                offer[queue] = free_at[queue]
            else:
                heappush(pending[queue], (at, i))
                if at < offer[queue]:
                    offer[queue] = at
            if bound[queue] or several is not None:
                self._renew(queue)

        return enter

    def _together(self, queue: int, port: bool) -> list[int]:
        """The queues whose next start may change when an instruction of `queue` starts, itself included; none if only its own,
        and nothing but the queue binds it.

        It triggers them, is triggered by them, or, if it holds one (`port`), shares a port with them.
        """
        resources = self.resources
        issuers, shares, core_of = resources.issuer, resources.shares_psum, resources.core_of
        touched = {queue, issuers[queue]} - {-1}
        touched |= {k for k, issuer in enumerate(issuers) if issuer in touched}
        if port and shares[queue]:
            touched |= {k for k in range(len(shares)) if shares[k] and core_of[k] == core_of[queue]}
        return sorted(touched) if len(touched) > 1 or shares[queue] or self.entered[queue] is not None else []

    def _renew(self, queue: int) -> None:
        """Find out when the next event of `queue` could start."""
        now, pending, resources, several = self.now[queue], self.pending[queue], self.resources, self.entered[queue]
        at = resources.free_at[queue]
        while pending and pending[0][0] <= at:
            heappush(now, self.rank[heappop(pending)[1]])
        if several:
            at, i = self._soonest(queue, several)
            self.chosen[queue] = i
        elif now:
            i = self.most_urgent[now[0]]
        elif pending:
            at, i = pending[0]
        else:
            self.offer[queue] = _NEVER
            return
        if resources.shares_psum[queue] and resources.psum_ns[i]:
            at = max(at, resources.psum_free[resources.core_of[queue]])
        if resources.issuer[queue] >= 0:
            at = max(at, resources.free_at[resources.issuer[queue]])
        self.offer[queue] = at

    def _soonest(self, queue: int, several: set[int]) -> tuple[float, int]:
        """Of instructions that need several activation tables, the most urgent of those that can start first; and when.

        The operands of an instruction are there when its activation table is, too.
        """
        resources, ready, rank = self.resources, self.ready, self.rank
        tables, held, loaded = resources.tables, resources.table_of[queue], resources.table_ready[queue]
        free = resources.free_at[queue]
        first, least, found = _NEVER, 0, -1
        for i in several:
            at, table = ready[i], tables[i]
            if loaded > at and table and table != held:
                at = loaded
            if free > at:
                at = free
            if at < first or (at == first and rank[i] < least):
                first, least, found = at, rank[i], i
        return first, found

    def _advance(self, queue: int, gone: list[bool], enter: Callable[[int], None]) -> None:
        """Move the queue's window on: its first event has started."""
        line, position, window = self.lines[queue], self.head[queue], self.window
        while position < len(line) and gone[line[position]]:
            position += 1
            self.head[queue] = position
            entering = position + window - 1
            if entering < len(line) and not self.missing[line[entering]] and not gone[line[entering]]:
                enter(line[entering])
        if window > 1 and position < len(line):
            first = line[position]
            if self.work.no_reorder[first] and not self.missing[first]:
                enter(first)  # it was pinned, and could not be taken before it was at the head
