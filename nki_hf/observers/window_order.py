"""The schedule of a kernel whose compiler hoists: each queue may run any of its next `window` instructions.

An event-driven list scheduler. Whenever a queue is free it takes, among its next `window` instructions in program order,
the first whose operands are ready (the first to become ready if none is). Ports and DMA engines are served by arrival.
On-chip memory is granted so that in-order execution always stays possible: an instruction may open a buffer ahead of its
turn only if everything before it still fits beside what was taken ahead (a banker's rule, so nothing can deadlock).
"""

from __future__ import annotations

from heapq import heappop, heappush

from nki_hf.observers.times import BUSY, DEPENDENCY, DMA, MEMORY, PORT, START, TABLE, Pool, Times
from nki_hf.observers.workload import Workload
from nki_hf.sim.dependencies import WAR, WAW

__all__ = ["run_in_window"]

_NEVER = float("inf")


def run_in_window(work: Workload, window: int) -> tuple[Times, list[Pool]]:
    """Times of every event and the memory pools after the run.

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
        self.times = Times.empty(count)
        self.pools = [Pool.of(capacity) for _, _, capacity in work.pools]
        self.lines: list[list[int]] = [[] for _ in work.queues]  # each queue's events in program order
        self.place = [0] * count  # position in its line
        for i, queue in enumerate(work.engine):
            self.place[i] = len(self.lines[queue])
            self.lines[queue].append(i)
        self.missing = [work.starts[i + 1] - work.starts[i] for i in range(count)]
        self.consumers: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        for i in range(count):
            for e in range(work.starts[i], work.starts[i + 1]):
                self.consumers[work.producers[e]].append((i, work.kinds[e]))
        self.ready = [0.0] * count
        self.urgency = self._urgency()
        self.memory = _Memory(work, self.pools)

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
                lasts = cost.done_ns - cost.busy_ns if kinds[e] < WAR and cost.done_ns else 0.0
                through = costs[i].busy_ns + own + lasts
                if through > below[p]:
                    below[p] = through
        return urgency

    def run(self) -> tuple[Times, list[Pool]]:
        work, times = self.work, self.times
        chip, costs, engine, queues = work.chip, work.costs, work.engine, work.queues
        start, free, done, moves, reason, cause = times.start, times.free, times.done, times.moves, times.reason, times.cause
        ready, missing, consumers, place = self.ready, self.missing, self.consumers, self.place
        hop = chip.semaphore_hop_ns
        is_dma = [queue.engine == "dma" for queue in queues]
        is_tensor = [queue.engine == "tensor" for queue in queues]
        is_scalar = [queue.engine == "scalar" for queue in queues]
        shares_psum = [bool(chip.psum_exclusive) and queue.engine in ("vector", "scalar") for queue in queues]
        core_of = [queue.core for queue in queues]
        cores = max(core_of, default=0) + 1
        free_at = [0.0] * len(queues)
        last_of = [-1] * len(queues)
        psum_port: list[tuple[float, int]] = [(0.0, -1)] * cores
        sbuf_port: list[tuple[float, int]] = [(0.0, -1)] * cores
        bank_port: dict[int, tuple[float, int, int]] = {}
        dma_free = [[0.0] * int(chip.dma_engines) for _ in range(cores)]
        tables = [""] * cores
        pending: list[list[tuple[float, int]]] = [[] for _ in queues]
        urgency = self.urgency
        ready_now: list[list[tuple[float, int]]] = [[] for _ in queues]
        head = [0] * len(queues)
        gone = [False] * len(costs)
        why, who = [START] * len(costs), [-1] * len(costs)
        memory, opens, touches = self.memory, work.opens, work.touches
        pinned = work.no_reorder if any(work.no_reorder) else None

        def enter(i: int) -> None:
            """The event has all its producers scheduled and lies in its queue's window."""
            if pinned is not None and pinned[i] and place[i] != head[engine[i]]:
                return  # enters again when it is at the head
            if i in opens:
                granted = memory.open(i)
                if granted is None:
                    return  # enters again when memory is freed
                at, freed_by = granted
                if freed_by >= 0 and not is_dma[engine[freed_by]] and engine[freed_by] != engine[i]:
                    at += hop
                if at > ready[i]:
                    ready[i], why[i], who[i] = at, MEMORY, freed_by
            heappush(pending[engine[i]], (ready[i], i))

        for line in self.lines:
            for i in line[: self.window]:
                if not missing[i]:
                    enter(i)

        for _ in range(len(costs)):
            best, best_queue, best_event = _NEVER, -1, -1
            for queue in range(len(queues)):
                waiting, now = pending[queue], ready_now[queue]
                idle_from = free_at[queue]
                while waiting and waiting[0][0] <= idle_from:
                    i = heappop(waiting)[1]
                    heappush(now, (urgency[i], i))
                if now:
                    i, at = now[0][1], idle_from
                elif waiting:
                    at, i = waiting[0]
                else:
                    continue
                if shares_psum[queue] and costs[i].psum_ns:
                    at = max(at, psum_port[core_of[queue]][0])
                if at < best:
                    best, best_queue, best_event = at, queue, i
            if best_queue < 0:
                raise RuntimeError("the window scheduler is stuck: no instruction can start; this is a defect of the model.")
            i, queue = best_event, best_queue
            if ready_now[queue]:
                heappop(ready_now[queue])
                if free_at[queue] > ready[i] and last_of[queue] >= 0:
                    why[i], who[i] = BUSY, last_of[queue]
            else:
                heappop(pending[queue])
            cost, core = costs[i], core_of[queue]
            at = max(free_at[queue], ready[i])
            if is_dma[queue]:
                start[i], free[i] = at, at + cost.busy_ns
                first = at + cost.lead_ns
                carriers = dma_free[core]
                for k in range(cost.first_engine, cost.first_engine + cost.engines):
                    if carriers[k] > first:
                        first = carriers[k]
                end = first + cost.payload_ns
                for k in range(cost.first_engine, cost.first_engine + cost.engines):
                    carriers[k] = end
                moves[i], done[i] = first, end + cost.tail_ns
            else:
                if cost.weight_ns and is_tensor[queue]:
                    at = max(free_at[queue], ready[i] + cost.weight_ns)
                if cost.table and is_scalar[queue] and tables[core] != cost.table:
                    tables[core] = cost.table
                    loaded = free_at[queue] + chip.scalar_table_load_ns
                    if loaded > at:
                        at, why[i], who[i] = loaded, TABLE, last_of[queue]
                if cost.psum_ns and shares_psum[queue]:
                    if psum_port[core][0] > at:
                        at, why[i], who[i] = psum_port[core][0], PORT, psum_port[core][1]
                    psum_port[core] = (at + cost.psum_ns, i)
                elif cost.psum_ns:
                    until, user, user_queue = bank_port.get(work.banks[i], (0.0, -1, queue))
                    if until > at and user_queue != queue:
                        at, why[i], who[i] = until, PORT, user
                    bank_port[work.banks[i]] = (max(at + cost.psum_ns, until), i, queue)
                if cost.sbuf_ns:
                    if sbuf_port[core][0] > at:
                        at, why[i], who[i] = sbuf_port[core][0], PORT, sbuf_port[core][1]
                    sbuf_port[core] = (at + cost.sbuf_ns, i)
                start[i] = moves[i] = at
                free[i], done[i] = at + cost.busy_ns, at + cost.done_ns
            free_at[queue], last_of[queue], gone[i] = free[i], i, True

            ends = done[i] if is_dma[queue] else free[i]
            for used in touches[i]:
                memory.use(used, ends, i)
            for j, kind in consumers[i]:
                other = engine[j]
                if is_dma[queue]:
                    t, because = done[i], DMA
                elif kind == WAR:
                    t, because = (free[i] if other == queue else free[i] + hop), DEPENDENCY
                elif kind == WAW and other == queue:
                    t, because = free[i], DEPENDENCY
                else:
                    t, because = done[i] + hop, DEPENDENCY
                if t > ready[j]:
                    ready[j], why[j], who[j] = t, because, i
                missing[j] -= 1
                if not missing[j] and place[j] < head[other] + self.window:
                    enter(j)
            line = self.lines[queue]
            if place[i] == head[queue]:
                position = head[queue]
                while position < len(line) and gone[line[position]]:
                    position += 1
                    entering = position + self.window - 1
                    if entering < len(line) and not missing[line[entering]] and not gone[line[entering]]:
                        head[queue] = position
                        enter(line[entering])
                head[queue] = position
                if pinned is not None and position < len(line) and pinned[line[position]] and not missing[line[position]]:
                    enter(line[position])
            if memory.woken:
                for j in memory.retry():
                    enter(j)
        for i in range(len(costs)):
            reason[i], cause[i] = why[i], who[i]
        return times, self.pools


