"""What functions of a task give: arrays and outputs that are none would make a right kernel wrong, or judge nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from nki_hf.tasks import Task
from nki_hf.tools.judging.findings import Failed, finding
from nki_hf.tools.judging.stage_names import TASK_FAILS
from nki_hf.tools.numpy_layouts import NUMPY_DTYPES

__all__ = ["AtSize", "RunLike", "check_mistake", "checked_inputs", "fails", "outputs_of", "scales_of"]

Array = np.ndarray[Any, Any]
_STORED = frozenset(NUMPY_DTYPES.values())


class AtSize(NamedTuple):
    """A task at one size."""

    task: Task
    size: int


class RunLike(Protocol):
    """What has a task and a size, such as a `Run`."""

    @property
    def task(self) -> Task:
        """What is computed."""

    @property
    def size(self) -> int:
        """Its size."""


def fails(run: RunLike, words: str) -> Failed:
    """The error of a task that is to blame, not the kernel; `words` go on after `its`."""
    return Failed("values", finding("values", {"kind": TASK_FAILS, "message": f"task {run.task.name}: its {words}"}))


def checked_inputs(
    run: RunLike, distribution: str, made: Any, shapes: Mapping[str, tuple[tuple[int, ...], str]]
) -> dict[str, Array]:
    """What `Task.inputs` gave, in the element types of `shapes`.

    Raises:
      Failed: an array is missing, has another shape, or is no array of numbers that its type holds.
    """
    where = f"at size {run.size:,} on {distribution} inputs"
    if not isinstance(made, Mapping):
        wanted = f"it must give arrays by name, {', '.join(shapes)}"
        raise fails(run, f"inputs gives {type(made).__name__} {where}: {wanted}")
    found = {}
    for name, (shape, dtype) in shapes.items():
        if name not in made:
            raise fails(run, f"inputs gives no {name} {where}: it must give {', '.join(shapes)}")
        array = _array(made[name])
        if array.shape != tuple(shape):
            wanted = f"arrays says {list(shape)}"
            raise fails(run, f"inputs gives {name} as {list(array.shape)} {where}: {wanted}")
        if not _numbers(array):
            raise fails(run, f"inputs gives {name} as {array.dtype} {where}: it must be real numbers")
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise fails(run, f"inputs gives NaN in {name} {where}: no output of it can be judged")
        kind = NUMPY_DTYPES[dtype]
        if kind.kind in "iu" and not _held(array, kind):
            raise fails(run, f"inputs gives numbers in {name} {where} that are none of {dtype}: they must be whole and fit")
        found[name] = array.astype(kind)
    return found


def outputs_of(run: RunLike, function: str, value: Any, like: Sequence[Array] = ()) -> tuple[Array, ...]:
    """What a reference gave, an array for each output.

    Args:
      run: of which task and size.
      function: its name, for the message.
      value: what it gave.
      like: outputs whose shapes it must have; empty = any.

    Raises:
      Failed: another number of outputs, or what is no array of real numbers.
    """
    names = run.task.outputs
    found = tuple(_array(item) for item in (value if isinstance(value, tuple | list) else (value,)))
    if len(found) != len(names):
        wanted = f"outputs says {len(names)} ({', '.join(names)})"
        raise fails(run, f"{function} gives {len(found)} outputs at size {run.size:,}: {wanted}")
    for number, (name, array) in enumerate(zip(names, found, strict=True)):
        if not _numbers(array):
            raise fails(run, f"{function} gives {name} as {array.dtype} at size {run.size:,}: it must be real numbers")
        if not array.ndim or not array.size:
            wanted = "it must have an axis and an element, as what a kernel returns"
            raise fails(run, f"{function} gives {name} as {list(array.shape)} at size {run.size:,}: {wanted}")
        letters = run.task.axes.get(name, "")
        if letters and len(letters) != array.ndim:
            raise fails(run, f"{function} gives {name} as {list(array.shape)} at size {run.size:,}: axes says {letters!r}")
        if like and array.shape != like[number].shape:
            wanted = f"reference gives {list(like[number].shape)}"
            raise fails(run, f"{function} gives {name} as {list(array.shape)} at size {run.size:,}: {wanted}")
    return found


def scales_of(run: RunLike, value: Any, references: Sequence[Array]) -> list[Array]:
    """What `Task.scale` gave, for each output: a number for each of its rows, 0 where it says none.

    Raises:
      Failed: another number of arrays, or one that does not fit the rows.
    """
    names = run.task.outputs
    given = value if isinstance(value, tuple) else (0.0 if value is None else value, *[0.0] * (len(names) - 1))
    if len(given) != len(names):
        wanted = f"outputs says {len(names)} ({', '.join(names)})"
        raise fails(run, f"scale gives a tuple of {len(given)} at size {run.size:,}: {wanted}")
    found = [_array(item) for item in given]
    for name, array, reference in zip(names, found, references, strict=True):
        rows = reference.shape[:-1]
        if not _numbers(array):
            raise fails(run, f"scale gives {array.dtype} for {name} at size {run.size:,}: it must be real numbers")
        if np.isnan(array.astype(np.float64)).any():
            raise fails(run, f"scale gives NaN for {name} at size {run.size:,}: no row of it can be judged")
        try:
            fits = np.broadcast_shapes(array.shape, rows) == rows
        except ValueError:
            fits = False
        if not fits:
            wanted = f"it must be a number for each row, {list(rows)}, or broadcast to them"
            raise fails(run, f"scale gives {list(array.shape)} for {name} at size {run.size:,}: {wanted}")
    return found


def check_mistake(run: RunLike, function: str, value: Any, references: Sequence[Array]) -> None:
    """Raise a `Failed` for what a reference with a mistake gave, if no output can be compared with it: it may give a tuple of
    the first outputs, or one array for whichever has its shape. One that only lies otherwise (a transposed output) may be.
    """
    names = run.task.outputs
    several = isinstance(value, tuple) and bool(value)
    found = [_array(item) for item in (value if several else (value,))]
    if len(found) > len(names):
        wanted = f"outputs says {len(names)} ({', '.join(names)})"
        raise fails(run, f"{function} gives {len(found)} outputs at size {run.size:,}: {wanted}")
    for number, array in enumerate(found):
        if not _numbers(array):
            raise fails(run, f"{function} gives {array.dtype} at size {run.size:,}: it must be real numbers")
        like = references[number : number + 1] if several else references
        if array.size not in [reference.size for reference in like]:
            wanted = " or ".join(dict.fromkeys(str(list(reference.shape)) for reference in like))
            raise fails(run, f"{function} gives {list(array.shape)} at size {run.size:,}: reference gives {wanted}")


def _array(value: Any) -> Array:
    try:
        return np.asarray(value)
    except ValueError:  # lists of unequal lengths: no array of numbers
        return np.asarray(None)


def _numbers(array: Array) -> bool:
    return array.dtype.kind in "biuf" or array.dtype in _STORED


def _held(array: Array, kind: np.dtype[Any]) -> bool:
    if array.dtype == kind or array.dtype.kind == "b" or not array.size:
        return True
    low, high, limits = array.min(), array.max(), np.iinfo(kind)
    return bool(low >= limits.min and high <= limits.max) and bool((array == np.trunc(array)).all())
