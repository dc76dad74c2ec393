"""Computations that only move bits, as objects: a replay can tell what they write, and do a part of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["Clear", "Load", "LoadOrClear", "LoadOrZero"]

Array = np.ndarray[Any, Any]


class Clear:
    """Writes all of `target`, which nothing before it shows through: a constant, or what `source` holds."""

    __slots__ = ("source", "target")

    def __init__(self, target: Array, source: Array) -> None:
        self.target = target
        self.source = source

    def __call__(self) -> None:
        """All of it."""
        self.target[...] = self.source

    def rows(self, begin: int, end: int) -> None:
        """The same for some rows."""
        self.target[begin:end] = self.source[begin:end] if self.source.ndim else self.source


class Load:
    """Writes all of `target`, or nothing where a run-time start is out of bounds; says which.

    Attributes:
      read: gives `(values, valid)`; `valid` is None where all is in bounds.
      rows: gives the first rows `[n, width]` of what `read` would give, all others being 0, or None out of bounds; None if
        there are no rows to speak of.
    """

    __slots__ = ("read", "rows", "target")

    def __init__(
        self, target: Array, read: Callable[[], tuple[Array, Array | None]], rows: Callable[[], Array | None] | None = None
    ) -> None:
        self.target = target
        self.read = read
        self.rows = rows

    def __call__(self) -> bool:
        """True if it moved."""
        values, valid = self.read()
        if valid is not None:
            return False
        self.target[...] = values.view(self.target.dtype).reshape(self.target.shape)
        return True


class LoadOrClear:
    """A load of rows that were cleared before: clears them where it moves nothing."""

    __slots__ = ("begin", "clear", "end", "load")

    def __init__(self, load: Load, clear: Clear, begin: int, end: int) -> None:
        self.load, self.clear, self.begin, self.end = load, clear, begin, end

    def __call__(self) -> None:
        """Load, or clear."""
        if not self.load():
            self.clear.rows(self.begin, self.end)


class LoadOrZero:
    """The same of zeros, in memory that nothing else writes: what still is zero is not cleared again."""

    __slots__ = ("_filled", "_rows", "_target")

    def __init__(self, rows: Callable[[], Array | None], target: Array) -> None:
        """`rows` is a load's; `target` is its target as a run of elements."""
        self._rows, self._target, self._filled = rows, target, target.size

    def __call__(self) -> None:
        """Load what there is; zeros behind it."""
        rows, filled = self._rows(), self._filled
        self._filled = self._target.size  # what an interrupt leaves is not known
        count = 0 if rows is None else rows.size
        if rows is not None:
            self._target[:count].reshape(rows.shape)[...] = rows.view(self._target.dtype)
        if count < filled:
            self._target[count:filled] = 0
        self._filled = count
