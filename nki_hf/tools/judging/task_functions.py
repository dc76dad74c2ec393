"""Functions of a task as the judge calls them: what they raise, or give that is no such thing, is no fault of the kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from nki_hf.tasks import Task
from nki_hf.tools.judging.findings import Failed, finding
from nki_hf.tools.judging.stage_names import TASK_FAILS

__all__ = ["check_part", "of_the_task", "part_of"]

Array = np.ndarray[Any, Any]
_ROWS = 128
"""Of the tile by which a part is compared with the whole: a `Task.part` of yours may take nothing else."""
_SAME = 1e-6
"""Of the largest element, in float64: other orders of summation differ by less."""


class _Run(Protocol):
    @property
    def task(self) -> Task: ...

    @property
    def size(self) -> int: ...


def _fails(run: _Run, words: str) -> Failed:
    return Failed("values", finding("values", {"kind": TASK_FAILS, "message": f"task {run.task.name}: its {words}"}))


@contextlib.contextmanager
def of_the_task(run: _Run, function: str) -> Iterator[None]:
    """Block that runs a function of the task: what it raises is wrong use."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise _fails(run, f"{function} raises {type(error).__name__} at size {run.size:,}: {error}") from None


def part_of(run: _Run, arrays: Mapping[str, Array], index: tuple[slice, ...]) -> dict[str, Array]:
    """`Task.part` of these arrays; the task has one."""
    part: Any = run.task.part
    with of_the_task(run, "part"):
        found = part(arrays, index)
    if not isinstance(found, Mapping):
        wanted = f"it must give arrays by name, {', '.join(arrays)}"
        raise _fails(run, f"part gives {type(found).__name__} at size {run.size:,}: {wanted}")
    return {name: np.asarray(array) for name, array in found.items()}


def check_part(run: _Run, arrays: Mapping[str, Array]) -> None:
    """Compare the reference of a part with that part of the reference of all: another one would make right kernels wrong.

    Args:
      run: of a size at which all is soon computed.
      arrays: in the run's types.
    """
    exact = {name: array.astype(np.float64) if array.dtype.kind not in "iub" else array for name, array in arrays.items()}
    constants = dict(run.task.constants(run.size))
    with of_the_task(run, "reference"), np.errstate(all="ignore"):
        whole = _first(run.task.reference(**exact, **constants))
    rows = whole.shape[-2]
    first = rows // 2 if rows <= _ROWS else (rows - 1) // _ROWS * _ROWS
    index = (*(slice(size - 1, size) for size in whole.shape[:-2]), slice(first, rows))
    given = part_of(run, {name: array.copy() for name, array in exact.items()}, index)
    with of_the_task(run, "reference, of what its part gives,"), np.errstate(all="ignore"):
        found = _first(run.task.reference(**given, **constants))
    where = f"for rows {first:,} to {rows - 1:,} of the output at size {run.size:,}"
    if found.shape != whole[index].shape:
        raise _fails(
            run, f"reference gives {list(found.shape)} of what its part gives {where}, which are {list(whole[index].shape)}"
        )
    if not np.allclose(found, whole[index], rtol=_SAME, atol=_SAME * float(np.nanmax(np.abs(whole))), equal_nan=True):
        raise _fails(run, f"reference of what its part gives is other than that of all arrays {where}")


def _first(value: Any) -> Array:
    return np.asarray(value[0] if isinstance(value, tuple | list) else value)
