"""Diagnosis: what a wrong output is, in words: the result of one of many mistakes, or where and when it is wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nki_hf.tasks import Task
from nki_hf.tools.judging import traced
from nki_hf.tools.judging.budget import INPUTS, OPERATIONS, RESULTS, TASK, Budget
from nki_hf.tools.judging.carries import carried
from nki_hf.tools.judging.explaining import Mistake, best, compared_in, exact, holds_most, result, wrong_part
from nki_hf.tools.judging.input_mistakes import Misread, misread
from nki_hf.tools.judging.patterns import added_up, everywhere, misplaced, off, permuted, rounded, where, wide
from nki_hf.tools.judging.reference_mistakes import limited, mistakes
from nki_hf.tools.judging.relations import factor_words, related
from nki_hf.tools.judging.values import Checked, Outcome

__all__ = ["constant", "explained", "matched", "named"]

Array = np.ndarray[Any, Any]
_TILE = 128


def named(task: Task, checks: Sequence[Checked], budget: Budget | None = None) -> str:
    """One sentence about the first wrong output of the simplest distribution; empty if nothing matches.

    Mistakes are tried on inputs of unit size first, where they differ most, and within the `budget`, which notes what was not.
    """
    budget = budget or Budget()
    failing = _failing(checks)
    if not failing:
        return ""
    when = _when(checks)
    if when.startswith("it is right on") and all(not np.isfinite(wide(o.outputs[o.wrong or 0])).all() for _, o in failing):
        return when  # what overflows has no other pattern
    if words := matched(task, checks, budget):
        return words
    # outliers hide in other inputs what is wrong everywhere: only the simplest say where it is
    check, outcome = failing[0]
    wrong = [number for number, judgement in enumerate(outcome.judgements) if not judgement.passed]
    for number in wrong[1:_OUTPUTS]:  # the first may follow from another
        if words := _closest(task, check, outcome, number, budget):
            return f"{task.outputs[number]} equals what comes out if {words}"
    general = _general(task, check, outcome, outcome.wrong or 0, budget)
    same = "" if "what comes out if" in general else constant(task.outputs[wrong[0]], check, wrong[0])
    return same or general or when


def _failing(checks: Sequence[Checked]) -> list[tuple[Checked, Outcome]]:
    """What is wrong, size by size; inputs whose rows are all alike come last, since many mistakes look alike on them."""
    found = [(check, outcome) for check in checks for outcome in check.outcomes if outcome.wrong is not None]
    return sorted(found, key=lambda item: item[1].distribution == "equal")


def matched(task: Task, checks: Sequence[Checked], budget: Budget | None = None) -> str:
    """The task's mistake that explains a wrong output, if there is one."""
    budget = budget or Budget()
    for check, outcome in _failing(checks)[:3]:
        if words := _closest(task, check, outcome, outcome.wrong or 0, budget):
            return f"{task.outputs[outcome.wrong or 0]} equals what comes out if {words}"
    return ""


def explained(task: Task, checks: Sequence[Checked], budget: Budget | None = None) -> str:
    """The task's mistake, or an operation of its reference done otherwise, that explains a small error."""
    budget = budget or Budget()
    if words := matched(task, checks, budget):
        return words
    for check in checks:
        for outcome in check.outcomes:
            if outcome.wrong is not None:
                words = _otherwise(task, check, outcome, outcome.wrong, budget) or _otherwise(
                    task, check, outcome, outcome.wrong, budget, limited
                )
                return words and f"{task.outputs[outcome.wrong]} equals what comes out if {words}"
    return ""


def _closest(task: Task, check: Checked, outcome: Outcome, number: int, budget: Budget) -> str:
    """The task's mistake that explains the output best, if one does: it leaves at most a quarter of the error."""
    output, reference = wide(outcome.outputs[number]), outcome.references[number]
    if output.shape != reference.shape or not np.isfinite(output).all() or not output.any():
        return ""
    return best(task.wrong.items(), task, check, outcome, number, functools.partial(budget.over, TASK))


