"""The schedule of a kernel whose queues, ports, DMA engines and memory are all served in program order.

With given costs every time here is a maximum over times of earlier instructions plus constants (an activation table is
loaded in the idle time since the last instruction that needed one), so that nothing starts later because something else was
removed or became shorter. Spills alone, which decide events before this runs, are a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from nki_hf.observers.resources import Resources
from nki_hf.observers.times import MEMORY, START, Pool, Times
from nki_hf.observers.workload import Workload

__all__ = ["run_in_program_order"]


def run_in_program_order(work: Workload, order: Sequence[int] | None = None) -> Times:
    """Times of every event.

    Args:
      work: see `prepare`.
      order: the order in which events are taken, if it is not that of the stream.

    Raises:
      MemoryError: a pool overflows; the message names it.
    """
    resources = Resources(work)
    engine, starts, producers, kinds = work.engine, work.starts, work.producers, work.kinds
    allocations, touches = work.allocations, work.touches
    pools = [Pool.of(capacity) for _, _, capacity in work.pools]
    left = [item.uses for item in allocations]
    until = [0.0] * len(allocations)
    granted: list[tuple[float, int] | None] = [None] * len(allocations)  # when its memory was free, and who freed it

    for i in order if order is not None else range(len(work.costs)):
        queue = engine[i]
        ready, why, who = 0.0, START, -1
        for e in range(starts[i], starts[i + 1]):
            at, because = resources.available(producers[e], kinds[e], queue)
            if at > ready:
                ready, why, who = at, because, producers[e]
        for place in touches[i]:
            item = allocations[place]
            grant = granted[place]
            if grant is None:
                pool = pools[item.pool]
                if pool.room < item.nbytes:
                    raise MemoryError(
                        f"{work.pools[item.pool][1]} overflows at event {i}: {item.nbytes} B do not fit beside "
                        f"{pool.capacity - pool.room} B of {pool.capacity} B per partition."
                    )
                grant = granted[place] = pool.take(item.nbytes)
            if grant[1] >= 0:
                at = resources.granted(*grant, queue)
                if at > ready:
                    ready, why, who = at, MEMORY, grant[1]
        resources.place(i, ready, why, who)
        end = resources.last_use(i)
        for place in touches[i]:
            until[place] = max(until[place], end)
            left[place] -= 1
            if not left[place]:
                item = allocations[place]
                pools[item.pool].give(item.nbytes, until[place], i)
    return resources.times
