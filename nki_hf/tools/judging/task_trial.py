"""The trial of a user's task, in a process of its own before any kernel is judged by it: each of its functions runs once.

It is at the smallest size that is judged. What they do wrong here is the task's fault alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nki_hf.tasks import load_task
from nki_hf.tasks.task_fields import check_fields, check_sizes
from nki_hf.tools.judging.findings import Failed
from nki_hf.tools.judging.request import judged_sizes
from nki_hf.tools.judging.task_functions import SAME, check_part, of_the_task
from nki_hf.tools.judging.task_values import check_mistake, fails, outputs_of, scales_of
from nki_hf.tools.judging.under_way import noted_in, under_way
from nki_hf.tools.judging.values import Run, distributions_of, drawn

__all__ = ["trial"]

Array = np.ndarray[Any, Any]
_SECONDS = 0.4
"""CPU time after which no further function is tried but those that judge every kernel: a round is to stay short."""


def trial(request: Mapping[str, Any], note: Path) -> dict[str, Any]:
    """`said`: what is wrong with a task, in words; empty if nothing is.

    Args:
      request: `task` (a file), `check` and `at` (sizes; empty = the task's) and `dtype` (empty = the task's).
      note: a file that holds the function under way.
    """
    noted_in(note)
    file = request["task"]
    try:
        with under_way(f"task={file}: its file, while it was imported,"):
            task = load_task(file, checked=False)
        with under_way(f"task {task.name}: its arrays, flops or constants"):
            check_fields(task)
            sizes = judged_sizes(request["check"], task)
            check_sizes(task, (*sizes, *request["at"]))
        if sizes:
            _try_functions(Run(task=task, size=min(sizes), dtype=request["dtype"] or task.dtype))
    except Failed as failed:
        return {"said": failed.findings[0]["message"]}
    except ValueError as error:  # of the file and its fields
        return {"said": str(error)}
    except BaseException as error:  # KeyboardInterrupt or one of its own: whatever the file raises
        return {"said": f"task={file} cannot be tried: {type(error).__name__}: {error}".rstrip(": ") + "."}
    return {"said": ""}


@dataclass(frozen=True, kw_only=True)
class _Given:
    """A task at one size, and arguments of its functions by name."""

    run: Run
    arrays: Mapping[str, Array]
    constants: Mapping[str, Any]

    def call(self, name: str, function: Callable[..., Any], *first: Any, **other: Any) -> Any:
        """What a function gives; its arrays must be as they were."""
        given = {key: array.copy() for key, array in self.arrays.items()}
        with of_the_task(self.run, name), np.errstate(all="ignore"):
            value = function(*first, **{**given, **self.constants, **other})
        for key, array in self.arrays.items():
            if given[key].tobytes() != array.tobytes():
                raise fails(
                    self.run, f"{name} changes {key} in place at size {self.run.size:,}: it must leave its arrays alone"
                )
        return value


def _try_functions(run: Run) -> None:
    began = time.process_time()
    arrays = drawn(run, "normal", 0)
    for distribution in distributions_of(run.task, 0)[1:]:
        drawn(run, distribution, 0)
    if run.task.inputs is not None and any(a.tobytes() != b.tobytes() for a, b in _pairs(arrays, drawn(run, "normal", 0))):
        raise fails(run, f"inputs gives other arrays for the same generator at size {run.size:,}: it must draw from that alone")
    constants = dict(run.task.constants(run.size))
    exact, narrow = (
        _Given(run=run, arrays={key: _as(array, kind) for key, array in arrays.items()}, constants=constants)
        for kind in (np.float64, np.float32)
    )
    references = outputs_of(run, "reference", exact.call("reference", run.task.reference))
    for name, array in zip(run.task.outputs, references, strict=True):
        if not np.isfinite(_as(array, np.float64)).any():
            raise fails(run, f"reference gives no finite number in {name} at size {run.size:,} on normal inputs")
    ideal = run.task.ideal
    if ideal is not None:
        outputs_of(run, "ideal", narrow.call("ideal", ideal), references)
    if run.task.scale is not None:
        scale = exact.call("scale", run.task.scale)
        scales_of(run, scale, references)
    for more in (_again, _wrong, _accepted, _step, _part):
        if time.process_time() - began > _SECONDS:
            return
        more(exact, references, lambda: time.process_time() - began > _SECONDS)


def _again(given: _Given, references: tuple[Array, ...], over: Callable[[], bool]) -> None:
    run = given.run
    others = outputs_of(run, "reference", given.call("reference", run.task.reference), references)
    for name, one, other in zip(run.task.outputs, references, others, strict=True):
        first, second = _as(one, np.float64), _as(other, np.float64)
        most = float(np.abs(first[np.isfinite(first)]).max(initial=0.0))
        if not np.allclose(first, second, rtol=SAME, atol=SAME * most, equal_nan=True):
            raise fails(run, f"reference gives another {name} for the same arrays at size {run.size:,}")


def _wrong(given: _Given, references: tuple[Array, ...], over: Callable[[], bool]) -> None:
    for words, function in given.run.task.wrong.items():
        if over():
            return
        if str(getattr(getattr(function, "func", function), "__module__", "")).startswith("nki_hf."):
            continue  # of the package, some for other shapes: they are skipped where they do not fit
        name = f"wrong {words!r}"
        value = given.call(name, function)
        check_mistake(given.run, name, value, references)


def _accepted(given: _Given, references: tuple[Array, ...], over: Callable[[], bool]) -> None:
    run = given.run
    for words, function in run.task.accepted.items():
        if over():
            return
        name = f"accepted {words!r}"
        other = given.call(name, function, np.array(references[0], np.float64), run.dtype)
        if not isinstance(other, Mapping):
            wanted = "it must give arguments of the reference by name"
            raise fails(run, f"{name} gives {type(other).__name__} at size {run.size:,}: {wanted}")
        function_of = "reference, of what accepted gives,"
        outputs_of(run, function_of, given.call(function_of, run.task.reference, **other), references)


def _step(given: _Given, references: tuple[Array, ...], over: Callable[[], bool]) -> None:
    run = given.run
    before = np.asarray(references[0], np.float64)[..., :-1]
    if run.task.step is None or not before.size:
        return
    found = np.asarray(_Given(run=run, arrays=given.arrays, constants={}).call("step", run.task.step, before.copy()))
    if found.shape != before.shape or found.dtype.kind not in "biuf":
        wanted = f"it must be {list(before.shape)}, as what it is given"
        raise fails(run, f"step gives {found.dtype} {list(found.shape)} at size {run.size:,}: {wanted}")


def _part(given: _Given, references: tuple[Array, ...], over: Callable[[], bool]) -> None:
    """At the largest size, as before a part is judged: it has a whole tile of rows there, and a part need not take less."""
    task, run = given.run.task, replace(given.run, size=max(given.run.task.check))
    if task.part is None or references[0].ndim < 2:
        return
    began = time.process_time()
    given.call("reference", task.reference)
    if (time.process_time() - began) * task.flops(run.size) <= _SECONDS * max(task.flops(given.run.size), 1):
        check_part(run, drawn(run, "normal", 0))


def _pairs(one: Mapping[str, Array], other: Mapping[str, Array]) -> list[tuple[Array, Array]]:
    return [(array, other[name]) for name, array in one.items()]


def _as(array: Array, kind: Any) -> Array:
    return array.astype(kind) if array.dtype.kind not in "iub" else array
