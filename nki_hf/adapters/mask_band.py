"""The band of a mask function of Transformers, found by calling the function with symbols in the place of positions.

A mask function says of a query position and a key position whether the one sees the other. Those that compare the two with
each other and with constants (causal, sliding window, window in both directions) hide everything outside a band of
differences; which one is exact arithmetic, done here on Python numbers, so that no tensor is read and every tracer follows.
Whatever else a function does with a position (indexing a tensor, dividing) is no band.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Band", "band_of"]

Band = tuple[int | None, int | None]
"""`(window, ahead)` in the meaning of `problem.Mask`; None = unlimited."""


class _NotABand(Exception):
    """The function asks something of a position that no band answers."""


class _Visible:
    """The key positions that a query position sees: `lowest <= key - query <= highest`; None = no limit."""

    device = None

    def __init__(self, lowest: int | None, highest: int | None) -> None:
        self.lowest, self.highest = lowest, highest

    def __and__(self, other: Any) -> _Visible:
        if not isinstance(other, _Visible):
            raise _NotABand
        lowest, highest = self.lowest, self.highest
        if lowest is None or (other.lowest is not None and other.lowest > lowest):
            lowest = other.lowest
        if highest is None or (other.highest is not None and other.highest < highest):
            highest = other.highest
        return _Visible(lowest, highest)

    def to(self, *_: Any, **__: Any) -> _Visible:
        return self

    def __or__(self, other: Any) -> _Visible:
        raise _NotABand

    def __bool__(self) -> bool:
        raise _NotABand


class _Position:
    """`keys * key position + queries * query position + shift`."""

    device = None

    def __init__(self, keys: int, queries: int, shift: int = 0) -> None:
        self.keys, self.queries, self.shift = keys, queries, shift

    def new_ones(self, *_: Any, **__: Any) -> _Visible:
        return _Visible(None, None)

    def __add__(self, other: Any) -> _Position:
        if type(other) is not int:
            raise _NotABand
        return _Position(self.keys, self.queries, self.shift + other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> _Position:
        if isinstance(other, _Position):
            return _Position(self.keys - other.keys, self.queries - other.queries, self.shift - other.shift)
        if type(other) is not int:
            raise _NotABand
        return _Position(self.keys, self.queries, self.shift - other)

    def __abs__(self) -> _Distance:
        return _Distance(self)

    def __ge__(self, other: Any) -> _Visible:
        return _at_least_zero(self - other)

    def __le__(self, other: Any) -> _Visible:
        return _at_least_zero(_negative(self - other))

    def __gt__(self, other: Any) -> _Visible:
        return _at_least_zero(self - other - 1)

    def __lt__(self, other: Any) -> _Visible:
        return _at_least_zero(_negative(self - other) - 1)

    def __bool__(self) -> bool:
        raise _NotABand


class _Distance:
    """The absolute value of a difference."""

    def __init__(self, difference: _Position) -> None:
        self.difference = difference

    def __le__(self, other: Any) -> _Visible:
        return (self.difference <= other) & (_negative(self.difference) <= other)

    def __lt__(self, other: Any) -> _Visible:
        return (self.difference < other) & (_negative(self.difference) < other)


def band_of(mask_function: Callable[..., Any]) -> Band | None:
    """The band outside which the function hides every key and inside which none; None if it is no such function."""
    try:
        visible = mask_function(None, None, _Position(0, 1), _Position(1, 0))
        lowest, highest = visible.lowest, visible.highest
    except (_NotABand, AttributeError, TypeError, IndexError):
        return None
    # A band that leaves out the query's own position has no words in `problem.Mask`.
    if (lowest is not None and lowest > 0) or (highest is not None and highest < 0):
        return None
    return (None if lowest is None else 1 - lowest), (None if highest is None else 1 + highest)


def _negative(position: _Position) -> _Position:
    return _Position(-position.keys, -position.queries, -position.shift)


def _at_least_zero(position: _Position) -> _Visible:
    """Where the position is 0 or more."""
    if (position.keys, position.queries) == (1, -1):
        return _Visible(-position.shift, None)
    if (position.keys, position.queries) == (-1, 1):
        return _Visible(None, position.shift)
    # Positions count from 0, so that one alone is never below 0.
    if position.keys >= 0 and position.queries >= 0 and position.shift >= 0:
        return _Visible(None, None)
    raise _NotABand
