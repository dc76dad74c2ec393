"""Where the tiles of an output leave the steps that the others keep.

The n-th instruction of a line reads, from tile to tile, at the same place or one step further, takes the results of the same
instructions, and is given the same numbers or numbers that grow by a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nki_hf.sim.stream.access_table import Ints
from nki_hf.sim.stream.events import Event
from nki_hf.tools.judging.followed import Followed

__all__ = ["left_steps"]

Array = np.ndarray[Any, Any]
_SPACE = 20_000_000
"""Elements of the table of one line, tiles by instructions, up to which it is looked at."""
_LANES = 32
"""Heads up to which each is looked at by itself."""
_KNOWN = 3
"""Steps from tile to tile from which the usual one is told."""


def left_steps(
    tiles: Sequence[Sequence[int]],
    followed: Followed,
    labels: Sequence[int],
    numbers: Sequence[int],
    forms: Sequence[Any],
    per_head: int,
) -> Iterator[tuple[tuple[Any, ...], Ints]]:
    """By a name, how often each tile leaves the steps of the others; only where one does.

    Args:
      tiles: the events that each follows from; they are numbered head by head.
      followed: what follows from what.
      labels: of each event, a number for its line, operators and shapes.
      numbers, forms: of each event, the number of the form of its operands beside tensors, and the forms of the tape.
      per_head: tiles of each head, or of each entry of a batch; where they are too few, heads are compared as tiles are.
    """
    per_head = per_head if per_head > _KNOWN else len(tiles)
    events = np.concatenate([np.sort(np.array(tile, np.int64)) for tile in tiles])
    owner = np.repeat(np.arange(len(tiles)), [len(tile) for tile in tiles])
    label = np.array(labels, np.int64)[events]
    rank = _ranks(owner, label)
    values = {name: column[events] for name, column in _columns(followed.events).items()}
    values["operands"] = _operands(tiles, events, owner, rank, label, followed)
    given = _Given(numbers, forms)
    order = np.argsort(label, kind="stable")
    for chosen in np.split(order, np.flatnonzero(np.diff(label[order])) + 1):
        count = int(rank[chosen].max()) + 1
        if len(tiles) * count > _SPACE:
            continue
        for name, column in (*((name, found[chosen]) for name, found in values.items()), *given.of(events[chosen])):
            table = np.full((len(tiles), count), np.nan)
            table[owner[chosen], rank[chosen]] = column
            left = _left(table.reshape(-1, per_head, count)).reshape(-1)
            if left.any():
                yield ("steps", int(label[chosen[0]]), name), left


def _ranks(owner: Ints, label: Ints) -> Ints:
    """How many events of the same label each tile has before each of its events."""
    order = np.lexsort((np.arange(len(owner)), label, owner))
    group = np.stack([owner[order], label[order]])
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (np.diff(group, axis=1) != 0).any(0)
    starts = np.flatnonzero(begins)
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    return found


def _columns(events: Sequence[Event]) -> dict[str, Array]:
    """Where each event reads and writes, by operand; NaN where it has none."""
    found: dict[str, Array] = {}
    for kind in ("reads", "writes"):
        regions = [getattr(event, kind) for event in events]
        for place in range(max(map(len, regions), default=0)):
            offsets = [each[place].offset if place < len(each) else np.nan for each in regions]
            found[f"{kind}{place}"] = np.array(offsets, np.float64)
    return found


def _operands(tiles: Sequence[Sequence[int]], events: Ints, owner: Ints, rank: Ints, label: Ints, followed: Followed) -> Array:
    """A number for which events of its tile each event takes results from; it grows by a step where all of them do."""
    weights = np.random.default_rng(0).integers(1, 1 << 20, int(label.max()) + 1)  # one line's events are not another's
    found = np.zeros(len(events))
    place = np.zeros(len(followed.events), np.int64)
    pairs, starts = followed.pairs()
    for tile in range(len(tiles)):
        mine = slice(*np.searchsorted(owner, [tile, tile + 1]))
        place[events[mine]] = weights[label[mine]] * (rank[mine] + 1)
        counts = starts[events[mine] + 1] - starts[events[mine]]
        ends = np.cumsum(counts)
        reached = np.arange(int(counts.sum())) + np.repeat(starts[events[mine]] - (ends - counts), counts)
        sums = np.concatenate([[0], np.cumsum(place[pairs[reached]])])
        found[mine] = sums[ends] - sums[ends - counts]
    return found


class _Given:
    """Numbers that instructions are given beside tensors."""

    def __init__(self, numbers: Sequence[int], forms: Sequence[Any]) -> None:
        self._numbers = np.array(numbers, np.int64)
        self._forms = forms
        self._known: dict[int, tuple[float, ...]] = {}

    def of(self, events: Ints) -> Iterator[tuple[str, Array]]:
        """A column for each number of the forms of some events; none where all have one form, or other ones."""
        mine = self._numbers[events]
        different = np.unique(mine)
        if len(different) < 2 or different[0] < 0:
            return
        found = [self._of_form(int(form)) for form in different]
        if len({len(item) for item in found}) > 1:
            return
        table = np.array(found)[np.searchsorted(different, mine)]
        for column in np.flatnonzero((table != table[:1]).any(0)).tolist():
            yield f"given{column}", table[:, column]

    def _of_form(self, form: int) -> tuple[float, ...]:
        if form not in self._known:
            self._known[form] = tuple(_flat(self._forms[form]))
        return self._known[form]


def _flat(value: Any) -> Iterator[float]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _flat(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _flat(item)


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
