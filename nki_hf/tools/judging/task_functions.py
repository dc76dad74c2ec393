"""Functions of a task as the judge calls them: what they raise, or give that is no such thing, is no fault of the kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from nki_hf.tools.judging.task_values import RunLike, fails
from nki_hf.tools.judging.under_way import noted, under_way

__all__ = ["SAME", "check_part", "of_the_task", "part_of"]

Array = np.ndarray[Any, Any]
_ROWS = 128
"""Of the tile by which a part is compared with the whole: a `Task.part` of yours may take nothing else."""
SAME = 1e-6
"""Of the largest element, in float64: other orders of summation differ by less."""


@contextlib.contextmanager
def of_the_task(run: RunLike, function: str) -> Iterator[None]:
    """Block that runs a function of the task: what it raises is wrong use, and so is that it never ends."""
    try:
        with under_way(f"task {run.task.name}: its {function} at size {run.size:,}"):
            yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not noted():
            raise
        raise fails(run, f"{function} raises {type(error).__name__} at size {run.size:,}: {error}") from None


def part_of(run: RunLike, arrays: Mapping[str, Array], index: tuple[slice, ...]) -> dict[str, Array]:
    """`Task.part` of these arrays; the task has one."""
    part: Any = run.task.part
    with of_the_task(run, "part"):
        found = part(arrays, index)
    if not isinstance(found, Mapping):
        wanted = f"it must give arrays by name, {', '.join(arrays)}"
        raise fails(run, f"part gives {type(found).__name__} at size {run.size:,}: {wanted}")
    return {name: np.asarray(array) for name, array in found.items()}


def check_part(run: RunLike, arrays: Mapping[str, Array]) -> None:
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
        raise fails(
            run, f"reference gives {list(found.shape)} of what its part gives {where}, which are {list(whole[index].shape)}"
        )
    if not np.allclose(found, whole[index], rtol=SAME, atol=SAME * float(np.nanmax(np.abs(whole))), equal_nan=True):
        raise fails(run, f"reference of what its part gives is other than that of all arrays {where}")


def _first(value: Any) -> Array:
    return np.asarray(value[0] if isinstance(value, tuple | list) else value)