class _Memory:
    """Grants on-chip memory to instructions that open buffers (see the module for the rule)."""

    def __init__(self, work: Workload, pools: list[Pool]) -> None:
        self.pools, self.allocations, self.opens = pools, work.allocations, work.opens
        self.left = [item.uses for item in work.allocations]
        self.until = [0.0] * len(work.allocations)
        self.taken = [False] * len(work.allocations)
        self.held = [0] * len(work.allocations)  # bytes, while taken
        self.ahead = [0] * len(pools)  # bytes held by buffers behind the oldest one that is not taken yet
        self.blocked: list[list[int]] = [[] for _ in pools]  # instructions that wait, by the pool they wait for
        self.woken: list[int] = []  # pools whose blocked instructions should be asked again
        # Per pool: its buffers in program order, each one's rank, and what is live when it opens in program order.
        self.ranked: list[list[int]] = [[] for _ in pools]
        self.rank = [0] * len(work.allocations)
        self.oldest = [0] * len(pools)
        self.live: list[list[int]] = [[] for _ in pools]
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
            if alive[item.pool] > pools[item.pool].capacity:
                name = work.pools[item.pool][1]
                raise MemoryError(
                    f"{name} overflows at event {item.first}: {alive[item.pool]} B live of "
                    f"{pools[item.pool].capacity} B per partition."
                )

    def open(self, event: int) -> tuple[float, int] | None:
        """When the memory of all buffers that `event` opens is free, and who freed it; None if it must wait."""
        places = self.opens[event]
        asked: dict[int, int] = {}
        for place in places:
            item = self.allocations[place]
            asked[item.pool] = asked.get(item.pool, 0) + item.nbytes
            if self.pools[item.pool].room < asked[item.pool] or not self._safe(place):
                self.blocked[item.pool].append(event)
                return None
        at, freed_by = 0.0, -1
        for place in places:
            item = self.allocations[place]
            time, by = self.pools[item.pool].take(item.nbytes)
            if time > at:
                at, freed_by = time, by
            self.taken[place] = True
            self.held[place] = item.nbytes
            self.ahead[item.pool] += item.nbytes
            ranked = self.ranked[item.pool]
            oldest = self.oldest[item.pool]
            while oldest < len(ranked) and self.taken[ranked[oldest]]:
                self.ahead[item.pool] -= self.held[ranked[oldest]]
                oldest += 1
            if oldest != self.oldest[item.pool]:
                self.oldest[item.pool] = oldest
                self._wake(item.pool)
        return at, freed_by

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
        for position in range(self.oldest[item.pool], self.rank[place]):
            ahead -= self.held[ranked[position]]
            if live[position] + ahead > capacity:
                return False
        return True
