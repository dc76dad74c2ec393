"""Resources: what instructions occupy besides their operands; the one place that turns a ready time into a start.

Both schedulers use it, so that they differ only in the order in which they take instructions.

Throttling. Dense 16-bit (or narrower) matmuls run at full clock until they are `tensor_throttle_ns` of work ahead of what
the chip sustains, and at `tensor_sustained_fraction` of it from then on; time in which the engine does something else, or
nothing, counts towards what it may do at full clock later. In one formula, of a matmul that starts at s and takes w:

    paced = max(paced, s - slack) + w / fraction,    end = max(s + w, paced),    slack = (1 / fraction - 1) throttle_ns

Both grow with s and with the `paced` before, so starting later never ends a matmul earlier.

Descriptors in software. A transfer with run-time indices has its descriptors written by GpSimd (`Cost.software_ns`), one
transfer after the other and in turn with GpSimd's own instructions; its bytes move while the rest is written.

Triggers. A transfer is triggered by an instruction in its engine's in-order queue (`dma_trigger_ns`), which waits there for
what the transfer waits for; generating descriptors does not hold the engine. Later instructions in that queue
are blocked until the transfer may start (head-of-line blocking).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nki_hf.sim.stream.access_table import Ints
from nki_hf.sim.stream.dependencies import WAR, WAW
from nki_hf.timing.times import BUSY, DEPENDENCY, DMA, PORT, START, TABLE, Times
from nki_hf.timing.workload import OUTPUT, Workload

__all__ = ["LANDED", "Place", "Resources", "lands_ns", "moments"]

Place = Callable[[int, float], float]
"""`place(event, ready)` starts an instruction of one queue, whose operands are `ready`, as soon as queue and ports allow, and
returns when it has finished with its operands' memory. Where it had to wait longer it overwrites the event's cause."""

START_OF, DONE, DONE_HOP, FREE_HOP, OUTPUT_HOP, LANDED = range(6)
"""Moments of a producer that an edge waits for, see `moments` and `Resources.moments_of`. `LANDED` is when its result is there,
and the consumer's must not be there before: the consumer starts its own `Resources.lands_ns` earlier, see `landing`."""


def moments(work: Workload) -> Ints:
    """Which moment of its producer each edge waits for, int64[edges]."""
    engine = work.queue_of
    kinds, producers = work.kinds, engine[work.producers]
    consumers = np.repeat(engine, work.starts[1:] - work.starts[:-1])
    dma = np.array([queue.engine == "dma" for queue in work.queues], np.bool_)[producers]
    same = producers == consumers
    found = np.full(len(kinds), DONE_HOP, np.int64)
    found[kinds == OUTPUT] = OUTPUT_HOP
    found[kinds == WAR] = FREE_HOP
    found[((kinds == WAR) | (kinds == WAW)) & same] = START_OF  # one engine reads and writes in order: its queue binds
    found[(kinds == WAW) & same & landing(work)] = LANDED
    found[dma] = DONE  # the notification of a transfer is part of its time
    return found


def landing(work: Workload) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """True for each edge whose producer's result may come after the consumer's, if one engine runs them back to back.

    Results of one engine land in order where they meet in memory: a quick instruction that overwrites what a slow one makes
    starts late enough to be the last.
    """
    behind = work.cost("done_ns") - work.cost("busy_ns")
    consumers = np.repeat(np.arange(len(work.kind)), work.starts[1:] - work.starts[:-1])
    return np.asarray(behind[work.producers] > lands_ns(work)[consumers])


def lands_ns(work: Workload) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """From an instruction's start to its first result, of every event."""
    output, done = work.cost("output_ns"), work.cost("done_ns")
    return np.where(output > 0, output, done)


