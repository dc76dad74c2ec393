"""Numbers that the instructions of tiles are given beside tensors: immediates, offsets of masks, patterns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from nki_hf.sim.stream.access_table import Ints
from nki_hf.tools.judging.tile_events import TileEvents

__all__ = ["Given"]

Array = np.ndarray[Any, Any]


class Given:
    """The numbers of each form of a tape."""

    def __init__(self, tiles: TileEvents) -> None:
        self._numbers = tiles.given
        self._forms = tiles.tape["forms"]
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
