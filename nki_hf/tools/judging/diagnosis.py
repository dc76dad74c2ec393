"""Diagnosis: what a wrong output is, in words: the result of one of many mistakes, or where and when it is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.tasks import Task
from nki_hf.tools.judging.input_mistakes import Misread, misread
from nki_hf.tools.judging.relations import factor_words, related
from nki_hf.tools.judging.values import Checked, Outcome

__all__ = ["imprecision", "matched", "named"]

Array = np.ndarray[Any, Any]
_TILE = 128


def named(task: Task, checks: Sequence[Checked]) -> str:
    """One sentence about the first wrong output of the simplest distribution; empty if nothing matches.

    Mistakes are tried on inputs of unit size first: there they differ most.
    """
    failing = [(check, outcome) for check in checks for outcome in check.outcomes if outcome.wrong is not None]
    if not failing:
        return ""
    when = _when(checks)
    if when.startswith("it is right on") and all(not np.isfinite(_wide(o.outputs[o.wrong or 0])).all() for _, o in failing):
        return when  # what overflows has no other pattern
    # outliers hide in other inputs what is wrong everywhere: only the simplest say where it is
    return matched(task, checks) or _general(task, *failing[0], failing[0][1].wrong or 0) or when


def matched(task: Task, checks: Sequence[Checked]) -> str:
    """The task's mistake that explains a wrong output, if there is one."""
    failing = [(check, outcome) for check in checks for outcome in check.outcomes if outcome.wrong is not None]
    until = time.process_time() + _SECONDS
    for check, outcome in failing[:3]:
        if words := _closest(task, check, outcome, outcome.wrong or 0, until):
            return f"{task.outputs[outcome.wrong or 0]} equals what comes out if {words}"
    return ""


def _closest(task: Task, check: Checked, outcome: Outcome, number: int, until: float) -> str:
    """The task's mistake that explains the output best, if one does: it leaves at most a quarter of the error."""
    output, reference = _wide(outcome.outputs[number]), outcome.references[number]
    if output.shape != reference.shape or not np.isfinite(output).all() or not output.any():
        return ""
    return _best(task.wrong.items(), task, check, outcome, number, until)


def _misread(task: Task, check: Checked, outcome: Outcome, number: int) -> str:
    """What of the inputs is read wrongly, if that explains the output."""

    def of(change: Misread) -> Callable[..., Any]:
        constants = dict(task.constants(check.size))
        return lambda **given: task.reference(
            **change({name: item for name, item in given.items() if name not in constants}), **constants
        )

    mistakes = ((words, of(change)) for words, change in misread(outcome.arrays))
    return _best(mistakes, task, check, outcome, number, time.process_time() + _SECONDS)


_SECONDS = 4.0
"""CPU time that is spent on the mistakes of a task, and as much on inputs that are read wrongly."""


def _best(
    mistakes: Iterable[tuple[str, Callable[..., Any]]], task: Task, check: Checked, outcome: Outcome, number: int, until: float
) -> str:
    """The mistake that comes nearest to the output, or to that part of it that is wrong, of those that are tried before the
    process has used `until` seconds of CPU time; 16-bit outputs are compared in float32.
    """
    real = np.float32 if outcome.outputs[number].dtype.itemsize < 4 else np.float64
    output, reference = _wide(outcome.outputs[number]), outcome.references[number]
    tolerance = outcome.judgements[number].tolerance
    part, where = _part(output, reference, max(3 * tolerance, 0.02))
    found, least = "", _near(output, reference, tolerance)
    found_there, least_there = "", _near(output[part], reference[part], tolerance)
    arrays = _exact(outcome.arrays, real)
    for words, function in mistakes:
        if time.process_time() > until:
            break
        other = _result(function, task, check, arrays, number)
        if other is None or other.shape != output.shape or not np.isfinite(other).all():
            continue
        left = _off(output, other)
        if left < least and _agrees(function, task, check, number, ...):
            found, least = words, left / 2  # a later one must be clearly better
            if left < tolerance / 4:
                break
        elif where and not found and (left := _off(output[part], other[part])) < least_there:
            if _agrees(function, task, check, number, part):
                found_there, least_there = words, left / 2
    return found or (f"in {where} {found_there}" if found_there else "")


def _near(output: Array, reference: Array, tolerance: float) -> float:
    """How much an explanation may leave: it must explain most of the error."""
    return min(max(5 * tolerance, 0.02), _off(output, reference) / 4)


