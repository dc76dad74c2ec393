"""The space of a tuner: which values each constant may have, as flags say it."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["MOST", "Space", "combinations", "key_of", "space_of"]

MOST = 100_000
"""Combinations that are gone through."""
_RANGE = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})(?::(\d{1,9}))?")

Space = Mapping[str, Sequence[Any]]


def space_of(texts: Sequence[str]) -> Space:
    """Values by name, of `block=512,1024`, `bufs=1..3` or `lag=2..16:2`.

    Raises:
      ValueError: a text is none of these, a name comes twice, or there are too many combinations.
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        name, separator, values = text.partition("=")
        if not separator or not name.isidentifier() or not values:
            raise ValueError(f"const={text[:200]!r} is not a constant with values: write --const NAME=1,2,4 or NAME=1..3.")
        if name in found:
            raise ValueError(f"const={text[:200]!r}: {name} has values already: name each constant once.")
        found[name] = list(
            {repr(v): v for part in values.split(",") for v in _values(text, part)}.values()
        )  # 1, 1.0, True: three
    if math.prod(len(values) for values in found.values()) > MOST:
        raise ValueError(f"const: there are more than {MOST:,} combinations: give fewer values.")
    return found


def combinations(space: Space) -> Iterator[dict[str, Any]]:
    """Every combination, the last constant varies first."""
    for values in itertools.product(*space.values()):
        yield dict(zip(space, values, strict=True))


def key_of(constants: Mapping[str, Any]) -> str:
    """The combination as text, by which its result is found again."""
    return repr(sorted(constants.items()))


def _values(text: str, part: str) -> list[Any]:
    match = _RANGE.fullmatch(part)
    if match:
        first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
        if step and last >= first and (count := (last - first) // step + 1) > MOST:
            raise ValueError(
                f"const={text[:200]!r}: {part} is {count:,} values, at most {MOST:,} are gone through: give fewer."
            )
        if step < 1 or last < first:
            raise ValueError(f"const={text[:200]!r}: {part} is no range: write FIRST..LAST or FIRST..LAST:STEP.")
        return list(range(first, last + 1, step))
    try:
        value = ast.literal_eval(part)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = part
        if ".." in part:
            raise ValueError(
                f"const={text[:200]!r}: {part} is no range: write FIRST..LAST or FIRST..LAST:STEP, whole numbers of at most 9 "
                "digits (a text with two dots in quotes)."
            ) from None
    if not isinstance(value, int | float | str | bool | None):
        raise ValueError(f"const={text[:200]!r}: {part} is no value: a value is a number, text, True, False or None.")
    if value == "" or value != value:
        raise ValueError(f"const={text[:200]!r} has a value that is nothing: write --const NAME=1,2,4 or NAME=1..3.")
    return [value]
