"""Computations that only move bits, as objects: a replay can tell what they write, and do a part of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["Clear", "Load", "LoadOrClear"]

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
    """Writes all of `target`, or nothing where a run-time start is out of bounds; says which."""

    __slots__ = ("read", "target")

    def __init__(self, target: Array, read: Callable[[], tuple[Array, Array | None]]) -> None:
        self.target = target
        self.read = read

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
