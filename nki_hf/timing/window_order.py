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

from nki_hf.timing.grants import UNTAKEN, Grants
from nki_hf.timing.lookahead import Lookahead
from nki_hf.timing.resources import LANDED, Resources
from nki_hf.timing.times import MEMORY, Times

__all__ = ["run_in_window", "run_in_window_below"]

_NEVER = float("inf")


def run_in_window(ahead: Lookahead, banks: int | None = None) -> Times:
    """Times of every event.

    Args:
      ahead: the workload and its window.
      banks: how many banks PSUM has; None = all that the chip has.

    Raises:
      MemoryError: a pool overflows even in program order; the message names it.
    """
    schedule = _Schedule(ahead, banks)
    schedule.run()
    return schedule.resources.times()


def run_in_window_below(ahead: Lookahead, limit_ns: float, banks: int | None = None) -> Times | None:
    """The same, or None as soon as no rest of the schedule can end before `limit_ns`.

    From an instruction's start on, an engine executes all that it has not started; only the last of these may be free later
    than its result is there.
    """
    schedule = _Schedule(ahead, banks)
    return schedule.resources.times() if schedule.run(limit_ns * (1 + 1e-9)) else None


class _Schedule:
    def __init__(self, ahead: Lookahead, banks: int | None) -> None:
        self.ahead, self.work, self.window = ahead, ahead.work, ahead.window
        self.resources, self.memory = Resources(self.work), Grants(self.work, banks)
        queues = len(self.work.queues)
        self.head = [0] * queues  # position of each queue's first event that has not started
        self.ready = [0.0] * len(self.work.kind)
        self.missing = ahead.producers.copy()  # producers that have not started
        self.now: list[list[int]] = [[] for _ in range(queues)]  # heaps of ranks: ready when the queue is free
        self.pending: list[list[tuple[float, int]]] = [[] for _ in range(queues)]  # heaps by time of readiness
        self.offer = [_NEVER] * queues  # when the next event of each queue could start
        # Queues whose events need several activation tables: those that entered, and the one to start next.
        self.entered: list[set[int] | None] = [set() if several else None for several in ahead.several_tables]
        self.chosen = [-1] * queues

    def run(self, limit_ns: float = _NEVER) -> bool:
        """Start one instruction after the other, always the one that can start first; False if `limit_ns` cannot be kept."""
        window, resources, memory, landed, never = self.window, self.resources, self.memory, LANDED, _NEVER
        engine, touches, lines, place = self.work.engine, self.work.tiles.touches, self.ahead.lines, self.ahead.place
        ready, missing, cause, head = self.ready, self.missing, resources.cause, self.head
        now, pending, offer, most_urgent, rank = self.now, self.pending, self.offer, self.ahead.most_urgent, self.ahead.rank
        left, until, close, gone = memory.left, memory.until, memory.close, [False] * len(ready)
        start, free, ends, hop_ns = resources.start, resources.free, resources.done, resources.hop_ns
        output_ns, lands_ns = resources.output_ns, resources.lands_ns
        places, free_at, entered, chosen = resources.place, resources.free_at, self.entered, self.chosen
        edges, first_edge, no_reorder = self.ahead.edges, self.ahead.first_edge, self.work.no_reorder
        enter, renew, pins = self._entrance(), self._renew, window > 1 and any(no_reorder)
        alone, ported = ([self._together(queue, port) for queue in range(len(lines))] for port in (False, True))
        psum_ns, busy_ns, rest_ns = resources.psum_ns, resources.busy_ns, self._rest_ns()
        for line in lines:
            for i in line[:window]:
                if not missing[i]:
                    enter(i)
        for _ in range(len(ready)):
            at = min(offer)
            queue = offer.index(at)
            if at == never:
                raise RuntimeError("the window scheduler is stuck: no instruction can start; this is a defect of the model.")
            several, ranks = entered[queue], now[queue]
            if several is not None:
                i = chosen[queue]
                several.remove(i)
            else:
                i = most_urgent[heappop(ranks)] if ranks else heappop(pending[queue])[1]
            end = places[queue](i, ready[i])
            gone[i] = True
            others = ported[queue] if psum_ns[i] else alone[queue]
            if others:
                for other in others:
                    renew(other)
            else:
                at, waiting = free_at[queue], pending[queue]
                while waiting and waiting[0][0] <= at:
                    heappush(ranks, rank[heappop(waiting)[1]])
                offer[queue] = at if ranks else waiting[0][0] if waiting else never
            for tile in touches[i]:
                if end > until[tile]:
                    until[tile] = end
                uses = left[tile] = left[tile] - 1
                if not uses:
                    close(tile, i)
            begin, done = start[i], ends[i]
            if begin + rest_ns[queue] > limit_ns:
                return False
            rest_ns[queue] -= busy_ns[i]
            moments_of = begin, done, done + hop_ns, free[i] + hop_ns, begin + output_ns[i] + hop_ns, done
            for j, moment in edges[first_edge[i] : first_edge[i + 1]]:
                at = moments_of[moment]
                if moment == landed:
                    at -= lands_ns[j]
                if at > ready[j]:
                    ready[j], cause[j] = at, i
                count = missing[j] = missing[j] - 1
                if not count and place[j] < head[engine[j]] + window:
                    enter(j)
            position = head[queue]
            if place[i] == position:  # the queue's window moves on
                line = lines[queue]
                last = len(line)
                while position < last and gone[line[position]]:
                    position += 1
                    head[queue] = position
                    entering = position + window - 1
                    if entering < last and not missing[line[entering]] and not gone[line[entering]]:
                        enter(line[entering])
                if pins and position < last:
                    first = line[position]
                    if no_reorder[first] and not missing[first]:
                        enter(first)  # it was pinned, and could not be taken before it was at the head
            if memory.woken:
                for j in memory.retry():
                    enter(j)
        return True

    def _rest_ns(self) -> list[float]:
        """What each engine has to execute, its longest instruction left out; of transfers nothing."""
        busy, work = self.work.cost("busy_ns"), self.work
        return [
            -_NEVER if queue.engine == "dma" or not line else float(busy[line].sum() - busy[line].max())
            for queue, line in zip(work.queues, self.ahead.lines, strict=True)
        ]

    def _entrance(self) -> Callable[[int], None]:
        """What is called when an event has all its producers started and lies in its queue's window."""
        resources, memory, work, untaken, because = self.resources, self.memory, self.work, UNTAKEN, MEMORY
        engine, touches, place, rank = work.engine, work.tiles.touches, self.ahead.place, self.ahead.rank
        ready, head, take = self.ready, self.head, memory.open
        freed_by, freed_at, is_dma, hop_ns = memory.freed_by, memory.freed_at, resources.is_dma, resources.hop_ns
        reason, cause, free_at, renew = resources.reason, resources.cause, resources.free_at, self._renew
        pinned = work.no_reorder if any(work.no_reorder) else None
        now, pending, offer, entered = self.now, self.pending, self.offer, self.entered
        bound = [
            shares or issuer >= 0 or several is not None
            for shares, issuer, several in zip(resources.shares_psum, resources.issuer, entered, strict=True)
        ]

        def enter(i: int) -> None:
            queue = engine[i]
            if pinned is not None and pinned[i] and place[i] != head[queue]:
                return  # enters again when it is at the head
            at, freed = ready[i], -1
            for tile in touches[i]:
                user = freed_by[tile]
                if user == untaken:
                    if not take(i):
                        return  # enters again when memory is freed
                    user = freed_by[tile]
                if user >= 0:
                    free = freed_at[tile]
                    if engine[user] != queue and not is_dma[engine[user]]:
                        free += hop_ns
                    if free > at:
                        at, freed = free, user
            if freed >= 0:
                ready[i], reason[i], cause[i] = at, because, freed
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
            if bound[queue]:
                renew(queue)

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
            heappush(now, self.ahead.rank[heappop(pending)[1]])
        if several:
            at, i = self._soonest(queue, several)
            self.chosen[queue] = i
        elif now:
            i = self.ahead.most_urgent[now[0]]
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
        resources, ready, rank = self.resources, self.ready, self.ahead.rank
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
