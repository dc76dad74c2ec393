"""Where the tiles of an output leave the steps that the others keep.

The n-th instruction of a line reads, from tile to tile, at the same place or one step further, takes the results of the same
instructions, and is given the same numbers or numbers that grow by a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nki_hf.sim.stream.access_table import Ints
from nki_hf.tools.judging.given_numbers import Given
from nki_hf.tools.judging.tile_events import TileEvents

__all__ = ["left_steps"]

Array = np.ndarray[Any, Any]
_SPACE = 20_000_000
"""Elements of the table of one line, tiles by instructions, up to which it is looked at."""
_LANES = 32
"""Heads up to which each is looked at by itself."""
_KNOWN = 3
"""Steps from tile to tile from which the usual one is told."""


def left_steps(tiles: TileEvents) -> Iterator[tuple[tuple[Any, ...], Ints]]:
    """By a name, how often each tile leaves the steps of the others; only where one does.

    Where the tiles of a head are too few, heads are compared as tiles are.
    """
    per_head = tiles.per_head if tiles.per_head > _KNOWN else tiles.count
    events, owner, label = tiles.events, tiles.owner, tiles.label
    rank = _ranks(owner, label)
    values = {name: column[events] for name, column in tiles.offsets.items()}
    values["operands"] = _operands(tiles, rank)
    given = Given(tiles)
    order = np.argsort(label, kind="stable")
    for chosen in np.split(order, np.flatnonzero(np.diff(label[order])) + 1):
        count = int(rank[chosen].max()) + 1
        if tiles.count * count > _SPACE:
            continue
        for name, column in (*((name, found[chosen]) for name, found in values.items()), *given.of(events[chosen])):
            if np.isnan(column[0]) or (column == column[0]).all():  # all of a line have an operand, or none
                continue
            table = np.full((tiles.count, count), np.nan)
            table[owner[chosen], rank[chosen]] = column
            left = _left(table.reshape(-1, per_head, count)).reshape(-1)
            if left.any():
                yield ("steps", int(label[chosen[0]]), name), left


def _ranks(owner: Ints, label: Ints) -> Ints:
    """How many events of the same label each tile has before each of its events."""
    order = np.lexsort((label, owner))
    group = np.stack([owner[order], label[order]])
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (np.diff(group, axis=1) != 0).any(0)
    starts = np.flatnonzero(begins)
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    return found


def _operands(tiles: TileEvents, rank: Ints) -> Array:
    """A number for which events of its tile each event takes results from; it grows by a step where all of them do."""
    events, owner, label, followed = tiles.events, tiles.owner, tiles.label, tiles.followed
    weights = np.random.default_rng(0).integers(1, 1 << 20, int(label.max()) + 1)  # one line's events are not another's
    found = np.zeros(len(events))
    place = np.zeros(len(followed.events), np.int64)
    pairs, starts = followed.pairs()
    for tile in range(tiles.count):
        mine = slice(*np.searchsorted(owner, [tile, tile + 1]))
        place[events[mine]] = weights[label[mine]] * (rank[mine] + 1)
        counts = starts[events[mine] + 1] - starts[events[mine]]
        ends = np.cumsum(counts)
        reached = np.arange(int(counts.sum())) + np.repeat(starts[events[mine]] - (ends - counts), counts)
        sums = np.concatenate([[0], np.cumsum(place[pairs[reached]])])
        found[mine] = sums[ends] - sums[ends - counts]
    return found


def _left(table: Array) -> Ints:
    """How often each tile leaves the usual steps, [heads, tiles of a head]; `table` has [.., instructions] too.

    All tiles have one usual step; where they have not (heads, or every second tile, run their blocks the other way round), each
    head has, or every second tile of it.
    """
    found = np.zeros(table.shape[:2], np.int64)
    known = (~np.isnan(np.diff(table, axis=1))).sum(1)
    silent = np.broadcast_to((known >= _KNOWN)[:, None], table.shape).copy()
    heads = range(table.shape[0]) if table.shape[0] <= _LANES else ()
    lanes: list[tuple[slice, slice]] = [(slice(None), slice(None))]
    lanes += [(slice(head, head + 1), slice(None)) for head in heads]
    lanes += [(slice(head, head + 1), slice(first, None, 2)) for head in heads for first in (0, 1)]
    for lane in lanes:
        columns = silent[lane].any((0, 1))
        if columns.any() and table[lane].shape[1] > _KNOWN:
            left, says = _left_of_lane(table[lane][:, :, columns])
            found[lane] += (left & silent[lane][:, :, columns]).sum(-1)
            silent[(*lane, np.flatnonzero(columns)[says])] = False
    return found


def _left_of_lane(table: Array) -> tuple[Array, Array]:
    """Where tiles of a lane leave its usual step, bool in the shape of `table`, and whether each instruction has one.

    The usual step is the one of the middle; an instruction where less than half keep it says nothing. A tile has left where
    neither the step to it nor that from it is the usual one; the first one and the last where theirs is not and the next is.
    """
    steps = np.diff(table, axis=1)
    flat = np.sort(steps.reshape(-1, steps.shape[-1]), axis=0)
    known = (~np.isnan(flat)).sum(0)
    usual = flat[np.maximum(known - 1, 0) // 2, np.arange(flat.shape[1])]
    missing = np.isnan(steps)
    other = ~missing & (steps != usual)
    says = (known >= _KNOWN) & (other.sum((0, 1)) * 2 <= known)
    to, comes = _shifted(other, 1), _shifted(missing, 1) | _ends(table, 0)  # of the step to each tile
    away, goes = _shifted(other, 0), _shifted(missing, 0) | _ends(table, -1)
    first, last = comes & away & ~_shifted(other, -1), goes & to & ~_shifted(other, 2)
    return ((to & away) | first | last) & says, says


def _shifted(steps: Array, back: int) -> Array:
    """For each tile, the step that many before the one from it to the next; False where there is none."""
    found = np.zeros((steps.shape[0], steps.shape[1] + 1, steps.shape[2]), np.bool_)
    begin, end = max(back, 0), steps.shape[1] + min(back, 1)
    found[:, begin:end] = steps[:, begin - back : end - back]
    return found


def _ends(table: Array, place: int) -> Array:
    found = np.zeros_like(table, np.bool_)
    found[:, place] = True
    return found