def _part(output: Array, reference: Array, tolerance: float) -> tuple[Any, str]:
    """The rows, columns and heads that are wrong, as an index and in words; all and no words if they are most of the output."""
    wrong = np.abs(output - reference) > tolerance * np.abs(reference).mean() * 3
    if output.ndim < 2 or not 0 < wrong.mean() < 1:
        return ..., ""
    axes = [np.flatnonzero(wrong.any(tuple(i for i in range(wrong.ndim) if i != axis))) for axis in range(wrong.ndim)]
    if np.prod([len(index) for index in axes]) > 0.8 * wrong.size:
        return ..., ""
    words = _where("", "", wrong).removeprefix(" is  in ")
    return np.ix_(*axes), words.rpartition(" of ")[0]


def _exact(arrays: Mapping[str, Array], real: Any = np.float64) -> dict[str, Array]:
    return {name: array if array.dtype.kind in "iub" else np.asarray(array, real) for name, array in arrays.items()}


def _result(function: Callable[..., Any], task: Task, check: Checked, arrays: Mapping[str, Array], number: int) -> Array | None:
    """An output of a reference with a mistake; None if it does not take these inputs."""
    try:
        with np.errstate(all="ignore"):
            found = function(**arrays, **dict(task.constants(check.size)))
    except Exception:  # a reference need not take inputs that no task draws
        return None
    return np.asarray(found[number] if isinstance(found, tuple) else found)


def _agrees(function: Callable[..., Any], task: Task, check: Checked, number: int, part: Any) -> bool:
    """True if the mistake changes nothing on inputs for which the output is right, and explains most of those for which it is
    wrong.
    """
    explained = wrong = 0
    for outcome in check.outcomes:
        output, reference = _wide(outcome.outputs[number]), outcome.references[number]
        if output.shape != reference.shape or not np.isfinite(output).all():
            continue
        other = _result(function, task, check, _exact(outcome.arrays), number)
        if other is None or other.shape != output.shape or not np.isfinite(other).all():
            return False
        judgement, left = outcome.judgements[number], _off(output[part], other[part])
        if judgement.passed and left > max(8 * judgement.tolerance, 1e-3):
            return False
        if not judgement.passed:
            wrong += 1
            explained += left < 2 * _near(output[part], reference[part], judgement.tolerance)
    return 2 * explained >= wrong


def _off(first: Array, second: Array) -> float:
    size = float(np.linalg.norm(second))
    return float(np.linalg.norm(first - second)) / size if size else float(np.linalg.norm(first))


