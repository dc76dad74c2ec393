"""A number of a reference that is another: a constant, a factor, an addend; found from the output (fitted.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nki_hf.tools.judging import fitted
from nki_hf.tools.judging.changed_operations import BINARY, FUNCTIONS
from nki_hf.tools.judging.relations import factor_words
from nki_hf.tools.judging.traced import Call, Change, Site

__all__ = ["Changes", "numbers"]

Array = np.ndarray[Any, Any]
Changes = Mapping[Site, Change]
_TRIAL = 0.03
_LIKELY = 0.2
"""Cosine between what a small change of a number does and the error, from which on the number is looked for."""


@dataclass
class _Number:
    """Words with `{c}` and what it may be (`{known}`), changes by a number, first guesses, and one for a trial; `written` if
    the reference has a number there.
    """

    words: str
    make: Callable[[float], Changes]
    guesses: Sequence[float]
    trial: float
    lengths: Sequence[int] = ()
    written: bool = False


def numbers(
    seen: Mapping[Site, Sequence[Call]],
    error: Callable[[Changes], float],
    toward: Callable[[Changes], float],
    whole: float,
    enough: float,
    *,
    written: bool,
) -> Iterator[tuple[str, Changes]]:
    """Mistakes by a number, those first whose small changes go where the error is.

    Args:
      seen: the operations of the reference.
      error: what changes leave of the output, relative to its size.
      toward: the cosine between what changes do and the error.
      whole: the error of the right reference.
      enough: what a number may leave of it: with a number of its own, much is explained a little.
      written: numbers that the reference has, or else all others: factors and addends that it has not.
    """
    found = [item for site, calls in seen.items() for item in _of_call(site, calls[0])] + _shared(seen)
    found = [item for item in found if item.written is written]
    ranked = sorted(((toward(item.make(item.trial)), i) for i, item in enumerate(found)), reverse=True)
    for likely, i in ranked:
        if likely < _LIKELY:
            return
        item = found[i]
        number = fitted.number(_error_of(error, item.make), item.guesses, whole)
        if number is not None and error(item.make(number)) <= enough:
            yield item.words.format(c=f"{number:.5g}", known=factor_words(number, item.lengths)), item.make(number)


def _error_of(error: Callable[[Changes], float], make: Callable[[float], Changes]) -> Callable[[float], float]:
    return lambda number: error(make(number))


def _at(site: Site, make: Callable[..., Change], *first: Any) -> Callable[[float], Changes]:
    return lambda number: {site: make(*first, number)}


def _of_call(site: Site, call: Call) -> Iterator[_Number]:
    arrays = [item for item in call.inputs[:2] if isinstance(item, np.ndarray) and item.ndim and item.dtype.kind == "f"]
    if site.name == "concatenate" or not arrays:
        return
    said = f"{site.quoted} of the reference has "
    lengths = [n for item in arrays for n in item.shape]
    if site.method == "__call__" and len(call.inputs) == 2 and site.name in (*BINARY, "power"):
        for place, which in ((0, "first"), (1, "second")):
            value = call.inputs[place]
            if not np.ndim(value) and np.isfinite(value):
                words = f"{said}{{c}} in place of {float(value):.5g}"
                yield _Number(
                    words, _at(site, _constant, place), _guesses(float(value)), _beside(float(value), arrays[0]), written=True
                )
            elif np.ndim(value) and site.name in ("add", "subtract") and len(arrays) == 2:
                words = f"{said}its {which} operand times {{c}}{{known}}"
                yield _Number(words, _at(site, _operand_times, place), _factors(lengths), 1 + _TRIAL, lengths)
    if site.name == "divide" and site.method == "__call__" and len(arrays) == 2:
        beside = _beside(0.0, 1 / np.where(arrays[1] == 0, 1, arrays[1]))
        yield _Number(
            f"{said}{{c}} added to the reciprocal of its second operand", _at(site, _reciprocal_plus), _ADDENDS, beside
        )
    nonlinear = site.method == "__call__" and len(call.inputs) == 1 and site.name in FUNCTIONS
    if nonlinear:
        yield _Number(
            f"{said}its argument times {{c}}{{known}}", _at(site, _argument_times), _factors(lengths), 1 + _TRIAL, lengths
        )
    elif site.name == "matmul" or site.method == "reduce":
        yield _Number(
            f"{said}its result times {{c}}{{known}}", _at(site, _result_times), _factors(lengths), 1 + _TRIAL, lengths
        )
    result = call.results.get(site)
    if (nonlinear or site.name == "matmul" or site.method == "reduce") and isinstance(result, np.ndarray):
        yield _Number(f"{said}{{c}} added to its result", _at(site, _result_plus), _ADDENDS, _beside(0.0, result))


def _shared(seen: Mapping[Site, Sequence[Call]]) -> list[_Number]:
    """Constants that stand in several places."""
    places: dict[float, list[tuple[Site, int]]] = {}
    for site, calls in seen.items():
        if site.method == "__call__" and len(calls[0].inputs) == 2 and site.name in (*BINARY, "power"):
            for place, value in enumerate(calls[0].inputs):
                if not np.ndim(value) and np.isfinite(value) and abs(value) not in (0, 1, 2):
                    places.setdefault(float(value), []).append((site, place))

    def make(found: Sequence[tuple[Site, int]]) -> Callable[[float], Changes]:
        return lambda number: {site: _constant(place, number) for site, place in found}

    return [
        _Number(
            f"every {value:.5g} of the reference is {{c}}", make(found), _guesses(value), value * (1 + _TRIAL), written=True
        )
        for value, found in places.items()
        if len({site for site, _ in found}) > 1
    ]


def _beside(value: float, other: Array) -> float:
    """A number that differs from `value` by a part of what stands beside it."""
    finite = np.abs(other[np.isfinite(other)])
    return value + _TRIAL * max(abs(value), float(finite.mean()) if finite.size else 0.0)


_ADDENDS = tuple(sign * 4.0**i for i in range(-5, 6) for sign in (1, -1))


def _constant(place: int, value: float) -> Change:
    return lambda call: call.result(*[value if i == place else item for i, item in enumerate(call.inputs)])


def _argument_times(factor: float) -> Change:
    return lambda call: call.result(call.inputs[0] * factor)


def _operand_times(place: int, factor: float) -> Change:
    return lambda call: call.result(*[factor * item if i == place else item for i, item in enumerate(call.inputs)])


def _reciprocal_plus(addend: float) -> Change:
    return lambda call: call.inputs[0] * (1 / call.inputs[1] + addend)


def _result_plus(addend: float) -> Change:
    return lambda call: call.result() + addend


def _result_times(factor: float) -> Change:
    return lambda call: call.result() * factor


def _guesses(value: float) -> Sequence[float]:
    size = abs(value) or 1.0
    times = [value * 10.0**i for i in (-4, -3, -2, -1, 1, 2, 3, 4, 5)] + [value * 2.0**i for i in (-3, -2, -1, 1, 2, 3)]
    return [0.0, -value, 1.0, 1 / size, size**0.5, size**2, *times]


def _factors(lengths: Sequence[int]) -> Sequence[float]:
    known = [-1.0, 2.0, 0.5, 4.0, 0.25, 16.0, 0.0625, float(np.log(2)), float(1 / np.log(2)), 1.1, 0.9]
    for length in dict.fromkeys(n for n in lengths if n > 2):
        known += [length**-0.5, length**0.5, 1 / length, float(length), (length - 1) / length, length / (length - 1)]
    return known