def _misread(task: Task, check: Checked, outcome: Outcome, number: int, budget: Budget) -> str:
    """What of the inputs is read wrongly, if that explains the output."""

    def of(change: Misread) -> Callable[..., Any]:
        constants = dict(task.constants(check.size))

        def misreading(**given: Any) -> Any:
            return task.reference(**change({name: item for name, item in given.items() if name not in constants}), **constants)

        def of_part(function: Any, task: Task, arrays: Mapping[str, Array], index: Any) -> Array | None:
            if task.part is None:
                return None
            return np.asarray(task.reference(**task.part(change(arrays), index), **constants))  # a part of what is read wrongly

        misreading.of_part = of_part  # type: ignore[attr-defined]
        return misreading

    wrong = [(words, of(change)) for words, change in misread(outcome.arrays)]
    wrong[:0] = _late(task, outcome, number)
    return best(wrong, task, check, outcome, number, functools.partial(budget.over, INPUTS))


def _late(task: Task, outcome: Outcome, number: int) -> list[Mistake]:
    """Inputs that are added to the output or multiplied with it, not where they belong."""
    shape, found = outcome.references[number].shape, list[Mistake]()
    for name, array in outcome.arrays.items():
        fits = array.ndim == len(shape) and all(n in (1, m) for n, m in zip(array.shape, shape, strict=True))
        for instead, ufunc, verb in ((np.zeros_like, np.add, "added"), (np.ones_like, np.multiply, "multiplied")):
            if not fits or array.dtype.kind in "iub":
                continue

            def late(name: str = name, instead: Any = instead, ufunc: Any = ufunc, **given: Any) -> Any:
                right = task.reference(**{**given, name: instead(given[name])})
                right = right[number] if isinstance(right, tuple) else right
                return (*[None] * number, ufunc(right, given[name]))

            found.append((f"{name} is {verb} at the end, not where it belongs", late))
    return found


def _otherwise(task: Task, check: Checked, outcome: Outcome, number: int, budget: Budget, what: Any = mistakes) -> str:
    """What operation of the reference is done otherwise, or with `what=limited` what result of one is rounded or clamped, if
    that explains the output.
    """
    arrays, output = exact(outcome.arrays, compared_in(outcome, number)), wide(outcome.outputs[number])
    given = {**arrays, **dict(task.constants(check.size))}
    over = functools.partial(budget.over, OPERATIONS if what is mistakes else RESULTS)
    tolerance = max(3 * outcome.judgements[number].tolerance, 0.02)
    part, _ = wrong_part(output, outcome.references[number], tolerance)

    def of(changes: Mapping[traced.Site, traced.Change]) -> Callable[..., Any]:
        return lambda **items: traced.run(task.reference, items, changes)

    def other(changes: Mapping[traced.Site, traced.Change]) -> Array | None:
        found = None if over() else result(of(changes), task, check, arrays, number)
        return None if found is None or found.shape != output.shape or not np.isfinite(found).all() else found[part]

    def error(changes: Mapping[traced.Site, traced.Change]) -> float:
        found = other(changes)
        return float("inf") if found is None else off(output[part], found)

    def wrong() -> Iterator[Mistake]:
        right = other({})
        if right is None:
            return
        whole, missing = off(output[part], right), output[part] - right

        def toward(changes: Mapping[traced.Site, traced.Change]) -> float:
            found = other(changes)
            moved = np.zeros_like(missing) if found is None else found - right
            sizes = float(np.linalg.norm(moved)) * float(np.linalg.norm(missing))
            return abs(float((moved * missing).sum())) / sizes if sizes else 0.0

        enough = max(whole / _SURE, 2 * outcome.judgements[number].tolerance)
        for words, changes in what(task.reference, given, error, toward, whole, enough):
            yield words, of(changes)

    try:
        return best(wrong(), task, check, outcome, number, over)
    except Exception:  # a reference may do with its arrays what a class of arrays does not support
        return ""


