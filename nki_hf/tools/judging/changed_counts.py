"""A mistake of a reference by a number of rows, columns or keys; found from the output (fitted.py)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from nki_hf.tools.judging import fitted
from nki_hf.tools.judging.changed_operations import COMPARISONS
from nki_hf.tools.judging.traced import Call, Change, Site

__all__ = ["with_count"]

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
        if "mean(" in site.text:
            words = f"sums the first {{n}} only and divides by {length}"
            yield length - 1, False, words, lambda n: _part(slice(0, n), mean=False)
    elif site.name == "matmul" and first.ndim >= 2:
        length, columns = first.shape[-1], call.inputs[1].shape[-1]
        yield length - 1, False, f"sums the first {{n}} of {length} only", lambda n: _inner(slice(0, n))
        yield length - 1, False, f"lacks the first {{n}} of {length}", lambda n: _inner(slice(n, None))
        yield columns - 1, False, "has -inf in its last {n} columns (not seen)", lambda n: _unseen(slice(-n, None))
        yield columns - 1, False, "has -inf in its first {n} columns (not seen)", lambda n: _unseen(slice(0, n))


def _compared_with(n: int) -> Change:
    return lambda call: call.result(call.inputs[0], np.asarray(call.inputs[1]) + n)


def _part(part: slice, mean: bool = True) -> Change:
    def change(call: Call) -> Any:
        x, axis = call.inputs[0], call.options.get("axis", 0)
        index = [slice(None)] * x.ndim
        index[axis] = part
        length = len(range(*part.indices(x.shape[axis])))
        factor = x.shape[axis] / length if mean and "mean(" in call.site.text else 1
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
