"""The tiles of an output whose program is most unlike that of the others: a kernel that errs in few tiles errs there.

Each tile of 128 rows has some numbers: how many instructions of a kind feed others, with which numbers in them, where memory
is read, how often it leaves the steps of the others (tile_steps.py), or the law by which numbers and places of a line follow
from each other (tile_laws.py). Tiles of a loop agree in most of them, so a number that few tiles have is odd where most have
another one. What is odd need not be wrong (a first or last tile may be another branch): it only says where values are worth a
run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain, combinations
from typing import Any

import numpy as np

from nki_hf.sim.run.play import Marks
from nki_hf.sim.stream.access_table import Ints
from nki_hf.tools.judging.followed import Followed
from nki_hf.tools.judging.tile_events import TileEvents, tile_events
from nki_hf.tools.judging.tile_laws import left_laws
from nki_hf.tools.judging.tile_steps import left_steps

__all__ = ["odd_tiles"]

Array = np.ndarray[Any, Any]
_MOST = 0.5
"""Share of the tiles that agree in a number, below which it says nothing."""
_ODD = math.log(2)
"""Least oddness; that of a number is the logarithm of how much rarer it is than the commonest, that of a step or a law that is
left the square of it, for few tiles of right kernels leave one that nearly all keep."""
_TILES, _EVENTS = 1024, 3_000_000
"""Tiles, and events of all tiles together, up to which they are compared."""
_SEEN = 0.25
"""What an oddness counts that a tile before has, too."""
_GIVEN, _HERE, _COUNT = "given", "here", "count"
"""Kinds of a tile's numbers: a sum over forms, a place (another head is elsewhere), anything else."""


def odd_tiles(
    owner: Array, number: int, tape: Mapping[str, Any], followed: Followed, marks: Mapping[int, Marks], per_head: int
) -> list[int]:
    """The tiles that are most unlike the others, one of each kind; none if none is odd, or there are too few or too many.

    Args:
      owner: the tile of each element of the output, in the order of its buffer.
      number: the output's buffer.
      tape, followed, marks: of the launch.
      per_head: tiles of each head, or of each entry of a batch; tiles are numbered head by head.
    """
    count = int(owner.max()) + 1
    if not 4 <= count <= _TILES:
        return []
    tiles = tile_events(owner, number, tape, followed, marks, per_head, _EVENTS)
    if tiles is None or not len(tiles.events):  # a loop of run time writes where its turn says: no tile has events of its own
        return []
    rarities = [rarity for kind, values in _numbers(tiles) if (rarity := _oddness(values, kind, per_head)) is not None]
    kinds: list[Array] = [np.round(rarity, 6) for rarity in rarities]
    for _, left in chain(left_steps(tiles), left_laws(tiles)):
        rarities.append((left > 0) * math.log(count / np.count_nonzero(left)) ** 2)
        kinds.append(left)
    return _chosen(np.stack(rarities, 1), np.stack(kinds, 1)) if rarities else []


def _chosen(rarities: Array, kinds: Array) -> list[int]:
    """The odd tiles, the oddest first; what tiles before have, too, counts for less.

    Args:
      rarities: float64[tiles, numbers].
      kinds: a number for each kind of oddness in the same place.
    """
    rarities, found = rarities.copy(), list[int]()
    while len(found) < len(rarities):
        sums = rarities.sum(1)
        tile = int(sums.argmax())
        if sums[tile] < _ODD:
            break
        found.append(tile)
        rarities[kinds == kinds[tile]] *= _SEEN
        rarities[tile] = 0
    return found


def _numbers(tiles: TileEvents) -> Iterator[tuple[str, Array]]:
    """The numbers of all tiles, each with its kind."""
    producers, ends = tiles.followed.pairs()
    reached, of = _expanded(ends[tiles.events], ends[tiles.events + 1])
    feeds = tiles.labels[producers[reached]] * (int(tiles.labels.max()) + 1) + tiles.label[of]
    for values in _summed(feeds, tiles.owner[of], tiles.count):
        yield _COUNT, values
    weights = np.random.default_rng(0).integers(1, 1 << 31, int(tiles.given.max()) + 2)  # the last one is that of no form
    for values in _summed(tiles.label, tiles.owner, tiles.count, weights[tiles.given[tiles.events]]):
        yield _GIVEN, values
    yield from _places(tiles)


