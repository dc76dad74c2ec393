"""The schedule of a kernel whose queues, ports, DMA engines and memory are all served in program order.

Every time here is a maximum over times of earlier instructions plus a constant, so that nothing ever starts later because
something else was removed or became shorter.
"""

from __future__ import annotations

from collections.abc import Sequence

from nki_hf.observers.times import BUSY, DEPENDENCY, DMA, MEMORY, PORT, START, TABLE, Pool, Times
from nki_hf.observers.workload import Workload
from nki_hf.sim.dependencies import WAR, WAW

__all__ = ["run_in_program_order"]


def run_in_program_order(work: Workload, order: Sequence[int] | None = None) -> tuple[Times, list[Pool]]:
    """Times of every event and the memory pools after the run.

    Args:
      work: see `prepare`.
      order: the order in which events are taken, if it is not that of the stream.

    Raises:
      MemoryError: a pool overflows even in program order; the message names it.
    """
    chip, costs, engine = work.chip, work.costs, work.engine
    starts, producers, kinds = work.starts, work.producers, work.kinds
    count = len(costs)
    times = Times.empty(count)
    start, free, done, moves, reason, cause = times.start, times.free, times.done, times.moves, times.reason, times.cause
    hop = chip.semaphore_hop_ns
    queues = work.queues
    is_dma = [queue.engine == "dma" for queue in queues]
    is_tensor = [queue.engine == "tensor" for queue in queues]
    shares_psum = [bool(chip.psum_exclusive) and queue.engine in ("vector", "scalar") for queue in queues]
    core_of = [queue.core for queue in queues]
    last_of: list[int] = [-1] * len(queues)
    free_at = [0.0] * len(queues)
    cores = max(core_of, default=0) + 1
    psum_port, psum_user = [0.0] * cores, [-1] * cores
    bank_port: dict[int, tuple[float, int, int]] = {}
    sbuf_port, sbuf_user = [0.0] * cores, [-1] * cores
    dma_free = [[0.0] * int(chip.dma_engines) for _ in range(cores)]
    tables = [""] * cores
    pools = [Pool.of(capacity) for _, _, capacity in work.pools]
    allocations, opens, touches = work.allocations, work.opens, work.touches
    left = [item.uses for item in allocations]
    until = [0.0] * len(allocations)

    for i in order if order is not None else range(count):
        cost, queue = costs[i], engine[i]
        core = core_of[queue]
        ready, why, who = 0.0, START, -1
        for e in range(starts[i], starts[i + 1]):
            p = producers[e]
            kind = kinds[e]
            same = engine[p] == queue
            if kind == WAR:
                t = done[p] if is_dma[engine[p]] else free[p] if same else free[p] + hop
            elif is_dma[engine[p]]:
                t = done[p]
            elif kind == WAW and same:
                t = free[p]
            else:
                t = done[p] + hop
            if t > ready:
                ready, why, who = t, DMA if is_dma[engine[p]] else DEPENDENCY, p
        if cost.weight_ns and is_tensor[queue]:
            ready += cost.weight_ns
        if i in opens:
            for place in opens[i]:
                item = allocations[place]
                pool = pools[item.pool]
                if pool.room < item.nbytes:
                    name = work.pools[item.pool][1]
                    raise MemoryError(
                        f"{name} overflows at event {i}: {item.nbytes} B more than {pool.capacity} B per partition."
                    )
                t, p = pool.take(item.nbytes)
                if p >= 0 and not is_dma[engine[p]] and engine[p] != queue:
                    t += hop
                if t > ready:
                    ready, why, who = t, MEMORY, p
        at = ready
        if free_at[queue] >= at and last_of[queue] >= 0:
            at, why, who = free_at[queue], BUSY, last_of[queue]
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
            if cost.table and tables[core] != cost.table and queues[queue].engine == "scalar":
                tables[core] = cost.table
                loaded = free_at[queue] + chip.scalar_table_load_ns
                if loaded > at:
                    at, why, who = loaded, TABLE, last_of[queue]
            if cost.psum_ns and shares_psum[queue]:
                if psum_port[core] > at:
                    at, why, who = psum_port[core], PORT, psum_user[core]
                psum_port[core], psum_user[core] = at + cost.psum_ns, i
            elif cost.psum_ns:
                bank = work.banks[i]
                busy_until, user, user_queue = bank_port.get(bank, (0.0, -1, queue))
                if busy_until > at and user_queue != queue:
                    at, why, who = busy_until, PORT, user
                bank_port[bank] = (max(at + cost.psum_ns, busy_until), i, queue)
            if cost.sbuf_ns:
                if sbuf_port[core] > at:
                    at, why, who = sbuf_port[core], PORT, sbuf_user[core]
                sbuf_port[core], sbuf_user[core] = at + cost.sbuf_ns, i
            start[i] = moves[i] = at
            free[i] = at + cost.busy_ns
            done[i] = at + cost.done_ns
        free_at[queue], last_of[queue] = free[i], i
        reason[i], cause[i] = why, who
        for place in touches[i]:
            end = done[i] if is_dma[queue] else free[i]
            if end > until[place]:
                until[place] = end
            left[place] -= 1
            if not left[place]:
                item = allocations[place]
                pools[item.pool].give(item.nbytes, until[place], i)
    return times, pools
