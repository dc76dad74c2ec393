"""Inputs in which the elements that steer a kernel take other values, within what the distributions draw."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nki_hf.tools.judging.layouts import layout_of, placed
from nki_hf.tools.judging.steering import Steering
from nki_hf.tools.judging.values import Run

__all__ = ["named_elements", "steered_inputs", "task_elements"]

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
_FEW = 16
"""Elements that steer up to which they are given one value; more are scaled, so that their spread stays."""
_SPREAD = 0.02
"""What elements that are given about one value differ by, as a part of it."""
_THRESHOLDS = 8
"""Numbers of the program that are tried."""
_HALVES = 5
"""Powers of two below the largest value that are tried on both sides of 0."""


def task_elements(run: Run, trace: Mapping[str, Any], item: Steering) -> dict[str, Array]:
    """The elements that steer, as bool arrays by the task's names in its own layout."""
    names = dict(trace["parameters"])
    found: dict[str, Array] = {}
    for parameter, flags in item.elements.items():
        name = names.get(parameter)
        if name is None:
            continue
        shape = run.task.shapes(run.size, run.dtype)[name][0]
        own, wanted = layout_of(run.task, run.layout, name)
        places = np.arange(int(np.prod(shape))).reshape(shape)
        places = placed(places, own, wanted) if own else places
        whole = found.setdefault(name, np.zeros(shape, np.bool_))
        if places.shape == flags.shape:
            whole.reshape(-1)[places[flags]] = True
    return found


def named_elements(name: str, flags: Array) -> str:
    """`x[0, 3]`, or the first of several and how many there are."""
    count = int(flags.sum())
    first = ", ".join(str(int(i)) for i in np.argwhere(flags)[0]) if flags.ndim else ""
    one = f"{name}[{first}]" if first else name
    return one if count == 1 else f"{name} ({one} and {count - 1:,} more of {flags.size:,} elements)"


def steered_inputs(
    elements: Mapping[str, Array], drawn: Sequence[Arrays], numbers: Sequence[float] = ()
) -> Iterator[tuple[str, Arrays]]:
    """What is changed, in words, and all arrays: the first of those that were drawn, in which elements that steer are
    others. Every array stays between the smallest and the largest number that any distribution drew for it; whole numbers
    stay on the steps between those that were drawn (a count of keys in tiles of 128).

    Args:
      elements: those that steer, by the task's names.
      drawn: arrays of all distributions; the first are changed.
      numbers: what the program has in its instructions, sorted: a threshold may be among them.
    """
    for name, flags in elements.items():
        base = drawn[0][name]
        low, high = (float(pick([float(pick(arrays[name])) for arrays in drawn])) for pick in (np.min, np.max))
        whole = base.dtype.kind in "iub"
        step = _step([arrays[name] for arrays in drawn]) if whole else 0
        if whole and not step:
            continue  # there is no other value
        for words, values in _changes(name, flags, np.asarray(base, np.float64), low, high, step, numbers):
            changed = np.array(base)
            changed[flags] = _placed(values, low, high, step).astype(base.dtype)
            yield words, {**drawn[0], name: changed}


def _step(arrays: Sequence[Array]) -> int:
    """The largest step by which all whole numbers that were drawn are apart; 0 = all are the same."""
    values = np.unique(np.concatenate([np.unique(array) for array in arrays]).astype(np.int64))
    return int(np.gcd.reduce(np.diff(values))) if len(values) > 1 else 0


def _placed(values: Any, low: float, high: float, step: int) -> Array:
    """Values within the ends, whole ones on their steps."""
    limited = np.clip(values, low, high)
    return low + np.rint((limited - low) / step) * step if step else limited


def _changes(
    name: str, flags: Array, base: Array, low: float, high: float, step: int, numbers: Sequence[float]
) -> Iterator[tuple[str, Any]]:
    """Words, and values of the elements that steer."""
    own, said, whole = base[flags], named_elements(name, flags), bool(step)
    if len(own) <= _FEW:
        places = np.argwhere(flags)
        for place in {0, len(own) - 1} if len(own) > 1 else ():
            for value in (high, low):
                alone = own.copy()
                alone[place] = value
                yield f"{name}[{', '.join(str(int(i)) for i in places[place])}] = {value:.6g}", alone
        for value in dict.fromkeys(float(item) for item in _placed(_values(low, high, numbers), low, high, step)):
            yield f"{said} = {value:.6g}", np.full(own.shape, value)
        if len(own) == 1:
            return
    most = max(abs(low), abs(high))
    size = float(np.abs(own).max()) or 1.0
    first = ", ".join(str(int(i)) for i in np.argwhere(flags)[0])
    for value in (high, low):
        alone = own.copy()
        alone[0] = value
        yield f"{name}[{first}] = {value:.6g}", alone
    if whole:
        yield f"{said} in reverse order", own[::-1]
        yield f"{said} = {low:.6g}", np.full(own.shape, low)
        yield f"{said} = {high:.6g}", np.full(own.shape, high)
        return
    yield f"{said} {most / size:.3g} times as large", own * (most / size)
    yield f"{said} 0.01 times as large", own * 0.01
    yield f"{said} made positive", np.abs(own)
    yield f"{said} made negative", -np.abs(own)
    yield f"{said} made positive and {most / size:.3g} times as large", np.abs(own) * (most / size)
    yield f"{said} made negative and {most / size:.3g} times as large", -np.abs(own) * (most / size)
    place = (own - own.min()) / (np.ptp(own) or 1.0)
    for value in (high, low):  # with a little of their spread: a row of equal numbers has no variance
        yield f"{said} about {value:.6g}", value * (1 - _SPREAD * place)


def _values(low: float, high: float, numbers: Sequence[float]) -> list[float]:
    """The ends, numbers of the program and what lies between two of them, the middle, 0, and powers of two."""
    inner = [number for number in numbers if low < number < high][:_THRESHOLDS]
    between = [(one + other) / 2 for one, other in itertools.pairwise(inner)]
    most = max(abs(low), abs(high))
    powers = [sign * most * 0.5**power for power in range(1, _HALVES + 1) for sign in (1, -1)]
    values = [high, low, *inner, *between, *([0.0] if low <= 0 <= high else []), (low + high) / 2, *powers]
    return [value for value in values if low <= value <= high]
