"""The schedule of a kernel whose compiler hoists: each queue may run any of its next `window` instructions.

An event-driven list scheduler. Whenever a queue is free it takes, among its next `window` instructions in program order,
the first whose operands are ready (the first to become ready if none is). Ports and DMA engines are served by arrival.
On-chip memory is granted to whichever instruction touches a buffer first in time, and every other one that touches it
waits for that memory too. A buffer may be opened ahead of its turn only if all buffers before it in program order still
fit beside what was taken ahead (a banker's rule, so nothing can deadlock).
"""

from __future__ import annotations

from heapq import heappop, heappush

from nki_hf.observers.resources import Resources
from nki_hf.observers.times import MEMORY, START, Pool, Times
from nki_hf.observers.workload import OUTPUT, Workload
from nki_hf.sim.dependencies import WAR

__all__ = ["run_in_window"]

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
    return _Window(work, window).run()


class _Window:
    def __init__(self, work: Workload, window: int) -> None:
        self.work, self.window = work, window
        count = len(work.costs)
        self.resources = Resources(work)
        self.memory = _Memory(work, [Pool.of(capacity) for _, _, capacity in work.pools])
        self.lines: list[list[int]] = [[] for _ in work.queues]  # each queue's events in program order
        self.place = [0] * count  # position in its line
        for i, queue in enumerate(work.engine):
            self.place[i] = len(self.lines[queue])
            self.lines[queue].append(i)
        self.head = [0] * len(work.queues)  # position of each queue's first event that has not started
        self.gone = [False] * count
        self.missing = [work.starts[i + 1] - work.starts[i] for i in range(count)]  # producers that have not started
        self.consumers: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        for i in range(count):
            for e in range(work.starts[i], work.starts[i + 1]):
                self.consumers[work.producers[e]].append((i, work.kinds[e]))
        self.ready, self.why, self.who = [0.0] * count, [START] * count, [-1] * count
        self.pinned = work.no_reorder if any(work.no_reorder) else None
        self.urgency = self._urgency()
        self.pending: list[list[tuple[float, int]]] = [[] for _ in work.queues]  # heaps by time of readiness
        self.now: list[list[tuple[float, int]]] = [[] for _ in work.queues]  # heaps by urgency: ready when the queue is free

    def run(self) -> Times:
        """Start one instruction after the other, always the one that can start first."""
        resources, memory, touches = self.resources, self.memory, self.work.touches
        for line in self.lines:
            for i in line[: self.window]:
                if not self.missing[i]:
                    self._enter(i)
        for _ in range(len(self.work.costs)):
            i = self._take()
            resources.place(i, self.ready[i], self.why[i], self.who[i])
            self.gone[i] = True
            end = resources.last_use(i)
            for used in touches[i]:
                memory.use(used, end, i)
            self._release(i)
            self._advance(self.work.engine[i], i)
            if memory.woken:
                for j in memory.retry():
                    self._enter(j)
        return resources.times

    def _urgency(self) -> list[float]:
        """Minus the longest path from each event's start to the end of the kernel, in ns: the most urgent sorts first."""
        costs, starts, producers, kinds = self.work.costs, self.work.starts, self.work.producers, self.work.kinds
        below = [0.0] * len(costs)  # from the event's end
        urgency = [0.0] * len(costs)
        for i in range(len(costs) - 1, -1, -1):
            own = below[i]
            urgency[i] = -(own + costs[i].busy_ns)
            for e in range(starts[i], starts[i + 1]):
                p = producers[e]
                cost = costs[p]
                done = cost.output_ns if kinds[e] == OUTPUT else cost.done_ns
                lasts = done - cost.busy_ns if kinds[e] < WAR and done else 0.0
                through = costs[i].busy_ns + own + lasts
                if through > below[p]:
                    below[p] = through
        return urgency

    def _enter(self, i: int) -> None:
        """The event has all its producers started and lies in its queue's window: it may be taken once it gets memory."""
        queue = self.work.engine[i]
        if self.pinned is not None and self.pinned[i] and self.place[i] != self.head[queue]:
            return  # enters again when it is at the head
        if not self.memory.open(i):
            return  # enters again when memory is freed
        for place in self.work.touches[i]:
            freed_at, freed_by = self.memory.granted[place]
            if freed_by >= 0:
                at = self.resources.granted(freed_at, freed_by, queue)
                if at > self.ready[i]:
                    self.ready[i], self.why[i], self.who[i] = at, MEMORY, freed_by
        heappush(self.pending[queue], (self.ready[i], i))

    def _take(self) -> int:
        """The event that can start first, taken off its queue's heap."""
        resources, costs, urgency = self.resources, self.work.costs, self.urgency
        best, best_queue, best_event = _NEVER, -1, -1
        for queue, waiting in enumerate(self.pending):
            now, free_at = self.now[queue], resources.free_at[queue]
            while waiting and waiting[0][0] <= free_at:
                i = heappop(waiting)[1]
                heappush(now, (urgency[i], i))
            if now:
                i, at = now[0][1], free_at
            elif waiting:
                at, i = waiting[0]
            else:
                continue
            if resources.shares_psum[queue] and costs[i].psum_ns:
                at = max(at, resources.psum_free[resources.core_of[queue]])
            if at < best:
                best, best_queue, best_event = at, queue, i
        if best_queue < 0:
            raise RuntimeError("the window scheduler is stuck: no instruction can start; this is a defect of the model.")
        heappop(self.now[best_queue] or self.pending[best_queue])
        return best_event

    def _release(self, i: int) -> None:
        """Tell the consumers of a started event when they may start as far as it is concerned."""
        ready, missing, engine = self.ready, self.missing, self.work.engine
        for j, kind in self.consumers[i]:
            at, because = self.resources.available(i, kind, engine[j])
            if at > ready[j]:
                ready[j], self.why[j], self.who[j] = at, because, i
            missing[j] -= 1
            if not missing[j] and self.place[j] < self.head[engine[j]] + self.window:
                self._enter(j)

    def _advance(self, queue: int, started: int) -> None:
        """Move the queue's window on if its first event has started."""
        if self.place[started] != self.head[queue]:
            return
        line, position = self.lines[queue], self.head[queue]
        while position < len(line) and self.gone[line[position]]:
            position += 1
            self.head[queue] = position
            entering = position + self.window - 1
            if entering < len(line) and not self.missing[line[entering]] and not self.gone[line[entering]]:
                self._enter(line[entering])
        if self.pinned is not None and self.window > 1 and position < len(line):
            first = line[position]  # it could not be taken before it was at the head
            if self.pinned[first] and not self.missing[first]:
                self._enter(first)


