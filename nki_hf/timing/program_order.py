"""The schedule of a kernel whose queues, ports, DMA engines and memory are all served in program order.

With given costs every time here is a maximum over times of earlier instructions plus constants (an activation table is
loaded in the idle time since the last instruction that needed one), so that nothing starts later because something else was
removed or became shorter. Spills alone, which decide events before this runs, are a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from nki_hf.timing.resources import LANDED, Resources, moments
from nki_hf.timing.times import MEMORY, Pool, Times
from nki_hf.timing.workload import Workload

__all__ = ["run_in_program_order"]


def run_in_program_order(work: Workload, order: Sequence[int] | None = None) -> Times:
    """Times of every event.

    Args:
      work: see `prepare`.
      order: the order in which events are taken, if it is not that of the stream.

    Raises:
      MemoryError: a pool overflows; the message names it.
    """
    resources, tiles = Resources(work), work.tiles
    engine, moment = work.engine, moments(work).tolist()
    starts, producers = work.starts.tolist(), work.producers.tolist()
    cause, place, hop_ns, is_dma = resources.cause, resources.place, resources.hop_ns, resources.is_dma
    lands_ns = resources.lands_ns
    moments_of: list[tuple[float, ...]] = [()] * len(work.kind)
    pools = [Pool(capacity) for _, _, capacity in tiles.pools]
    left = tiles.uses.copy()
    until = [0.0] * len(left)
    granted: list[tuple[float, int] | None] = [None] * len(left)  # when its memory was free, and who freed it

    for i in order if order is not None else range(len(work.kind)):
        queue = engine[i]
        ready = 0.0
        for e in range(starts[i], starts[i + 1]):
            at = moments_of[producers[e]][moment[e]]
            if moment[e] == LANDED:
                at -= lands_ns[i]
            if at > ready:
                ready, cause[i] = at, producers[e]
        for tile in tiles.touches[i]:
            grant = granted[tile]
            if grant is None:
                pool = pools[tiles.pool[tile]]
                if pool.room < tiles.nbytes[tile]:
                    raise MemoryError(
                        f"{tiles.pools[tiles.pool[tile]][1]} overflows at event {i}: {tiles.nbytes[tile]} B do not fit beside "
                        f"{pool.capacity - pool.room} B of {pool.capacity} B per partition."
                    )
                grant = granted[tile] = pool.take(tiles.nbytes[tile])
            at, freed_by = grant
            if freed_by >= 0:
                if engine[freed_by] != queue and not is_dma[engine[freed_by]]:
                    at += hop_ns
                if at > ready:
                    ready, cause[i], resources.reason[i] = at, freed_by, MEMORY
        end = place[queue](i, ready)
        moments_of[i] = resources.moments_of(i)
        for tile in tiles.touches[i]:
            until[tile] = max(until[tile], end)
            left[tile] -= 1
            if not left[tile]:
                pools[tiles.pool[tile]].give(tiles.nbytes[tile], until[tile], i)
    return resources.times()
