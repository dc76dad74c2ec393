"""Where the instructions of a tile leave the law that nearly all instructions of their line follow.

A mask's offset is the row of its tile less the first of its keys, values are read where the keys were: the numbers that an
instruction is given, and the places that it reads and writes, follow from other places: those of its other operands, those
that its operands came from, the tile's rows and head. The law is linear, and says nothing about the order in which a kernel
goes over heads, tiles and keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nki_hf.sim.stream.access_table import Ints
from nki_hf.tools.judging.followed import Followed
from nki_hf.tools.judging.given_numbers import Given
from nki_hf.tools.judging.tile_events import TileEvents

__all__ = ["left_laws"]

Array = np.ndarray[Any, Any]
_LEAST = 8
"""Instructions of a line from which it has a law."""
_LEAVING = 0.125
"""Share of the instructions that may leave a law."""
_HEADS = 16
"""Heads up to which each may have an addend of its own."""
_KEYS = 24
"""Operands whose places are followed."""
_FAR = 10
"""Instructions over which a place is followed: from the load of keys over their product to that of the values."""
_NARROW = 0.125
"""Share of the largest operand, below which one is a statistic of its tile, and not what an instruction works on."""
_TRIALS, _STEPS = 4, 5
"""Fits of a law that not all follow: each begins with other instructions, and goes on with those that fit best."""
_EXACT = 1e-8


def left_laws(tiles: TileEvents) -> Iterator[tuple[tuple[Any, ...], Ints]]:
    """By a name, how often each tile leaves a law; only where one does."""
    events, times = np.unique(tiles.events, return_counts=True)
    order = np.argsort(tiles.labels[events], kind="stable")
    events, times = events[order], times[order]
    owner = np.zeros(len(tiles.labels), np.int64)
    owner[tiles.events] = tiles.owner
    given = Given(tiles)
    labels = tiles.labels[events]
    own, places, made = _places(tiles, events, given)
    rng = np.random.default_rng(0)
    for chosen in np.split(np.arange(len(events)), np.flatnonzero(np.diff(labels)) + 1):
        mine = events[chosen]
        if len(mine) < _LEAST:
            continue
        product = tiles.followed.events[int(mine[0])].opcode == "nc_matmul"  # where what came two ways meets
        known = {i: places[mine, i] for i in range(places.shape[1]) if np.isfinite(places[mine, i]).all()}
        wanted = [column for _, column in given.of(mine)]
        wanted += [column[mine] for name, column in tiles.offsets.items() if name.startswith("writes")]
        wanted += [column for i, column in known.items() if product or made[i] or own[mine[0], i]]
        wanted = [scaled for column in wanted if (scaled := _scaled(column)) is not None]
        if not wanted:
            continue
        beside = _tile_columns(tiles, owner[mine]) if (times[chosen] == 1).all() else ()
        columns = [scaled for column in (*known.values(), *beside) if (scaled := _scaled(column)) is not None]
        for number, column in enumerate(wanted):
            left = _left(columns, column, rng)
            if left.any():
                leaves = np.zeros(len(tiles.labels), np.bool_)
                leaves[mine[left]] = True
                by_tile = np.bincount(tiles.owner, leaves[tiles.events], tiles.count)
                yield ("law", int(labels[chosen[0]]), number), by_tile.astype(np.int64)


def _places(tiles: TileEvents, events: Ints, given: Given) -> tuple[Array, Array, list[bool]]:
    """Whether each event of the launch has a place itself, bool[events, places], the places that it has or follows from,
    float64[events, places], infinite where it has none, and whether each is a number that nothing is read for (of an iota).

    Of several places of one operand it is the least. What is much smaller than the largest operand tells no place.
    """
    keys = _keys(tiles, events, given)
    found = np.full((len(tiles.labels), len(keys)), np.inf)
    for place, (mine, column, _) in enumerate(keys):
        found[mine, place] = column
    own, made = np.isfinite(found), [is_made for _, _, is_made in keys]
    producers, consumers = _wide_pairs(tiles.followed)
    if not keys or not len(consumers):
        return own, found, made
    begins = np.flatnonzero(np.diff(consumers, prepend=-1))
    into = consumers[begins]
    for _ in range(_FAR):
        reached = np.minimum.reduceat(found[producers], begins)
        fresh = np.where(own[into], found[into], np.minimum(found[into], reached))
        if (fresh == found[into]).all():
            break
        found[into] = fresh
    return own, found, made


def _keys(tiles: TileEvents, events: Ints, given: Given) -> list[tuple[Ints, Array, bool]]:
    """The operands that are read at the most places, and numbers of what reads nothing: events, the column, which of both."""
    found: list[tuple[int, Ints, Array, bool]] = []
    labels = tiles.labels[events]
    reads = [column for name, column in tiles.offsets.items() if name.startswith("reads")]
    for mine in np.split(events, np.flatnonzero(np.diff(labels)) + 1):
        columns = [(column[mine], False) for column in reads if not np.isnan(column[mine[0]])]
        columns = columns or [(column, True) for _, column in given.of(mine)]
        for column, is_made in columns:
            if (column != column[0]).any():
                found.append((-len(np.unique(column)), mine, column, is_made))
    return [key[1:] for key in sorted(found, key=lambda key: key[0])[:_KEYS]]


def _wide_pairs(followed: Followed) -> tuple[Ints, Ints]:
    """Producers and consumers, by consumer, without what is much smaller than the largest that a consumer takes."""
    table = followed.table
    producers, starts = followed.pairs()
    consumers = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    if not len(producers):
        return producers, consumers
    sizes = np.array([region.elements for region in table.forms], np.int64)[table.form] * table.writes
    written = np.zeros(len(table.reads), np.int64)
    np.maximum.at(written, table.event, sizes)
    begins = np.flatnonzero(np.diff(consumers, prepend=-1))
    largest = np.repeat(np.maximum.reduceat(written[producers], begins), np.diff([*begins, len(producers)]))
    wide = written[producers] >= _NARROW * largest
    return producers[wide], consumers[wide]


def _tile_columns(tiles: TileEvents, owner: Ints) -> Iterator[Array]:
    """The tile's place in its head, and the head."""
    head, row = np.divmod(owner, tiles.per_head)
    yield row
    heads = np.unique(head)
    yield from (head == one for one in heads[1:]) if len(heads) <= _HEADS else (head,)


