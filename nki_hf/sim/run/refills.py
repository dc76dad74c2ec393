"""What a replay has to fill again with the sentinel, so that never-written elements are those of a fresh run.

A fresh run fills each allocation. A replay runs in memory that holds what the replay before left there, which shows where
this one writes less of it: fewer turns of a loop, other indices of a scatter, other rows that are skipped, or a read before
the first write. Allocations that their first write covers, whatever values the run has, need none of that.
"""

from __future__ import annotations

import functools

from nki_hf.sim.execution.actions import Access, Action
from nki_hf.sim.execution.run import Run
from nki_hf.sim.execution.storage import fill_sentinel

__all__ = ["refilled"]


def refilled(run: Run) -> list[Action]:
    """Put the filling of tiles where they are allocated into the run's actions; that of HBM is returned, to go first.

    Tiles share memory with what was alive before them, HBM does not.
    """
    tiles = [(item, functools.partial(fill_sentinel, item.data, item.buffer.dtype)) for item in run.refills.values()]
    first: list[Action] = [fill for item, fill in tiles if not item.buffer.on_chip]
    tiles = [(item, fill) for item, fill in tiles if item.buffer.on_chip]
    for item, fill in sorted(tiles, key=lambda tile: tile[0].place, reverse=True):
        machine = run.cores[item.buffer.core or 0]
        machine.actions.insert(item.place, fill)
        machine.accesses.insert(item.place, Access((), (item.buffer.number,), True))
    for item, fill in sorted(tiles, key=lambda tile: tile[0].place_in_order, reverse=True):
        run.order.insert(item.place_in_order, fill)
    return first
