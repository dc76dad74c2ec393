"""A mistake explaining a wrong output: it leaves little of the error on most inputs, and changes nothing where it is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from nki_hf.tasks import Task
from nki_hf.tasks.in_range import InRange
from nki_hf.tools.judging.patterns import few_rows, off, parts, wide
from nki_hf.tools.judging.under_way import under_way
from nki_hf.tools.judging.values import Checked, Outcome
from nki_hf.tools.verify_judge import row_error

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
    found, share, worst = "", 0.0, np.inf
    which: Callable[..., Any] | None = None
    which_there: Callable[..., Any] | None = None
    found_there, least_there = "", _near(output[part], reference[part], tolerance)
    arrays = exact(outcome.arrays, compared_in(outcome, number))
    for words, function in _likely_first(mistakes, task, arrays, outcome, number, over):
        if over():
            break
        other = result(function, task, check, arrays, number)
        if other is None or other.shape != output.shape or not np.isfinite(other).all():
            continue
        left = off(output, other)
        same = left < tolerance / 4  # as good here: then the one that explains more of the inputs, or them better
        more, most = _agreeing(function, task, check, number, ...) if left < least or same else (0.0, np.inf)
        if more:
            if more > share or left < least or (more == share and most < worst / 2):
                found, share, worst, least = words, more, most, min(least, left / 2)  # a later one must be clearly better
                which = function
            if same and share == 1 and worst < 1:
                break
        elif place and not found and (left := off(output[part], other[part])) < least_there:
            if _agreeing(function, task, check, number, part)[0]:
                found_there, least_there, which_there = words, left / 2, function
    if isinstance(which, InRange) and not over():
        tried = {value: _agreeing(which.instead(value), task, check, number, ...) for value in which.values}
        best_left = min(left for _, left in tried.values())
        alike = [value for value, (of, left) in tried.items() if of >= share and left < max(1.0, 2 * best_left)]
        return which.said(alike, found)
    words = found or (f"in {place} {found_there}" if found_there else "")
    last = which if found else which_there
    if last is None:
        return ""
    return words + _but_for(result(last, task, check, arrays, number), output, reference, tolerance)


def _but_for(other: Array | None, output: Array, reference: Array, tolerance: float) -> str:
    """The rows that are wrong and that a mistake does not explain, in words."""
    if other is None or output.ndim < 2:
        return ""
    left, whole = (np.linalg.norm(output - item, axis=-1) for item in (other, reference))
    stray = (row_error(output, reference) > 4 * tolerance) & (left > whole / 2)
    if not stray.any():
        return ""
    first = [int(i) for i in np.argwhere(stray)[0]]
    return f", but for {np.count_nonzero(stray):,} wrong rows, the first {first}"


def _likely_first(
    mistakes: Iterable[Mistake],
    task: Task,
    arrays: Mapping[str, Array],
    outcome: Outcome,
    number: int,
    over: Callable[[], bool],
) -> Iterator[Mistake]:
    """The mistakes that agree with a part of the output (`Task.part`) at once, the others after them; those of heads as they
    come, since the part has but some of them.
    """
    index = _last_rows(outcome.references[0].shape)
    if task.part is None or number or index is None:
        yield from mistakes
        return
    output, reference = wide(outcome.outputs[0])[index], outcome.references[0][index]
    near = max(2 * _near(output, reference, outcome.judgements[0].tolerance), 8 * outcome.judgements[0].tolerance)
    others = list[Mistake]()
    for words, function in mistakes:
        if over():
            return
        if "head" not in words:
            try:
                with np.errstate(all="ignore"):
                    found = getattr(function, "of_part", _of_part)(function, task, arrays, index)
            except Exception:  # a mistake need not take a part
                found = None
            if found is None or found.shape != output.shape or not off(output, found) < near:
                others.append((words, function))
                continue
        yield words, function
    yield from others


_ROWS, _ELEMENTS = 128, 1 << 17


def _last_rows(shape: tuple[int, ...]) -> tuple[slice, ...] | None:
    """Of the first head, fewer where they are wide: the last query sees the last key. None where that is all of the output."""
    if len(shape) < 2:
        return None
    rows = min(_ROWS, max(1, _ELEMENTS // max(shape[-1], 1)), shape[-2])
    index = (*(slice(0, 1) for _ in shape[:-2]), slice(shape[-2] - rows, shape[-2]))
    return index if rows < shape[-2] or max(shape[:-2], default=1) > 1 else None


def _of_part(function: Callable[..., Any], task: Task, arrays: Mapping[str, Array], index: tuple[slice, ...]) -> Array | None:
    """What a mistake makes of the arrays of a part."""
    if task.part is None:
        return None
    with under_way(f"task {task.name}: its part, reference or one of its wrong"):
        found = function(**task.part(arrays, index))
    return np.asarray(found[0] if isinstance(found, tuple) else found)


def _near(output: Array, reference: Array, tolerance: float) -> float:
    """How much an explanation may leave: rounding, and of the error a hundredth in float32, a quarter in 16 bits."""
    whole = off(output, reference)
    return min(max(5 * tolerance, 0.02), max(whole * min(max(20 * tolerance, 0.01), 0.25), min(tolerance, whole / 4)))


_PLACE = 0.9
"""Share of the error that a place holds if it is wrong and the rest right."""


def wrong_part(output: Array, reference: Array, tolerance: float) -> tuple[Any, str]:
    """The rows, columns and heads that are wrong, as an index and in words; all and no words if they are most of the output, or
    hold little of the error.
    """
    wrong = np.abs(output - reference) > tolerance * np.abs(reference).mean() * 3
    if output.ndim < 2 or not 0 < wrong.mean() < 1:
        return ..., ""
    wrong &= ~few_rows(wrong)[..., None, None]
    axes = [np.flatnonzero(wrong.any(tuple(i for i in range(wrong.ndim) if i != axis))) for axis in range(wrong.ndim)]
    if np.prod([len(index) for index in axes]) > 0.8 * wrong.size:
        return ..., ""
    part = np.ix_(*axes)
    if not holds_most(output - reference, part):
        return ..., ""
    return part, " and ".join(parts(wrong))


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
        with (
            np.errstate(all="ignore"),
            under_way(f"task {task.name}: its reference, or one of its wrong, at size {check.size:,}"),
        ):
            found = function(**arrays, **dict(task.constants(check.size)))
        return np.asarray(found[number] if isinstance(found, tuple) else found)
    except Exception:  # a reference need not take inputs that no task draws, nor a wrong one give all outputs
        return None


def _agreeing(function: Callable[..., Any], task: Task, check: Checked, number: int, part: Any) -> tuple[float, float]:
    """The share of the inputs with a wrong output that the mistake explains, 0 if that is less than half, or if the mistake
    changes inputs for which the output is right; and the most that it leaves of one of them, in tolerances.
    """
    explained = wrong = 0
    most = 0.0
    for outcome in check.outcomes:
        output, reference = wide(outcome.outputs[number]), outcome.references[number]
        if output.shape != reference.shape or not np.isfinite(output).all():
            continue
        other = result(function, task, check, exact(outcome.arrays), number)
        if other is None or other.shape != output.shape or not np.isfinite(other).all():
            return 0.0, np.inf
        judgement, left = outcome.judgements[number], off(output[part], other[part])
        if judgement.passed and left > max(8 * judgement.tolerance, 1e-3):
            return 0.0, np.inf
        if not judgement.passed:
            wrong += 1
            most = max(most, left / judgement.tolerance)
            explained += left < 2 * _near(output[part], reference[part], judgement.tolerance)
    return (explained / wrong if wrong and 2 * explained >= wrong else float(not wrong)), most
