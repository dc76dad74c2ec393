"""Mistakes of any task, from its own reference: each of its NumPy operations is done otherwise, one at a time.

An exp is an exp2, a sum a maximum or one of a part of the row, an operand is left out or another input, a comparison is off by
some columns, a number is another; a result is rounded or clamped. Numbers, bounds and counts follow from the output
(fitted.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nki_hf.tools.judging import traced
from nki_hf.tools.judging.changed_counts import with_count
from nki_hf.tools.judging.changed_numbers import Changes, numbers
from nki_hf.tools.judging.changed_operations import (
    BINARY,
    alternatives,
    blocks,
    earlier,
    exchanged,
    of_ufunc,
    rolled,
)
from nki_hf.tools.judging.changed_results import clamps, narrowed
from nki_hf.tools.judging.traced import Call, Change, Site

__all__ = ["limited", "mistakes"]

Array = np.ndarray[Any, Any]
Found = tuple[str, Changes]
_FEW = 8


def mistakes(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    error: Callable[[Changes], float],
    toward: Callable[[Changes], float],
    whole: float,
    enough: float,
) -> Iterator[Found]:
    """Words behind "if", and the operations that are done otherwise; first other numbers where it has some, then
    plain alternatives, then those with a number of their own.

    Args:
      function: the reference.
      given: its arrays and constants by name.
      error: what a change leaves of the output, relative to its size.
      toward: the cosine between what a change does and the error.
      whole: the error of the reference itself.
      enough: the error up to which a number that follows from the output is believed.
    """
    seen = traced.sites(function, given)
    inputs = {name: item for name, item in given.items() if isinstance(item, np.ndarray)}
    yield from numbers(seen, error, toward, whole, enough, written=True)
    for site, calls in seen.items():
        for what, change in alternatives(calls[0], inputs):
            yield _said(site, what), {site: change}
    for site, calls in seen.items():
        for what, change in (*_in_turns(calls), *earlier(calls[0], seen), *blocks(calls[0])):
            yield _said(site, what), {site: change}
    for first, second in itertools.pairwise(calls[0] for calls in seen.values() if calls[0].site.method == "__call__"):
        yield from exchanged(first, second)
    yield from _everywhere(seen)
    yield from _alike(seen, inputs)
    yield from numbers(seen, error, toward, whole, enough, written=False)
    for site, calls in seen.items():
        for what, change in with_count(site, calls[0], error, whole, enough):
            yield _said(site, what), {site: change}


def limited(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    error: Callable[[Changes], float],
    toward: Callable[[Changes], float],
    whole: float,
    enough: float,
) -> Iterator[Found]:
    """Words behind "if", and a result that is rounded to bfloat16 or clamped; arguments as for `mistakes`."""
    seen = traced.sites(function, given)
    yield from narrowed(seen, whole)
    yield from clamps(seen, error, toward, whole, enough)


def _said(site: Site, what: str) -> str:
    return f"{site.quoted} of the reference {what}"


def _in_turns(calls: Sequence[Call]) -> Iterator[tuple[str, Change]]:
    """Mistakes in one turn of a loop of few (a tap, a head)."""
    if not 2 <= len(calls) <= _FEW:
        return
    for turn in range(len(calls)):
        if calls[0].site.method == "index":
            for by in (1, -1):
                yield f"is taken one {'before' if by > 0 else 'behind'} in turn {turn}", _at(turn, rolled(by))
        elif calls[0].site.name in BINARY:
            yield f"counts for nothing in turn {turn}", _at(turn, lambda c: c.result() * 0)


def _at(turn: int, change: Change) -> Change:
    return lambda call: change(call) if call.turn == turn else call.result()


def _everywhere(seen: Mapping[Site, Sequence[Call]]) -> Iterator[Found]:
    """One ufunc in place of another wherever it stands."""
    for name, others in (("maximum", ("minimum", "add")), ("minimum", ("maximum",)), ("exp", ("exp2",)), ("log", ("log2",))):
        same = [site for site in seen if site.name == name and site.method == "__call__"]
        for other in others if len(same) > 1 else ():
            yield f"every {name} of the reference is {other}", {site: of_ufunc(other) for site in same}


def _alike(seen: Mapping[Site, Sequence[Call]], inputs: Mapping[str, Array]) -> Iterator[Found]:
    """Expressions that stand in several places, all of them done otherwise."""
    same: dict[tuple[str, str, str], list[Site]] = {}
    for site in seen:
        same.setdefault((site.text, site.name, site.method), []).append(site)
    for (text, _, _), places in same.items():
        if text and len(places) > 1:
            for what, change in alternatives(seen[places[0]][0], inputs):
                yield f"every `{text}` of the reference {what}", dict.fromkeys(places, change)