def _general(task: Task, check: Checked, outcome: Outcome, number: int) -> str:
    """Mistakes that any kernel can make."""
    output, reference = _wide(outcome.outputs[number]), outcome.references[number]
    name = task.outputs[number]
    tolerance = max(3 * outcome.judgements[number].tolerance, 0.02)
    if output.shape != reference.shape:
        if output.shape == reference.T.shape and _off(output.T, reference) < tolerance:
            return f"{name} is transposed: give its layout, or store it the other way round"
        if output.size == reference.size and _off(output.reshape(reference.shape), reference) < tolerance:
            return f"{name} has the right elements in the shape {list(output.shape)} instead of {list(reference.shape)}"
        return ""
    if outcome.judgements[number].verdict == "never written":
        return _where(name, "never written", ~np.isfinite(output)) or f"no instruction writes {name}"
    if not output.any() and reference.any():
        return f"{name} is zero everywhere: what was computed is not accumulated, or not what is stored"
    finite = np.isfinite(output)
    if not finite.all():
        return _where(name, "not finite", ~finite)
    near = min(tolerance, _off(output, reference) / 4)  # what explains an output leaves little of its error
    for i, other in enumerate(outcome.references):
        if i != number and other.shape == output.shape and _off(output, other) < near:
            return f"{name} holds what belongs to {task.outputs[i]}: the outputs are returned in another order"
    for other_name, array in outcome.arrays.items():
        if array.shape == output.shape and array.any() and _off(output, _wide(array)) < near:
            return f"{name} is a copy of the input {other_name}"
    if output.ndim == 2 and output.shape[0] == output.shape[1] and _off(output.T, reference) < tolerance:
        return f"{name} is transposed"
    factor = float((output * reference).sum() / (reference * reference).sum())
    if factor and abs(factor - 1) > tolerance and _everywhere(output, factor * reference, tolerance):
        lengths = [*reference.shape, *(size for array in outcome.arrays.values() for size in array.shape)]
        known = factor_words(factor, lengths)
        return f"{name} is {factor:.4g} times the reference everywhere{known}: a factor is missing or applied twice"
    if output.ndim == 3 and len(output) > 1:
        order = [int(np.argmin([_off(head, other) for other in reference])) for head in output]
        if order != list(range(len(order))) and _off(output, reference[order]) < tolerance:
            return (
                f"the heads of {name} are {'in another order' if len(set(order)) == len(order) else 'repeated'}: {order[:16]}"
            )
    if output.ndim >= 2:
        for axis, what in ((-2, "rows"), (-1, "columns")):
            words = _permuted(output, reference, axis, tolerance) if output.shape[axis] > _TILE else ""
            if words:
                return f"the tiles of 128 {what} of {name} {words}"
            for shift in (1, -1, _TILE, -_TILE):
                if abs(shift) < output.shape[axis] and _off(output, np.roll(reference, shift, axis)) < tolerance:
                    return f"the {what} of {name} are shifted by {shift}"
    if output.ndim >= 2 and (words := _added_up(output, reference, near) or _misplaced(output, reference, near)):
        return f"{name}: {words}"
    if words := _misread(task, check, outcome, number):
        return f"{name} equals what comes out if {words}"
    if words := related(output, reference, outcome.arrays, near):
        return f"{name} is {words}"
    if output.ndim >= 2:
        own = (output * reference).sum(-1, keepdims=True) / np.maximum((reference * reference).sum(-1, keepdims=True), 1e-300)
        if _off(output, own * reference) < tolerance and np.ptp(own) > tolerance:
            low, high = float(own.min()), float(own.max())
            first = own.shape[-2] > _TILE and np.abs(own[..., :_TILE, :] - 1).max() < tolerance
            where = f" beyond the first {_TILE} (what an earlier tile left is used again)" if first else ""
            return (
                f"each row of {name}{where} is off by a factor of its own, {low:.3g} to {high:.3g}: sums, divisors or "
                "maxima of rows are wrong (of one tile only, of another row, or not corrected when the maximum moves)"
            )
    if words := _rounded(output, reference, outcome.outputs[number].dtype.itemsize):
        return f"{name}: {words}"
    wrong = np.abs(output - reference) > tolerance * np.abs(reference).mean() * 3
    if 0 < wrong.mean() < 0.6:
        zero = "zero" if not output[wrong].any() else "wrong"
        return _where(name, zero, wrong)
    return ""


def _everywhere(output: Array, other: Array, tolerance: float) -> bool:
    """True if every row agrees, so that small rows do not hide behind large ones."""
    rows, sizes = (np.linalg.norm(np.atleast_1d(item), axis=-1) for item in (output - other, other))
    return bool((rows <= tolerance * np.maximum(sizes, 1e-2 * np.sqrt((sizes**2).mean()))).all())