def _places(tiles: TileEvents) -> Iterator[tuple[str, Array]]:
    """How many places of each input, and of what each line allocates, are read; the first, the last, and between inputs."""
    table, count = tiles.followed.table, tiles.count
    accesses, of = _expanded(table.starts[tiles.events], table.starts[tiles.events] + table.reads[tiles.events])
    known: dict[Any, int] = {}
    for buffer in sorted(table.buffers, key=lambda buffer: (buffer.role != "input", buffer.number)):
        known.setdefault(buffer.number if buffer.role == "input" else (buffer.file, buffer.line), len(known))
    read = [known[buffer.number if buffer.role == "input" else (buffer.file, buffer.line)] for buffer in table.buffers]
    offsets, place = np.unique(np.array([form.offset for form in table.forms], np.int64), return_inverse=True)
    group = np.array(read, np.int64)[table.buffer[accesses]] * count + tiles.owner[of]
    distinct = np.unique(group * len(offsets) + place[table.form[accesses]])
    groups, begins, counts = np.unique(distinct // len(offsets), return_index=True, return_counts=True)
    values: Array = np.zeros((3, len(known) * count), np.int64)
    values[:, groups] = counts, offsets[distinct[begins] % len(offsets)], offsets[distinct[begins + counts - 1] % len(offsets)]
    values = values.reshape(3, len(known), count)
    for many, first, last in values.swapaxes(0, 1):
        if many.any():
            yield from ((_COUNT, many), (_HERE, first), (_HERE, last))
    inputs = [i for of, i in known.items() if isinstance(of, int) and values[0, i].any()]
    for one, other in combinations(inputs, 2):
        for edge in (1, 2):
            yield _COUNT, values[edge, other] - values[edge, one]


def _expanded(begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """All numbers from each begin to its end, one range after the other, and the range that each is of."""
    counts = ends - begins
    of = np.repeat(np.arange(len(counts)), counts)
    return np.arange(int(counts.sum())) + np.repeat(begins - (np.cumsum(counts) - counts), counts), of


def _summed(keys: Ints, owner: Ints, count: int, weights: Ints | None = None) -> Array:
    """How often each key is there in each tile, or the sum of its weights, int64[keys, tiles]."""
    found, inverse = np.unique(keys, return_inverse=True)
    sums = np.bincount(inverse * count + owner, weights, len(found) * count)
    return sums.astype(np.int64).reshape(-1, count)


def _oddness(values: Array, kind: str, per_head: int) -> Array | None:
    """How odd each tile is by one number, as it is or by how it grows from tile to tile of a head; None if it says nothing."""
    if kind == _GIVEN:
        return _rarity(values)
    rows = values.reshape(-1, per_head)
    if kind == _HERE:
        rows = rows - rows[:, :1]
    found = _rarity(rows)
    if found is None and per_head > 3:
        steps, counts = np.unique(np.diff(rows), return_counts=True)
        found = _rarity(rows - steps[counts.argmax()] * np.arange(per_head))
    if found is None and per_head > 3:
        bent = np.zeros_like(rows)
        bent[:, 1:-1] = 2 * rows[:, 1:-1] - rows[:, :-2] - rows[:, 2:]
        found = _rarity(bent)
    return found


def _rarity(values: Array) -> Array | None:
    """How much rarer each value is than the commonest, as a logarithm; None where none is common."""
    _, inverse, counts = np.unique(values.reshape(-1), return_inverse=True, return_counts=True)
    if counts.max() < _MOST * values.size:
        return None
    return np.asarray(np.log(counts.max() / counts[inverse]))