class Resources:
    """Queues, ports, PSUM banks, DMA engines and activation tables of all cores, as far as instructions were placed.

    Attributes:
      place: what starts an instruction, by queue.
      start, free, done: see `Times`.
      cause: the event that an instruction waits for, set by the scheduler before it places the instruction.
      reason: why; the scheduler sets it where the cause is not an edge.
      is_dma: True for the queues of DMA transfers.
      free_at: when each queue can start its next instruction.
      issuer: of each queue of transfers, the queue of the engine that triggers them; -1 if that engine does nothing else.
      shares_psum: True for the queues that exclude each other at PSUM.
      psum_ns, output_ns, busy_ns, tables: those of each event's cost.
      psum_free: until when the shared PSUM port of each core is taken.
      table_of: the activation table that each queue holds.
      table_ready: when it could hold another one, had it only been idle since the last instruction that needed a table.
      lands_ns: from each event's start to its first result.
      hop_ns: from one engine's semaphore to another engine's start.
    """

    def __init__(self, work: Workload) -> None:
        chip, queues, count = work.chip, work.queues, len(work.kind)
        self.work = work
        self.start, self.free, self.done, self.moves = ([0.0] * count for _ in range(4))
        self.reason, self.cause = [START] * count, [-1] * count
        self.hop_ns = float(chip.semaphore_hop_ns)
        self._kind = work.kind.tolist()
        self.is_dma = [queue.engine == "dma" for queue in queues]
        self.core_of = [queue.core for queue in queues]
        self.shares_psum = [bool(chip.psum_exclusive) and queue.engine in ("vector", "scalar") for queue in queues]
        self.free_at = [0.0] * len(queues)
        engines = {(queue.core, queue.engine): k for k, queue in enumerate(queues) if queue.engine != "dma"}
        self.issuer = [engines.get((queue.core, queue.name), -1) if queue.engine == "dma" else -1 for queue in queues]
        self._last, self._held = [-1] * len(queues), [BUSY] * len(queues)  # what the next instruction is behind, and why
        self.psum_ns = work.cost_list("psum_ns")
        cores = max(self.core_of, default=0) + 1
        self.psum_free = [0.0] * cores
        self.table_of, self.table_ready = [""] * len(queues), [0.0] * len(queues)
        self._psum_user, self._sbuf_user, self._sbuf_free = [-1] * cores, [-1] * cores, [0.0] * cores
        banks = max(work.banks, default=0) + max(work.spans, default=0) + 1
        self._bank_free, self._bank_user, self._bank_queue = [0.0] * banks, [-1] * banks, [-1] * banks
        self._gpsimd = [engines.get((core, "gpsimd"), -1) for core in range(cores)]
        self._written = [0.0] * cores  # until when GpSimd writes descriptors
        self._carriers = [[0.0] * int(chip.dma_engines) for _ in range(cores)]
        self.busy_ns = work.cost_list("busy_ns")
        self._done_ns = work.cost_list("done_ns")
        self.output_ns, self.tables = work.cost_list("output_ns"), work.cost_list("table")
        self._sbuf_ns = work.cost_list("sbuf_ns")
        self.lands_ns = lands_ns(work).tolist()
        starts = {"dma": self._transfer, "tensor": self._product}
        self.place = [starts.get(queue.engine, self._instruction)(k) for k, queue in enumerate(queues)]

    def moments_of(self, i: int) -> tuple[float, float, float, float, float, float]:
        """The moments of a placed instruction, by number."""
        start, done, hop = self.start[i], self.done[i], self.hop_ns
        return start, done, done + hop, self.free[i] + hop, start + self.output_ns[i] + hop, done

    def times(self) -> Times:
        """The times of every event, all of which have been placed."""
        dma = np.array(self.is_dma, np.bool_)[self.work.queue_of]
        start, free, done = np.array(self.start), np.array(self.free), np.array(self.done)
        reason, cause = np.array(self.reason, np.int8), np.array(self.cause, np.int64)
        edge = (reason == START) & (cause >= 0)
        reason[edge] = np.where(dma[cause[edge]], DMA, DEPENDENCY)
        return Times(start, free, done, np.where(dma, self.moves, start), reason, cause)

    def _transfer(self, queue: int) -> Place:
        costs, kind, carriers = self.work.cost_of_kind, self._kind, self._carriers[self.core_of[queue]]
        start, free, done, moves, reason, cause = self.start, self.free, self.done, self.moves, self.reason, self.cause
        chip = self.work.chip
        free_at, last, held, issuer, trigger_ns = self.free_at, -1, self._held, self.issuer[queue], float(chip.dma_trigger_ns)
        behind = self._last
        core, gpsimd, written = self.core_of[queue], self._gpsimd[self.core_of[queue]], self._written

        def place(i: int, ready: float) -> float:
            nonlocal last
            cost, at = costs[kind[i]], ready
            if issuer >= 0:
                if free_at[issuer] > at:
                    at, reason[i], cause[i] = free_at[issuer], held[issuer], behind[issuer]
                free_at[issuer] = at + trigger_ns
                held[issuer], behind[issuer] = reason[i], cause[i]
            if free_at[queue] >= at and last >= 0:
                at, reason[i], cause[i] = free_at[queue], BUSY, last
            payload = cost.payload_ns
            if cost.software_ns:  # GpSimd writes descriptors in its own order, while those written are carried out
                if written[core] > at:
                    at, reason[i] = written[core], BUSY
                if gpsimd >= 0:
                    if free_at[gpsimd] > at:
                        at, reason[i], cause[i] = free_at[gpsimd], held[gpsimd], behind[gpsimd]
                    free_at[gpsimd], held[gpsimd], behind[gpsimd] = at + cost.software_ns, BUSY, i
                written[core] = at + cost.software_ns
                payload = max(payload, cost.software_ns)
            begin, end = cost.first_engine, cost.first_engine + cost.engines
            first = max(at + cost.lead_ns, *carriers[begin:end]) if end > begin else at + cost.lead_ns
            carriers[begin:end] = [first + cost.payload_ns] * (end - begin)
            start[i], moves[i], done[i] = at, first, first + payload + cost.tail_ns
            free[i] = free_at[queue] = at + cost.busy_ns
            last = i
            return done[i]

        return place

    def _product(self, queue: int) -> Place:
        work, start, free, done, reason, cause = self.work, self.start, self.free, self.done, self.reason, self.cause
        busy_ns, done_ns, weight_ns, paced = self.busy_ns, self._done_ns, work.cost_list("weight_ns"), work.cost_list("paced")
        sustained = float(work.chip.tensor_sustained_fraction)
        slack_ns = (1 / sustained - 1) * float(work.chip.tensor_throttle_ns)
        paced_until = -slack_ns  # when the dense matmuls so far would end at the sustained rate
        free_at, last, held = self.free_at, self._last, self._held

        def place(i: int, ready: float) -> float:
            nonlocal paced_until
            at, before = ready + weight_ns[i], free_at[queue]
            if before >= at and before:
                at, reason[i], cause[i] = before, held[queue], last[queue]
            start[i], done[i] = at, at + done_ns[i]
            end = at + busy_ns[i]
            if paced[i]:
                paced_until = max(paced_until, at - slack_ns) + busy_ns[i] / sustained
                if paced_until > end:
                    done[i] += paced_until - end
                    end = paced_until
            free[i] = free_at[queue] = end
            last[queue], held[queue] = i, BUSY
            return end

        return place

    def _instruction(self, queue: int) -> Place:
        work, core = self.work, self.core_of[queue]
        start, free, done, reason, cause = self.start, self.free, self.done, self.reason, self.cause
        busy_ns, done_ns, psum_ns, sbuf_ns = self.busy_ns, self._done_ns, self.psum_ns, self._sbuf_ns
        tables = self.tables if work.queues[queue].engine == "scalar" else None
        shared, psum_free, psum_user = self.shares_psum[queue], self.psum_free, self._psum_user
        banks, bank_free, bank_user, bank_queue = work.banks, self._bank_free, self._bank_user, self._bank_queue
        spans = work.spans
        sbuf_free, sbuf_user = self._sbuf_free, self._sbuf_user
        free_at, last, held = self.free_at, self._last, self._held
        table_ns, table_of, table_ready = float(work.chip.scalar_table_load_ns), self.table_of, self.table_ready
        table_ready[queue] = table_ns

        def place(i: int, ready: float) -> float:
            at, before = ready, free_at[queue]
            if before >= at and before:
                at, reason[i], cause[i] = before, held[queue], last[queue]
            if tables is not None and tables[i] and tables[i] != table_of[queue]:
                table_of[queue] = tables[i]
                if table_ready[queue] > at:
                    at, reason[i], cause[i] = table_ready[queue], TABLE, last[queue]
            if psum_ns[i]:
                if shared:
                    if psum_free[core] > at:
                        at, reason[i], cause[i] = psum_free[core], PORT, psum_user[core]
                    psum_free[core], psum_user[core] = at + psum_ns[i], i
                else:
                    used = range(banks[i], banks[i] + spans[i])
                    for bank in used:
                        if bank_free[bank] > at and bank_queue[bank] != queue:
                            at, reason[i], cause[i] = bank_free[bank], PORT, bank_user[bank]
                    until = at + psum_ns[i]
                    for bank in used:
                        if until > bank_free[bank]:
                            bank_free[bank] = until
                        bank_user[bank], bank_queue[bank] = i, queue
            if sbuf_ns[i]:
                if sbuf_free[core] > at:
                    at, reason[i], cause[i] = sbuf_free[core], PORT, sbuf_user[core]
                sbuf_free[core], sbuf_user[core] = at + sbuf_ns[i], i
            start[i], done[i] = at, at + done_ns[i]
            free[i] = free_at[queue] = end = at + busy_ns[i]
            if tables is not None:
                table_ready[queue] = end + table_ns if tables[i] else table_ready[queue] + busy_ns[i]
            last[queue], held[queue] = i, BUSY
            return end

        return place