def _left(columns: list[Array], wanted: Array, rng: np.random.Generator) -> Array:
    """Which instructions leave the law of a number: what nearly all have, or what follows from the places of nearly all; none
    where it has no law.

    Args:
      columns: the places, each float64[instructions] from 0 to 1.
      wanted: the number, scaled like them; where it is one of the places, what it follows from is looked for in the others.
      rng: chooses instructions.
    """
    nobody = np.zeros(len(wanted), np.bool_)
    values, counts = np.unique(wanted, return_counts=True)
    most = len(wanted) - max(1, int(_LEAVING * len(wanted)))
    if counts.max() >= most:
        return np.asarray(wanted != values[counts.argmax()])
    known = [column - column.mean() for column in columns if not np.array_equal(column, wanted)]
    if not known:
        return nobody
    basis, sizes, _ = np.linalg.svd(np.stack(known, 1), full_matrices=False)
    basis = np.concatenate([basis[:, sizes > _EXACT * sizes[0]] * len(wanted) ** 0.5, np.ones((len(wanted), 1))], 1)
    if len(wanted) < 2 * (basis.shape[1] + 1):
        return nobody
    for trial in range(_TRIALS):
        kept = rng.permutation(len(wanted))[: 3 * basis.shape[1]] if trial else np.arange(len(wanted))
        for _ in range(_STEPS):
            away = np.abs(basis @ _fit(basis[kept], wanted[kept]) - wanted)
            if np.count_nonzero(away <= _EXACT) >= most:
                return np.asarray(away > _EXACT)
            kept, before = np.sort(np.argpartition(away, most - 1)[:most]), kept
            if np.array_equal(kept, before):
                break
    return nobody


def _fit(known: Array, wanted: Array) -> Array:
    """Factors by which `wanted` follows from columns, by least squares; some, where the columns are too alike."""
    square = known.T @ known
    square.flat[:: len(square) + 1] += 1e-12 * len(known)
    return np.asarray(np.linalg.solve(square, known.T @ wanted))


def _scaled(column: Array) -> Array | None:
    """A column of numbers from 0 to 1; None where all are alike, or some have none."""
    low, high = float(column.min()), float(column.max())
    return (column - low) / (high - low) if low < high else None  # not of NaN, either