class _Memory:
    """Grants on-chip memory to the first instruction, in time, that touches a buffer (see the module for the rule)."""

    def __init__(self, work: Workload, pools: list[Pool]) -> None:
        self.pools, self.allocations, self.touches = pools, work.allocations, work.touches
        self.left = [item.uses for item in work.allocations]
        self.until = [0.0] * len(work.allocations)
        self.taken = [False] * len(work.allocations)
        self.granted = [(0.0, -1)] * len(work.allocations)  # when the memory of a taken buffer was free, and who freed it
        self.held = [0] * len(work.allocations)  # bytes, while taken
        self._free = [pool.capacity for pool in pools]  # bytes that no buffer holds
        self.ahead = [0] * len(pools)  # bytes held by buffers behind the oldest one that is not taken yet
        self.blocked: list[list[int]] = [[] for _ in pools]  # instructions that wait, by the pool they wait for
        self.woken: list[int] = []  # pools whose blocked instructions should be asked again
        # Per pool: its buffers in program order, each one's rank, and what is live when it opens in program order.
        self.ranked: list[list[int]] = [[] for _ in pools]
        self.rank = [0] * len(work.allocations)
        self.oldest = [0] * len(pools)
        self.live: list[list[int]] = [[] for _ in pools]
        self.peak = [0] * len(pools)
        closing: list[list[tuple[int, int]]] = [[] for _ in pools]
        alive = [0] * len(pools)
        for place, item in enumerate(work.allocations):
            ends = closing[item.pool]
            while ends and ends[0][0] < item.first:
                alive[item.pool] -= heappop(ends)[1]
            alive[item.pool] += item.nbytes
            heappush(ends, (item.last, item.nbytes))
            self.rank[place] = len(self.ranked[item.pool])
            self.ranked[item.pool].append(place)
            self.live[item.pool].append(alive[item.pool])
            self.peak[item.pool] = max(self.peak[item.pool], alive[item.pool])
            if alive[item.pool] > pools[item.pool].capacity:
                name = work.pools[item.pool][1]
                raise MemoryError(
                    f"{name} overflows at event {item.first}: {alive[item.pool]} B live of "
                    f"{pools[item.pool].capacity} B per partition."
                )

    def open(self, event: int) -> bool:
        """Take the memory of every buffer that `event` touches and nobody took before; False if it must wait."""
        places = [place for place in self.touches[event] if not self.taken[place]]
        if not places:
            return True
        places.sort()  # program order
        for count, place in enumerate(places):
            item = self.allocations[place]
            safe = self._free[item.pool] >= item.nbytes and self._safe(place)
            if not safe:
                for other in places[:count]:
                    self._hold(other, 0)
                self.blocked[item.pool].append(event)
                return False
            self._hold(place, item.nbytes)
        for place in places:
            item = self.allocations[place]
            self.granted[place] = self.pools[item.pool].take(item.nbytes)
            self.taken[place] = True
            ranked = self.ranked[item.pool]
            oldest = self.oldest[item.pool]
            while oldest < len(ranked) and self.taken[ranked[oldest]]:
                self.ahead[item.pool] -= self.held[ranked[oldest]]
                oldest += 1
            if oldest != self.oldest[item.pool]:
                self.oldest[item.pool] = oldest
                self._wake(item.pool)
        return True

    def _hold(self, place: int, nbytes: int) -> None:
        """Count `place`, not taken yet, as holding `nbytes`."""
        pool, more = self.allocations[place].pool, nbytes - self.held[place]
        self.held[place] = nbytes
        self.ahead[pool] += more
        self._free[pool] -= more

    def use(self, place: int, end: float, event: int) -> None:
        """Count one use; the last one gives the memory back."""
        if end > self.until[place]:
            self.until[place] = end
        self.left[place] -= 1
        if self.left[place]:
            return
        item = self.allocations[place]
        self.pools[item.pool].give(item.nbytes, self.until[place], event)
        if self.rank[place] >= self.oldest[item.pool]:
            self.ahead[item.pool] -= item.nbytes
        self.held[place] = 0
        self._free[item.pool] += item.nbytes
        self._wake(item.pool)

    def _wake(self, pool: int) -> None:
        if self.blocked[pool] and pool not in self.woken:
            self.woken.append(pool)

    def retry(self) -> list[int]:
        """The instructions that waited for memory of the woken pools, to be asked again."""
        again: list[int] = []
        for pool in self.woken:
            again += self.blocked[pool]
            self.blocked[pool] = []
        self.woken.clear()
        return sorted(again)

    def _safe(self, place: int) -> bool:
        """True if everything before `place` in program order still fits once it is taken."""
        item = self.allocations[place]
        ranked, live = self.ranked[item.pool], self.live[item.pool]
        ahead, capacity = self.ahead[item.pool] + item.nbytes, self.pools[item.pool].capacity
        if self.peak[item.pool] + ahead <= capacity:
            return True
        for position in range(self.oldest[item.pool], self.rank[place]):
            ahead -= self.held[ranked[position]]
            if live[position] + ahead > capacity:
                return False
        return True