def _added_up(output: Array, reference: Array, near: float) -> str:
    """Blocks that hold the sum of those before them as well."""
    for axis, what in ((-1, "columns"), (-2, "rows")):
        for size in (128, 256, 512):
            length = reference.shape[axis]
            if length % size or length == size:
                continue
            blocks = np.moveaxis(reference, axis, 0).reshape(length // size, size, -1)
            summed = np.moveaxis(np.cumsum(blocks, 0).reshape(np.moveaxis(reference, axis, 0).shape), 0, axis)
            if _off(output, summed) < near:
                return f"each block of {size} {what} also holds the sum of those before it: an accumulator is not cleared"
    return ""


_MOST_BLOCKS = 64


def _misplaced(output: Array, reference: Array, near: float) -> str:
    """Blocks of a matrix that are right, but elsewhere."""
    if output.ndim != 2:
        return ""
    for height, width in ((128, 512), (128, 128)):
        rows, columns = output.shape[0] // height, output.shape[1] // width
        if output.shape[0] % height or output.shape[1] % width or not 1 < rows * columns <= _MOST_BLOCKS:
            continue
        mine, right = (
            item.reshape(rows, height, columns, width).swapaxes(1, 2).reshape(rows * columns, -1)
            for item in (output, reference)
        )
        found = [min((_off(block, other), i) for i, other in enumerate(right)) for block in mine]
        if all(off < max(near, 1e-2) for off, _ in found) and [i for _, i in found] != list(range(len(found))):
            wrong = [number for number, (_, i) in enumerate(found) if i != number]
            return (
                f"{len(wrong)} of {len(found)} blocks of {height} x {width} hold what belongs into another block: block "
                f"{wrong[0]} holds block {found[wrong[0]][1]}"
            )
    return ""


def _rounded(output: Array, reference: Array, itemsize: int) -> str:
    """Elements that are all of a type narrower than the output's `itemsize`, where the reference's are not."""
    for dtype, off in ((ml_dtypes.float8_e4m3, 0.06), (ml_dtypes.bfloat16, 0.02), (np.float16, 0.003)):
        if np.dtype(dtype).itemsize < itemsize and _off(output, reference) < off:
            own, wanted = ((item.astype(dtype).astype(np.float64) == item).mean() for item in (output, reference))
            if own == 1 and wanted < 0.5:
                return f"every element is a {np.dtype(dtype).name} number: values are rounded on the way"
    return ""


def _permuted(output: Array, reference: Array, axis: int, tolerance: float) -> str:
    count = reference.shape[axis] // _TILE
    if count < 2 or reference.shape[axis] % _TILE:
        return ""
    pieces = [np.moveaxis(item, axis, 0).reshape(count, _TILE, -1) for item in (output, reference)]
    order = []
    for piece in pieces[0]:
        near = [_off(piece, other) for other in pieces[1]]
        if min(near) > tolerance:
            return ""
        order.append(int(np.argmin(near)))
    if order == list(range(count)):
        return ""
    return f"are {'in another order' if len(set(order)) == count else 'repeated'}: {order[:16]}"


def _where(name: str, what: str, wrong: Array) -> str:
    """Which rows and columns are wrong, if they are a block."""
    if wrong.ndim < 2:
        return ""
    rows = np.flatnonzero(wrong.any(tuple(i for i in range(wrong.ndim) if i != wrong.ndim - 2)))
    columns = np.flatnonzero(wrong.any(tuple(range(wrong.ndim - 1))))
    parts = []
    for index, size, word in ((rows, wrong.shape[-2], "rows"), (columns, wrong.shape[-1], "columns")):
        if len(index) < size:
            dense = len(index) == index[-1] - index[0] + 1
            parts.append(f"{word} {index[0]} to {index[-1]}" + ("" if dense else f" ({len(index)} of them)"))
    heads = wrong.any((-1, -2))
    if heads.ndim and not heads.all():
        parts.insert(0, f"heads {np.flatnonzero(heads).tolist()[:8]}")
    return f"{name} is {what} in {' and '.join(parts)} of {list(wrong.shape)}" if parts else ""


def _when(checks: Sequence[Checked]) -> str:
    """On which inputs and sizes it is wrong, where it is right on others."""
    bad = {o.distribution for check in checks for o in check.outcomes if o.wrong is not None}
    good = {o.distribution for check in checks for o in check.outcomes if o.wrong is None} - bad
    sizes = [check.size for check in checks if any(o.wrong is not None for o in check.outcomes)]
    if "normal" in good:
        large = bad & {"wide", "outlier_key", "late_maximum", "negative"}
        hint = ": a maximum is missing, taken from one tile only, or not followed by the sums" if large else ""
        return f"it is right on {', '.join(sorted(good))} inputs and wrong on {', '.join(sorted(bad))}{hint}"
    if len(sizes) < len(checks):
        right = [check.size for check in checks if check.size not in sizes]
        return f"it is right at size {right} and wrong at {sizes}: something follows one size"
    return ""


_NARROW = 6.0
"""Error ratio from which a 16-bit sum is no likely cause: one over four blocks has 1.4 to 3; float8_e4m3 rounds 16 times as
coarsely as bfloat16."""


def imprecision(outcome: Outcome, limit: float) -> str:
    """What the error ratios say, empty if they are as they should be."""
    found = outcome.precision
    if found is None or (found.ratio <= limit and found.factor_ratio <= 2 * limit):
        return ""
    if found.ratio > _NARROW:
        return (
            f"the error is {found.ratio:.1f} times that of exact arithmetic in this type: values or probabilities in an 8-bit "
            "type, or sums over many blocks in a 16-bit type"
        )
    if found.factor_ratio > 2 * limit:
        return (
            f"rows as a whole are off by {found.factor_ratio:.1f} times what exact sums would leave (the error of elements is "
            f"{found.ratio:.1f} times that of exact arithmetic): row sums or divisors in a 16-bit type"
        )
    return (
        f"the error is {found.ratio:.1f} times that of exact arithmetic in this type: sums or accumulators in a 16-bit type, "
        "or values rounded on the way"
    )


def _wide(array: Array) -> Array:
    return np.asarray(array, np.float64)
