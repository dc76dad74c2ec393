"""Memory uses: which instructions must look at a tile's memory as they start, and which as they end.

An instruction that waits for another user of the tile, through an edge, starts after that one has its memory, and later
than the memory was free. So only uses without such an edge ask for memory. Likewise a use is not the last of its tile if
another user waits for it, and need not be counted if that one can be seen to end later.
"""

from __future__ import annotations

import numpy as np

from nki_hf.observers.resources import DONE_HOP, OUTPUT_HOP
from nki_hf.observers.workload import Workload
from nki_hf.sim.access_table import Ints

__all__ = ["asking", "closing"]

_LATER_NS = 1e-3
"""What is later by this much in exact arithmetic is later in floating point too."""


def asking(work: Workload) -> list[tuple[int, ...]]:
    """Events -> the tiles of which no user precedes it through an edge, what it writes before what it reads."""
    mine = work.shared >= 0
    consumers = np.repeat(np.arange(len(work.kind)), work.starts[1:] - work.starts[:-1])
    return work.tiles.uses_except(consumers[mine], work.shared[mine])


def closing(work: Workload, moments: Ints) -> list[tuple[int, ...]]:
    """Events -> the tiles that it may be the last user of, or the one that ends last.

    Args:
      work: the events.
      moments: what each edge waits for, see `moments`.
    """
    held = work.cost("busy_ns") - float(work.chip.semaphore_hop_ns) + _LATER_NS  # after its start, less the hop of the edge
    late = np.zeros((OUTPUT_HOP + 1, len(held)), np.bool_)  # the other moments are not before the end
    late[DONE_HOP], late[OUTPUT_HOP] = held > work.cost("done_ns"), held > work.cost("output_ns")
    engine = work.queue_of
    same = engine[work.producers] == np.repeat(engine, work.starts[1:] - work.starts[:-1])
    later = (work.shared >= 0) & (same | ~late[moments, work.producers])
    return work.tiles.uses_except(work.producers[later], work.shared[later])
