"""Resources: what instructions occupy besides their operands; the one place that turns a ready time into a start.

Both schedulers use it, so that they differ only in the order in which they take instructions.

Throttling. Dense 16-bit (or narrower) matmuls run at full clock until they are `tensor_throttle_ns` of work ahead of what
the chip sustains, and at `tensor_sustained_fraction` of it from then on; time in which the engine does something else, or
nothing, counts towards what it may do at full clock later. In one formula, of a matmul that starts at s and takes w:

    paced = max(paced, s - slack) + w / fraction,    end = max(s + w, paced),    slack = (1 / fraction - 1) throttle_ns

Both grow with s and with the `paced` before, so starting later never ends a matmul earlier.
"""

from __future__ import annotations

from nki_hf.observers.times import BUSY, DEPENDENCY, DMA, PORT, TABLE, Times
from nki_hf.observers.workload import OUTPUT, Workload
from nki_hf.sim.dependencies import WAR, WAW

__all__ = ["Resources"]


class Resources:
    """Queues, ports, PSUM banks, DMA engines and activation tables of all cores, as far as instructions were placed.

    Attributes:
      times: the times of the instructions placed so far.
      free_at: when each queue can start its next instruction.
      last_of: the last instruction of each queue, -1 before the first.
      shares_psum: True for the queues that exclude each other at PSUM.
      psum_free: until when the shared PSUM port of each core is taken.
    """

    def __init__(self, work: Workload) -> None:
        chip, queues = work.chip, work.queues
        self.work, self.times = work, Times.empty(len(work.costs))
        self.is_dma = [queue.engine == "dma" for queue in queues]
        self.is_tensor = [queue.engine == "tensor" for queue in queues]
        self.is_scalar = [queue.engine == "scalar" for queue in queues]
        self.shares_psum = [bool(chip.psum_exclusive) and queue.engine in ("vector", "scalar") for queue in queues]
        self.core_of = [queue.core for queue in queues]
        self.hop_ns, self.table_ns = float(chip.semaphore_hop_ns), float(chip.scalar_table_load_ns)
        cores = max(self.core_of, default=0) + 1
        self._sustained = float(chip.tensor_sustained_fraction)
        self._slack_ns = (1 / self._sustained - 1) * float(chip.tensor_throttle_ns)
        self._paced_until = [-self._slack_ns] * cores  # when the dense matmuls of each core would end at the sustained rate
        self.free_at = [0.0] * len(queues)
        self.last_of = [-1] * len(queues)
        self.psum_free, self._psum_user = [0.0] * cores, [-1] * cores
        self._sbuf_free, self._sbuf_user = [0.0] * cores, [-1] * cores
        self._banks: dict[int, tuple[float, int, int]] = {}
        self._carriers = [[0.0] * int(chip.dma_engines) for _ in range(cores)]
        self._tables = [""] * cores
        self._table_free = [0.0] * cores  # when Scalar could have begun to load another table, had it only been idle since

    def available(self, producer: int, kind: int, queue: int) -> tuple[float, int]:
        """When an instruction of `queue` may start as far as its edge to a placed `producer` goes, and the reason's code."""
        times, other = self.times, self.work.engine[producer]
        if self.is_dma[other]:
            return times.done[producer], DMA
        if other == queue and kind in (WAR, WAW):  # one engine reads and writes in order: its queue is all that binds
            return times.start[producer], DEPENDENCY
        if kind == WAR:
            return times.free[producer] + self.hop_ns, DEPENDENCY
        if kind == OUTPUT:
            return times.start[producer] + self.work.costs[producer].output_ns + self.hop_ns, DEPENDENCY
        return times.done[producer] + self.hop_ns, DEPENDENCY

    def granted(self, freed_at: float, freed_by: int, queue: int) -> float:
        """When `queue` may write memory that `freed_by` was the last to use, until `freed_at`."""
        if freed_by < 0 or self.is_dma[self.work.engine[freed_by]] or self.work.engine[freed_by] == queue:
            return freed_at
        return freed_at + self.hop_ns

    def last_use(self, i: int) -> float:
        """When a placed instruction has finished with its operands' memory."""
        return self.times.done[i] if self.is_dma[self.work.engine[i]] else self.times.free[i]

    def place(self, i: int, ready: float, why: int, who: int) -> None:
        """Start instruction `i`, whose operands are `ready` because of `who`, as soon as its queue and ports allow."""
        work, times = self.work, self.times
        cost, queue = work.costs[i], work.engine[i]
        core = self.core_of[queue]
        at = ready + cost.weight_ns if self.is_tensor[queue] else ready
        if self.free_at[queue] >= at and self.last_of[queue] >= 0:
            at, why, who = self.free_at[queue], BUSY, self.last_of[queue]
        if self.is_dma[queue]:
            first, carriers = at + cost.lead_ns, self._carriers[core]
            mine = range(cost.first_engine, cost.first_engine + cost.engines)
            for k in mine:
                if carriers[k] > first:
                    first = carriers[k]
            for k in mine:
                carriers[k] = first + cost.payload_ns
            times.moves[i], times.done[i] = first, first + cost.payload_ns + cost.tail_ns
        else:
            if cost.table and self.is_scalar[queue] and self._tables[core] != cost.table:
                self._tables[core] = cost.table
                if self._table_free[core] + self.table_ns > at:
                    at, why, who = self._table_free[core] + self.table_ns, TABLE, self.last_of[queue]
            if cost.psum_ns and self.shares_psum[queue]:
                if self.psum_free[core] > at:
                    at, why, who = self.psum_free[core], PORT, self._psum_user[core]
                self.psum_free[core], self._psum_user[core] = at + cost.psum_ns, i
            elif cost.psum_ns:
                until, user, user_queue = self._banks.get(work.banks[i], (0.0, -1, queue))
                if until > at and user_queue != queue:
                    at, why, who = until, PORT, user
                self._banks[work.banks[i]] = (max(at + cost.psum_ns, until), i, queue)
            if cost.sbuf_ns:
                if self._sbuf_free[core] > at:
                    at, why, who = self._sbuf_free[core], PORT, self._sbuf_user[core]
                self._sbuf_free[core], self._sbuf_user[core] = at + cost.sbuf_ns, i
            times.moves[i], times.done[i] = at, at + cost.done_ns
        times.start[i], times.free[i] = at, at + cost.busy_ns
        if cost.paced:
            until = max(self._paced_until[core], at - self._slack_ns) + cost.busy_ns / self._sustained
            self._paced_until[core] = until
            if until > times.free[i]:
                times.done[i] += until - times.free[i]
                times.free[i] = until
        if self.is_scalar[queue]:
            self._table_free[core] = times.free[i] if cost.table else self._table_free[core] + cost.busy_ns
        times.reason[i], times.cause[i] = why, who
        self.free_at[queue], self.last_of[queue] = times.free[i], i
