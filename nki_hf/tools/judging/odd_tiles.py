"""The tiles of an output whose program is most unlike that of the others: a kernel that errs in few tiles errs there.

Each tile of 128 rows has some numbers: how many instructions of a kind feed others, with which numbers in them, where memory
is read, how often it leaves the steps of the others (tile_steps.py). Tiles of a loop agree in most of them, so a number that
few tiles have is odd where most have another one. What is odd need not be wrong (a first or last tile may be another branch):
it only says where values are worth a run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from nki_hf.sim.run.play import Marks
from nki_hf.sim.stream.events import Event
from nki_hf.sim.stream.region_elements import elements_of
from nki_hf.tools.judging.followed import Followed
from nki_hf.tools.judging.tile_steps import left_steps

__all__ = ["odd_tiles"]

Array = np.ndarray[Any, Any]
_MOST = 0.5
"""Share of the tiles that agree in a number, below which it says nothing."""
_ODD = math.log(2)
"""Least oddness; that of a number is the logarithm of how much rarer it is than the commonest, that of a step that is left the
square of it, for few tiles of right kernels leave one that nearly all keep."""
_TILES, _EVENTS = 1024, 3_000_000
"""Tiles, and events of all tiles together, up to which they are compared."""
_CHOSEN = 4
"""Odd tiles at most."""
_OPERATORS = ("op", "op0", "op1", "reduce", "perf_mode", "is_transpose")


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
    tiles = [followed.sources(wanted) for wanted in _writers(owner.reshape(-1), number, followed.events, count)]
    if sum(map(len, tiles)) > _EVENTS:
        return []
    numbers = _numbers_of(followed.events, tape, marks)
    labels = _labels(followed.events)
    found = [Counter(_features(tile, followed, labels, numbers)) for tile in tiles]
    rarities = []
    for name in sorted(set().union(*found), key=repr):
        values = np.array([features[name] for features in found], np.int64)
        if (rarity := _oddness(values, name, per_head)) is not None:
            rarities.append(rarity)
    for _, left in left_steps(tiles, followed, labels, numbers, tape["forms"], per_head):
        rarities.append((left > 0) * math.log(count / np.count_nonzero(left)) ** 2)
    if not rarities:
        return []
    by_tile = np.round(np.stack(rarities, 1), 6)
    chosen: dict[bytes, int] = {}
    for tile in np.argsort(-by_tile.sum(1), kind="stable").tolist():
        if by_tile[tile].sum() < _ODD or len(chosen) == _CHOSEN:
            break
        chosen.setdefault(by_tile[tile].tobytes(), tile)
    return list(chosen.values())


def _writers(owner: Array, number: int, events: Sequence[Event], count: int) -> list[list[int]]:
    """By tile, the events that write elements of it."""
    found: list[list[int]] = [[] for _ in range(count)]
    for event in events:
        for region in event.writes:
            tiles = elements_of(owner, region) if region.buffer.number == number else None
            for tile in () if tiles is None else np.unique(tiles).tolist():
                found[tile].append(event.index)
    return found


def _numbers_of(events: Sequence[Event], tape: Mapping[str, Any], marks: Mapping[int, Marks]) -> list[int]:
    """A number for what each event's instruction is given beside tensors: one for each form of the tape."""
    found = [-1] * len(events)
    for core, mark in marks.items():
        for entry, begin, end in zip(tape["cores"][str(core)], mark.events, mark.events[1:], strict=False):
            if entry[0] == "isa" and entry[2][0] == "f":
                for index in range(begin, end):
                    if events[index].core == core:
                        found[index] = entry[2][1]
    return found


def _labels(events: Sequence[Event]) -> list[int]:
    """A number for the line, opcode, operators and shapes of each event."""
    known: dict[Any, int] = {}
    found = []
    for event in events:
        operators = tuple(str(event.attrs[name]) for name in _OPERATORS if event.attrs.get(name))
        shapes = tuple((region.shape, region.dtype.name) for region in (*event.reads, *event.writes))
        key = event.file, event.line, event.opcode, operators, shapes
        found.append(known.setdefault(key, len(known)))
    return found


def _features(
    tile: Sequence[int], followed: Followed, labels: Sequence[int], numbers: Sequence[int]
) -> dict[tuple[Any, ...], int]:
    """The numbers of a tile, each by a name."""
    found: Counter[tuple[Any, ...]] = Counter()
    given: dict[int, Counter[int]] = {}
    places: dict[Any, set[int]] = {}
    for index in tile:
        label = labels[index]
        given.setdefault(label, Counter())[numbers[index]] += 1
        for producer in followed.producers(index):
            found["feeds", labels[producer], label] += 1
        for region in followed.events[index].reads:
            buffer = region.buffer
            of = buffer.number if buffer.role == "input" else (buffer.file, buffer.line)
            places.setdefault(of, set()).add(region.offset)
    for label, forms in given.items():
        found["given", label] = hash(tuple(sorted(forms.items())))
    for of, offsets in places.items():
        found["places", of] = len(offsets)
        found["first", of] = min(offsets)
        found["last", of] = max(offsets)
    for one, other in combinations(sorted(of for of in places if isinstance(of, int)), 2):
        for name in ("first", "last"):
            found[name, one, other] = found[name, other] - found[name, one]
    return found


def _oddness(values: Array, name: tuple[Any, ...], per_head: int) -> Array | None:
    """How odd each tile is by one number, as it is or by how it grows from tile to tile of a head; None if it says nothing."""
    if name[0] == "given":
        return _rarity(values)
    rows = values.reshape(-1, per_head)
    if name[0] in ("first", "last") and len(name) == 2:  # another head is elsewhere
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
