"""The scheduling rules once more, as plainly as they can be said: every question is asked anew at every step.

Only what an instruction occupies (timing/resources.py) and the edges and costs of the workload are shared with the model.
"""

from nki_hf.sim.stream.dependencies import WAR, WAW
from nki_hf.timing.resources import Resources
from nki_hf.timing.workload import OUTPUT


class PlainSchedule:
    """Start, free and done of every event, in `resources`, for queues that run any of their next `window` instructions."""

    def __init__(self, work, window):
        self.work, self.tiles, self.window = work, work.tiles, window
        self.resources = Resources(work)
        self.count = len(work.costs)
        self.started, self.entered = [], {}
        self.granted, self.closed = {}, {}  # tile -> (time, event that freed it); tile -> True
        self.free_bytes = [[(0.0, capacity, -1)] for _, _, capacity in self.tiles.pools]
        self.lines = [[i for i in range(self.count) if work.engine[i] == queue] for queue in range(len(work.queues))]
        self.urgency = self._urgency()
        self._enter_all(i for line in self.lines for i in line[:window])
        for _ in range(self.count):
            i = min(self.entered, key=self._rank)
            self._start(i)

    def edges(self, i):
        """`(producer, kind)` of each edge."""
        return [
            (int(self.work.producers[e]), int(self.work.kinds[e])) for e in range(self.work.starts[i], self.work.starts[i + 1])
        ]

    def _hop(self, other, queue):
        return 0.0 if other == queue or self.work.queues[other].engine == "dma" else self.resources.hop_ns

    def _available(self, producer, kind, consumer):
        r, other, queue = self.resources, self.work.engine[producer], self.work.engine[consumer]
        if self.work.queues[other].engine == "dma":
            return r.done[producer]
        if other == queue and kind == WAR:
            return r.start[producer]
        if other == queue and kind == WAW:  # the younger result is the last
            cost = self.work.costs[consumer]
            return max(r.start[producer], r.done[producer] - (cost.output_ns or cost.done_ns))
        if kind == WAR:
            return r.free[producer] + r.hop_ns
        if kind == OUTPUT:
            return r.start[producer] + self.work.costs[producer].output_ns + r.hop_ns
        return r.done[producer] + r.hop_ns

    def _urgency(self):
        """Longest path to the end of the kernel."""
        costs, longest = self.work.costs, [0.0] * self.count
        consumers = [[] for _ in range(self.count)]
        for i in range(self.count):
            for producer, kind in self.edges(i):
                consumers[producer].append((i, kind))
        for i in reversed(range(self.count)):
            cost = costs[i]
            behind = [0.0]
            for j, kind in consumers[i]:
                result = cost.output_ns if kind == OUTPUT else self._arrives(cost)
                behind.append(longest[j] + (result - cost.busy_ns if kind < WAR and result else 0.0))
            longest[i] = max(max(behind) + cost.busy_ns, self._arrives(cost))
        return longest

    def _arrives(self, cost):
        return cost.done_ns + cost.lead_ns + max(cost.payload_ns, cost.software_ns) + cost.tail_ns

    def _head(self, queue):
        return next((k for k, i in enumerate(self.lines[queue]) if i not in self.started), len(self.lines[queue]))

    def _may_enter(self, i):
        """All producers have started, and the queue's window reaches it."""
        queue = self.work.engine[i]
        position, head = self.lines[queue].index(i), self._head(queue)
        reach = 1 if self.work.no_reorder[i] else self.window
        return (
            i not in self.started
            and i not in self.entered
            and head <= position < head + reach
            and all(producer in self.started for producer, _ in self.edges(i))
        )

    def _enter_all(self, candidates):
        for i in candidates:
            if self._may_enter(i) and self._open(i):
                queue = self.work.engine[i]
                ready = max([0.0, *(self._available(p, kind, i) for p, kind in self.edges(i))])
                for tile in self.tiles.touches[i]:
                    at, user = self.granted[tile]
                    ready = max(ready, at + (self._hop(self.work.engine[user], queue) if user >= 0 else 0.0))
                self.entered[i] = ready

    def _held(self, pool):
        return {t: self.tiles.nbytes[t] for t in self.granted if self.tiles.pool[t] == pool and t not in self.closed}

    def _open(self, i):
        """Take all memory that the event needs and nobody took; or none of it."""
        wanted = sorted(t for t in self.tiles.touches[i] if t not in self.granted)
        for n, tile in enumerate(wanted):
            pool = self.tiles.pool[tile]
            capacity, ours = self.tiles.pools[pool][2], [t for t in range(len(self.tiles.pool)) if self.tiles.pool[t] == pool]
            held = self._held(pool) | {t: self.tiles.nbytes[t] for t in wanted[: n + 1] if self.tiles.pool[t] == pool}
            live = self.tiles.live(pool)[1].tolist()
            earlier = [t for t in ours if t < tile and not all(s in self.granted for s in ours if s <= t)]
            fits = all(live[ours.index(t)] + sum(b for s, b in held.items() if s > t) <= capacity for t in earlier)
            if sum(held.values()) > capacity or not fits:
                return False
        for tile in wanted:
            self.granted[tile] = self._bytes(self.tiles.pool[tile], self.tiles.nbytes[tile])
        return True

    def _bytes(self, pool, wanted):
        """The bytes that were freed first; when the last of them was."""
        at, user = 0.0, -1
        while wanted > 0:
            self.free_bytes[pool].sort()
            at, size, user = self.free_bytes[pool].pop(0)
            if size > wanted:
                self.free_bytes[pool].append((at, size - wanted, user))
            wanted -= size
        return at, user

    def _rank(self, i):
        """What can start first; of one queue's events that are ready when it is free, the most urgent."""
        r, queue = self.resources, self.work.engine[i]
        several = self._several(queue)
        there = {j: self._there(j) for j in self.entered if self.work.engine[j] == queue}
        at = max(there[i], r.free_at[queue])

        def key(j):
            if there[j] <= r.free_at[queue]:
                return (0, -self.urgency[j], j)
            return (1, there[j], -self.urgency[j], j) if several else (1, there[j], j)

        best = min(there, key=key)
        if r.shares_psum[queue] and r.psum_ns[i]:
            at = max(at, r.psum_free[r.core_of[queue]])
        if r.issuer[queue] >= 0:
            at = max(at, r.free_at[r.issuer[queue]])
        return (i != best, at, queue)

    def _several(self, queue):
        """True if its events need several activation tables."""
        return len({self.work.costs[j].table for j in self.lines[queue]} - {""}) > 1

    def _there(self, i):
        """When the operands of an event that has entered are there, and its activation table if there are several."""
        queue, table = self.work.engine[i], self.work.costs[i].table
        another = table and table != self.resources.table_of[queue] and self._several(queue)
        return max(self.entered[i], self.resources.table_ready[queue]) if another else self.entered[i]

    def _start(self, i):
        queue = self.work.engine[i]
        before = self._head(queue)
        end = self.resources.place[queue](i, self.entered.pop(i))
        self.started.append(i)
        for tile in self.tiles.touches[i]:
            users = [j for j in range(self.count) if tile in self.tiles.touches[j]]
            if all(j in self.started for j in users):
                ends = [self._last_use(j) for j in users]
                self.free_bytes[self.tiles.pool[tile]].append((max(ends), self.tiles.nbytes[tile], i))
                self.closed[tile] = True
        assert end == self._last_use(i)
        consumers = [j for j in range(self.count) if i in [p for p, _ in self.edges(j)]]
        line, reached = self.lines[queue], before + self.window
        self._enter_all(j for j in consumers if self.work.engine[j] != queue or line.index(j) < reached)
        self._enter_all(line[reached : self._head(queue) + self.window])
        self._enter_all(range(self.count))  # those that were pinned, or whose memory was taken

    def _last_use(self, i):
        is_dma = self.work.queues[self.work.engine[i]].engine == "dma"
        return self.resources.done[i] if is_dma else self.resources.free[i]
