"""A mistake explaining a wrong output: it leaves little of the error on most inputs, and changes nothing where it is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from nki_hf.tasks import Task
from nki_hf.tools.judging.patterns import off, where, wide
from nki_hf.tools.judging.values import Checked, Outcome

__all__ = ["Mistake", "best", "compared_in", "exact", "holds_most", "result", "wrong_part"]

Array = np.ndarray[Any, Any]

Mistake = tuple[str, Callable[..., Any]]
"""Words behind "if", and a reference with that mistake."""


def best(
    mistakes: Iterable[Mistake], task: Task, check: Checked, outcome: Outcome, number: int, over: Callable[[], bool]
) -> str:
    """The mistake that comes nearest to the output, or to that part of it that is wrong, of those that are tried before the
    time is `over`; 16-bit outputs are compared in float32.
    """
    output, reference = wide(outcome.outputs[number]), outcome.references[number]
    tolerance = outcome.judgements[number].tolerance
    part, place = wrong_part(output, reference, max(3 * tolerance, 0.02))
    least = _near(output, reference, tolerance)
    found, share = "", 0.0
    found_there, least_there = "", _near(output[part], reference[part], tolerance)
    arrays = exact(outcome.arrays, compared_in(outcome, number))
    for words, function in mistakes:
        if over():
            break
        other = result(function, task, check, arrays, number)
        if other is None or other.shape != output.shape or not np.isfinite(other).all():
            continue
        left = off(output, other)
        same = share < 1 and left < tolerance / 4  # as good here: then the one that explains more of the inputs
        if (left < least or same) and (more := _agreeing(function, task, check, number, ...)):
            if more > share or left < least:
                found, share, least = words, more, min(least, left / 2)  # a later one must be clearly better
            if left < tolerance / 4 and share == 1:
                break
        elif place and not found and (left := off(output[part], other[part])) < least_there:
            if _agreeing(function, task, check, number, part):
                found_there, least_there = words, left / 2
    return found or (f"in {place} {found_there}" if found_there else "")


def _near(output: Array, reference: Array, tolerance: float) -> float:
    """How much an explanation may leave: it must explain most of the error."""
    return min(max(5 * tolerance, 0.02), off(output, reference) / 4)


_PLACE = 0.9
"""Share of the error that a place holds if it is wrong and the rest right."""


def wrong_part(output: Array, reference: Array, tolerance: float) -> tuple[Any, str]:
    """The rows, columns and heads that are wrong, as an index and in words; all and no words if they are most of the output, or
    hold little of the error.
    """
    wrong = np.abs(output - reference) > tolerance * np.abs(reference).mean() * 3
    if output.ndim < 2 or not 0 < wrong.mean() < 1:
        return ..., ""
    axes = [np.flatnonzero(wrong.any(tuple(i for i in range(wrong.ndim) if i != axis))) for axis in range(wrong.ndim)]
    if np.prod([len(index) for index in axes]) > 0.8 * wrong.size:
        return ..., ""
    part = np.ix_(*axes)
    if not holds_most(output - reference, part):
        return ..., ""
    words = where("", "", wrong).removeprefix(" is  in ")
    return part, words.rpartition(" of ")[0]


def holds_most(missing: Array, part: Any) -> bool:
    """True if a part of the output holds most of the error; else it is but the tips of one that is everywhere."""
    return not np.linalg.norm(missing[part]) < _PLACE * np.linalg.norm(missing)


def compared_in(outcome: Outcome, number: int) -> Any:
    """The type in which mistakes are computed: float32 is exact enough for an output of 16 bits."""
    return np.float32 if outcome.outputs[number].dtype.itemsize < 4 else np.float64


def exact(arrays: Mapping[str, Array], real: Any = np.float64) -> dict[str, Array]:
    """Arrays in one type; integers as they are."""
    return {name: array if array.dtype.kind in "iub" else np.asarray(array, real) for name, array in arrays.items()}


def result(function: Callable[..., Any], task: Task, check: Checked, arrays: Mapping[str, Array], number: int) -> Array | None:
    """An output of a reference with a mistake; None if it does not take these inputs."""
    try:
        with np.errstate(all="ignore"):
            found = function(**arrays, **dict(task.constants(check.size)))
    except Exception:  # a reference need not take inputs that no task draws
        return None
    return np.asarray(found[number] if isinstance(found, tuple) else found)


def _agreeing(function: Callable[..., Any], task: Task, check: Checked, number: int, part: Any) -> float:
    """The share of the inputs with a wrong output that the mistake explains; 0 if that is less than half, or if the mistake
    changes inputs for which the output is right.
    """
    explained = wrong = 0
    for outcome in check.outcomes:
        output, reference = wide(outcome.outputs[number]), outcome.references[number]
        if output.shape != reference.shape or not np.isfinite(output).all():
            continue
        other = result(function, task, check, exact(outcome.arrays), number)
        if other is None or other.shape != output.shape or not np.isfinite(other).all():
            return 0.0
        judgement, left = outcome.judgements[number], off(output[part], other[part])
        if judgement.passed and left > max(8 * judgement.tolerance, 1e-3):
            return 0.0
        if not judgement.passed:
            wrong += 1
            explained += left < 2 * _near(output[part], reference[part], judgement.tolerance)
    return explained / wrong if wrong and 2 * explained >= wrong else float(not wrong)