def constant(name: str, check: Checked, number: int) -> str:
    """An output that is the same on all inputs: constants that a kernel's Python made, or took from somewhere."""
    outputs = [outcome.outputs[number] for outcome in check.outcomes]
    wanted = [outcome.references[number] for outcome in check.outcomes]
    moves = any(off(other, wanted[0]) > 0.01 for other in wanted[1:])
    held = wide(outputs[0])
    if not moves or not np.isfinite(held).all() or not held.any():
        return ""  # never written, or nothing but zeros: that is said in other words
    if any(other.tobytes() != outputs[0].tobytes() for other in outputs[1:]):
        return ""
    return f"{name} is the same whatever the inputs are: it is made of constants, and no input reaches it"


_OUTPUTS = 3
"""Wrong outputs of which the task's mistakes are compared with one."""
_SURE = 200.0
"""Part of the error that a mistake with a number of its own leaves at most."""


def _general(task: Task, check: Checked, outcome: Outcome, number: int, budget: Budget) -> str:
    """Mistakes that any kernel can make."""
    output, reference = wide(outcome.outputs[number]), outcome.references[number]
    name = task.outputs[number]
    tolerance = max(3 * outcome.judgements[number].tolerance, 0.02)
    if output.shape != reference.shape:
        if output.shape == reference.T.shape and off(output.T, reference) < tolerance:
            return f"{name} is transposed: give its layout, or store it the other way round"
        if output.size == reference.size and off(output.reshape(reference.shape), reference) < tolerance:
            return f"{name} has the right elements in the shape {list(output.shape)} instead of {list(reference.shape)}"
        for i, other in enumerate(outcome.references):
            if other.shape == output.shape and off(output, other) < tolerance:
                return f"{name} holds what belongs to {task.outputs[i]}: the outputs are returned in another order"
        return ""
    if outcome.judgements[number].verdict == "never written":
        return where(name, "never written", ~np.isfinite(output)) or _unwritten(name, check)
    if not output.any() and reference.any():
        return f"{name} is zero everywhere: what was computed is not accumulated, or not what is stored"
    finite = np.isfinite(output)
    if not finite.all():
        return where(name, "not finite", ~finite)
    near = min(tolerance, off(output, reference) / 4)  # what explains an output leaves little of its error
    for i, other in enumerate(outcome.references):
        if i != number and other.shape == output.shape and off(output, other) < near:
            return f"{name} holds what belongs to {task.outputs[i]}: the outputs are returned in another order"
    for other_name, array in outcome.arrays.items():
        if (
            array.shape == output.shape
            and array.any()
            and off(output, wide(array)) < min(near, 2 * outcome.judgements[number].tolerance)
        ):
            return f"{name} is a copy of the input {other_name}"
    if output.ndim == 2 and output.shape[0] == output.shape[1] and off(output.T, reference) < tolerance:
        return f"{name} is transposed"
    factor = float((output * reference).sum() / (reference * reference).sum())
    if factor and abs(factor - 1) > tolerance and everywhere(output, factor * reference, tolerance):
        lengths = [*reference.shape, *(size for array in outcome.arrays.values() for size in array.shape)]
        known = factor_words(factor, lengths)
        return f"{name} is {factor:.4g} times the reference everywhere{known}: a factor is missing or applied twice"
    if output.ndim == 3 and len(output) > 1:
        order = [int(np.argmin([off(head, other) for other in reference])) for head in output]
        if order != list(range(len(order))) and off(output, reference[order]) < tolerance:
            return (
                f"the heads of {name} are {'in another order' if len(set(order)) == len(order) else 'repeated'}: {order[:16]}"
            )
    if output.ndim >= 2:
        for axis, what in ((-2, "rows"), (-1, "columns")):
            words = permuted(output, reference, axis, tolerance) if output.shape[axis] > _TILE else ""
            if words:
                return f"the tiles of 128 {what} of {name} {words}"
            for shift in (1, -1, _TILE, -_TILE):
                if abs(shift) < output.shape[axis] and off(output, np.roll(reference, shift, axis)) < tolerance:
                    return f"the {what} of {name} are shifted by {shift}"
    if words := carried(task, check.size, outcome, number):
        return f"{name}: {words}"
    if output.ndim >= 2 and (words := added_up(output, reference, near) or misplaced(output, reference, near)):
        return f"{name}: {words}"
    if words := _misread(task, check, outcome, number, budget):
        return f"{name} equals what comes out if {words}"
    if words := _otherwise(task, check, outcome, number, budget):
        return f"{name} equals what comes out if {words}"
    if words := _otherwise(task, check, outcome, number, budget, limited):
        return f"{name} equals what comes out if {words}"
    if words := related(output, reference, outcome.arrays, min(near, off(output, reference) / 20)):
        return f"{name} is {words}"
    if output.ndim >= 2 and output.shape[-1] > 1:  # one number of a row always is a factor of the right one
        own = (output * reference).sum(-1, keepdims=True) / np.maximum((reference * reference).sum(-1, keepdims=True), 1e-300)
        if off(output, own * reference) < near and np.ptp(own) > tolerance:
            low, high = float(own.min()), float(own.max())
            first = own.shape[-2] > _TILE and np.abs(own[..., :_TILE, :] - 1).max() < tolerance
            place = f" beyond the first {_TILE} (what an earlier tile left is used again)" if first else ""
            return (
                f"each row of {name}{place} is off by a factor of its own, {low:.3g} to {high:.3g}: sums, divisors or "
                "maxima of rows are wrong (of one tile only, of another row, or not corrected when the maximum moves)"
            )
    if words := rounded(output, reference, outcome.outputs[number].dtype.itemsize):
        return f"{name}: {words}"
    wrong = np.abs(output - reference) > tolerance * np.abs(reference).mean() * 3
    if 0 < wrong.mean() < 0.6 and holds_most(output - reference, wrong):
        zero = "zero" if not output[wrong].any() else "wrong"
        return where(name, zero, wrong)
    return ""


