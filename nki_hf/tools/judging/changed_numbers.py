"""A number of a reference that is another: a constant, a factor, how many rows or keys; found from the output (fitted.py)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nki_hf.tools.judging import fitted
from nki_hf.tools.judging.changed_operations import BINARY, COMPARISONS, FUNCTIONS
from nki_hf.tools.judging.relations import factor_words
from nki_hf.tools.judging.traced import Call, Change, Site

__all__ = ["Error", "with_count", "with_number"]

Array = np.ndarray[Any, Any]
Error = Callable[[Mapping[Site, Change]], float]
"""What a change leaves of the error, relative to the size of the output."""


def with_count(site: Site, call: Call, error: Error, whole: float, enough: float) -> Iterator[tuple[str, Change]]:
    """Mistakes by a number of rows, columns or keys.

    Args:
      site, call: an operation.
      error: see `Error`.
      whole: the error of the right reference.
      enough: what a number may leave of it: with a number of its own, much is explained a little.
    """
    for most, signed, words, make in _counted(site, call):
        found = fitted.count(functools.partial(_error_of, site, error, make), most, whole, signed=signed)
        if found is not None and error({site: make(found)}) <= enough:
            yield words.format(n=found), make(found)


def _error_of(site: Site, error: Error, make: Callable[[Any], Change], number: Any) -> float:
    return error({site: make(number)})


def _counted(site: Site, call: Call) -> Iterator[tuple[int, bool, str, Callable[[int], Change]]]:
    """The largest number, whether it may be negative, words with `{n}`, and the change by a number."""
    first = call.inputs[0] if call.inputs else None
    if site.name in COMPARISONS[:4] and site.method == "__call__":
        most = max(np.broadcast(*map(np.asarray, call.inputs)).shape, default=1)
        yield most, True, "is off by {n}: its second operand is {n:+d}", _compared_with
    if not isinstance(first, np.ndarray) or first.dtype.kind != "f" or not first.ndim:
        return
    axis = call.options.get("axis", 0)
    if site.method == "reduce" and isinstance(axis, int) and first.shape[axis] > 2:
        length = first.shape[axis]
        yield length - 1, False, f"covers the first {{n}} of {length} only", lambda n: _part(slice(0, n))
        yield length - 1, False, f"lacks the first {{n}} of {length}", lambda n: _part(slice(n, None))
    elif site.name == "matmul" and first.ndim >= 2:
        length, columns = first.shape[-1], call.inputs[1].shape[-1]
        yield length - 1, False, f"sums the first {{n}} of {length} only", lambda n: _inner(slice(0, n))
        yield length - 1, False, f"lacks the first {{n}} of {length}", lambda n: _inner(slice(n, None))
        yield columns - 1, False, "has -inf in its last {n} columns (not seen)", lambda n: _unseen(slice(-n, None))
        yield columns - 1, False, "has -inf in its first {n} columns (not seen)", lambda n: _unseen(slice(0, n))


def _compared_with(n: int) -> Change:
    return lambda call: call.result(call.inputs[0], np.asarray(call.inputs[1]) + n)


def _part(part: slice) -> Change:
    def change(call: Call) -> Any:
        x, axis = call.inputs[0], call.options.get("axis", 0)
        index = [slice(None)] * x.ndim
        index[axis] = part
        length = len(range(*part.indices(x.shape[axis])))
        factor = x.shape[axis] / length if "mean(" in call.site.text else 1
        return call.result(x[tuple(index)]) * factor

    return change


def _inner(part: slice) -> Change:
    return lambda call: call.result(call.inputs[0][..., part], call.inputs[1][..., part, :])


def _unseen(part: slice) -> Change:
    def change(call: Call) -> Any:
        found = np.array(call.result())
        found[..., part] = -np.inf
        return found

    return change


def with_number(site: Site, call: Call, error: Error, whole: float, enough: float) -> Iterator[tuple[str, Change]]:
    """Mistakes by another constant, a factor or an addend; arguments as for `with_count`."""
    for guesses, words, make in _measured(site, call):
        found = fitted.number(functools.partial(_error_of, site, error, make), guesses, whole)
        if found is not None and error({site: make(found)}) <= enough:
            lengths = [n for item in call.inputs for n in np.shape(item)]
            yield words.format(c=f"{found:.5g}", known=factor_words(found, lengths)), make(found)


def _measured(site: Site, call: Call) -> Iterator[tuple[Sequence[float], str, Callable[[float], Change]]]:
    """First guesses, words with `{c}` and what it may be (`{known}`), and the change by a number."""
    floats = bool(call.inputs) and any(np.asarray(item).dtype.kind == "f" for item in call.inputs[:2] if np.ndim(item))
    if site.name == "concatenate" or not floats:
        return
    lengths = [n for item in call.inputs for n in np.shape(item)]
    if site.method == "__call__" and len(call.inputs) == 2 and site.name in (*BINARY, "power"):
        for place, said in ((0, "first"), (1, "second")):
            value = call.inputs[place]
            if not np.ndim(value) and np.isfinite(value):
                words = f"has {{c}} in place of {float(value):.5g}"
                yield _guesses(float(value)), words, functools.partial(_constant, place)
            elif np.ndim(value) and site.name in ("add", "subtract") and np.ndim(call.inputs[1 - place]):
                words = f"has its {said} operand times {{c}}{{known}}"
                yield _factors(lengths), words, functools.partial(_operand_times, place)
    nonlinear = site.method == "__call__" and len(call.inputs) == 1 and site.name in FUNCTIONS
    if nonlinear:
        yield _factors(lengths), "has its argument times {c}{known}", _argument_times
    elif site.name == "matmul" or site.method == "reduce":
        yield _factors(lengths), "has its result times {c}{known}", _result_times
    if nonlinear or site.name == "matmul" or site.method == "reduce":
        yield _ADDENDS, "has {c} added to its result", _result_plus


_ADDENDS = tuple(sign * 4.0**i for i in range(-5, 6) for sign in (1, -1))


def _constant(place: int, value: float) -> Change:
    return lambda call: call.result(*[value if i == place else item for i, item in enumerate(call.inputs)])


def _argument_times(factor: float) -> Change:
    return lambda call: call.result(call.inputs[0] * factor)


def _operand_times(place: int, factor: float) -> Change:
    return lambda call: call.result(*[factor * item if i == place else item for i, item in enumerate(call.inputs)])


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
