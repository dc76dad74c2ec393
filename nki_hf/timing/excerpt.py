"""Excerpt: pieces of a long workload, for what may be estimated from a part of the instructions."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np

from nki_hf.sim.stream.access_table import Ints
from nki_hf.timing.tiles import Tiles
from nki_hf.timing.workload import Workload

__all__ = ["excerpt"]


def excerpt(work: Workload, pieces: int, share: float) -> Workload:
    """Evenly spread pieces of a workload one after the other; what they need from outside is there from the start.

    Args:
      work: the workload.
      pieces: how many.
      share: of the events, in all of them together; from 0 to 1.
    """
    count = len(work.kind)
    length = int(count * share / pieces)
    begins = ((np.arange(pieces) + 0.5) * count / pieces - length / 2).astype(np.int64)
    kept = (begins[:, None] + np.arange(length)).reshape(-1)
    place = np.full(count, -1, np.int64)
    place[kept] = np.arange(len(kept))
    consumers = np.repeat(np.arange(count), np.diff(work.starts))
    edges = np.flatnonzero((place[consumers] >= 0) & (place[work.producers] >= 0))
    events = kept.tolist()
    forms, kind = np.unique(work.kind[kept], return_inverse=True)
    return replace(
        work,
        events=[work.events[i] for i in events],
        kind=kind,
        cost_of_kind=[work.cost_of_kind[form] for form in forms.tolist()],
        queue_of=work.queue_of[kept],
        starts=np.searchsorted(place[consumers[edges]], np.arange(len(kept) + 1)),
        producers=place[work.producers[edges]],
        kinds=work.kinds[edges],
        tiles=_tiles(work.tiles, events),
        no_reorder=[work.no_reorder[i] for i in events],
        banks=[work.banks[i] for i in events],
        spans=[work.spans[i] for i in events],
    )


def _tiles(tiles: Tiles, events: list[int]) -> Tiles:
    """The tiles that those events touch; each lives from the first to the last of them."""
    touches = [tiles.touches[i] for i in events]
    touched: Ints = np.array(list(chain.from_iterable(touches)), np.int64)
    event = np.repeat(np.arange(len(touches)), [len(used) for used in touches])
    taken, first = np.unique(touched, return_index=True)
    order = np.argsort(first, kind="stable")  # by their first use, as in Tiles.of
    taken, first = taken[order], event[first[order]]
    number = np.full(len(tiles.pool), -1, np.int64)
    number[taken] = np.arange(len(taken))
    tile = number[touched]
    last = np.zeros(len(taken), np.int64)
    last[tile] = event  # ascending, so that the last one stays
    numbers = number.tolist()
    return Tiles(
        pools=tiles.pools,
        pool=[tiles.pool[k] for k in taken.tolist()],
        nbytes=[tiles.nbytes[k] for k in taken.tolist()],
        first=first.tolist(),
        last=last.tolist(),
        uses=np.bincount(tile, minlength=len(taken)).tolist(),
        touches=[[numbers[k] for k in used] for used in touches],
    )