def _all_far_below(checks: Sequence[Checked]) -> bool:
    """True if negative inputs are below what exp takes."""
    arrays = [array for check in checks for o in check.outcomes if o.distribution == "negative" for array in o.arrays.values()]
    return any(array.size and float(np.max(array)) < -110 for array in arrays)


def _unwritten(name: str, check: Checked) -> str:
    """That nothing of an output is written, and the loop of run time that does not turn, if there is one."""
    entries = [event for event in check.result.events if event.opcode == "loop_entry"]
    if not entries or any(event.opcode == "loop_turn" for event in check.result.events):
        return f"at size {check.size:,} no instruction writes {name}"
    return (
        f"at size {check.size:,} the loop of run time at line {entries[0].line} makes no turn, and nothing else writes {name}"
    )


def _when(checks: Sequence[Checked]) -> str:
    """On which inputs and sizes it is wrong, where it is right on others."""
    bad = {o.distribution for check in checks for o in check.outcomes if o.wrong is not None}
    good = {o.distribution for check in checks for o in check.outcomes if o.wrong is None} - bad
    sizes = [check.size for check in checks if any(o.wrong is not None for o in check.outcomes)]
    if "normal" in good:
        large = bad & {"wide", "outlier_key", "late_maximum", "negative"}
        hint = (
            ": a maximum is missing, another number, or that of one tile, or the sums do not follow it, or numbers are clamped"
            if large
            else ""
        )
        if bad == {"negative"} and any("k" in check.outcomes[0].arrays for check in checks):
            hint = ": scores are far below 0 there: a running maximum begins at 0, or hidden scores are not far enough below"
        if "negative" in bad <= {"negative", "uneven_rows"} and _all_far_below(checks):
            hint = ": inputs are far below 0: a running maximum begins too high (at 0, say), or a constant is in its place"
        if bad == {"equal"}:
            hint = ": nearly equal numbers are subtracted, as in a variance that is a mean of squares less a squared mean"
        if bad == {"uneven_rows"}:
            hint = ": rows are not treated each by itself: a maximum or a sum serves other rows, or follows the first one"
        return f"it is right on {', '.join(sorted(good))} inputs and wrong on {', '.join(sorted(bad))}{hint}"
    if len(sizes) < len(checks):
        right = [check.size for check in checks if check.size not in sizes]
        return f"it is right at size {right} and wrong at {sizes}: something follows one size"
    return ""
