"""What the fields of a task of a user's file must be: a wrong one would be taken for a fault of a kernel, or judge nothing."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from nki_hf.sim.dtypes import as_dtype

if TYPE_CHECKING:
    from nki_hf.tasks.task import Task

__all__ = ["FLOAT", "RUN_DTYPES", "check_fields", "check_sizes"]

FLOAT = "float"
"""The element type of an array that takes the one of the run (`Task.dtype`, or `--dtype`)."""
RUN_DTYPES = ("bfloat16", "float16", "float32")
"""Element types of a run."""
_MASK = ("ahead", "window")
_SIZES = "a tuple of one or more sizes (whole numbers from 1 on)"


def _whole(value: Any, least: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) >= least


def _number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and abs(float(value)) < math.inf


def _sizes(value: object) -> bool:
    return isinstance(value, tuple | list) and bool(value) and all(_whole(size, 1) for size in value)


def _names(value: object) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(name, str) and name for name in value)


def _functions(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) and callable(each) for name, each in value.items())


def _dtype(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        as_dtype(value)
    except (TypeError, ValueError):
        return value == FLOAT
    return True


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda value: isinstance(value, str) and bool(value), "words"),
    "about": (lambda value: isinstance(value, str), "words"),
    "family": (lambda value: isinstance(value, str), "words"),
    "check": (_sizes, _SIZES),
    "at": (_sizes, _SIZES),
    "ragged": (lambda value: _whole(value, 0), "a size (a whole number from 1 on), or 0 for none"),
    "outputs": (lambda value: _names(value) and len(set(value)) == len(value) > 0, "a tuple of one or more names"),
    "distributions": (_names, "a tuple of names"),
    "in_place": (_names, "a tuple of names of arrays"),
    "dtype": (lambda value: value in RUN_DTYPES, " or ".join(RUN_DTYPES)),
    "out_dtypes": (
        lambda value: _names(value) and all(map(_dtype, value)),
        "element types by name, one for each output",
    ),
    "recorded": (lambda value: isinstance(value, bool), "True or False"),
    "least_rtol": (lambda value: _number(value) and value > 0, "a number above 0"),
    "axes": (
        lambda value: isinstance(value, Mapping) and _names([*value, *value.values()]),
        "letters by name of array",
    ),
    "mask": (
        lambda value: isinstance(value, Mapping) and all(key in _MASK and _whole(n, 0) for key, n in value.items()),
        f"whole numbers by {' and '.join(_MASK)}",
    ),
    "wrong": (_functions, "functions by words"),
    "accepted": (_functions, "functions by words"),
    **dict.fromkeys(("arrays", "reference", "flops", "constants"), (callable, "a function")),
    **dict.fromkeys(
        ("inputs", "ideal", "scale", "part", "step"), (lambda value: value is None or callable(value), "a function or None")
    ),
}


def check_fields(task: Task) -> None:
    """Raise ValueError for a field that is no such thing, or a function of a size that raises or gives none."""
    for name, (right, words) in _FIELDS.items():
        value = getattr(task, name)
        if not right(value):
            raise ValueError(f"task {task.name}: {name}={value!r} must be {words}.")
    if len(task.out_dtypes) > len(task.outputs):
        raise ValueError(
            f"task {task.name}: out_dtypes={tuple(task.out_dtypes)} has {len(task.out_dtypes)} element types: "
            f"it must be one for each output, {', '.join(task.outputs)}."
        )
    if task.inputs is None and task.distributions:
        raise ValueError(
            f"task {task.name}: distributions={tuple(task.distributions)} are names that inputs knows, and there is no inputs: "
            "say how they are drawn, or leave distributions out."
        )
    check_sizes(task, (*task.check, *task.at, *([task.ragged] if task.ragged else ())))


def check_sizes(task: Task, sizes: Iterable[int]) -> None:
    """Raise ValueError where a function of a size raises or gives none, or there are other arrays than at the first size."""
    names: tuple[str, ...] = ()
    for size in dict.fromkeys(sizes):
        shapes = _of_size(task, "arrays", size)
        _check_shapes(task, shapes, size)
        names = names or tuple(shapes)
        if tuple(shapes) != names:
            raise ValueError(
                f"task {task.name}: its arrays gives {', '.join(shapes)} at size {size!r}: they must be those of other sizes, "
                f"{', '.join(names)}."
            )
        operations = _of_size(task, "flops", size)
        if not _number(operations) or operations < 0:
            raise ValueError(f"task {task.name}: its flops gives {operations!r} at size {size!r}: it must be 0 or more.")
        constants = _of_size(task, "constants", size)
        if not isinstance(constants, Mapping):
            raise ValueError(
                f"task {task.name}: its constants gives {constants!r} at size {size!r}: it must be values by name of argument."
            )


def _of_size(task: Task, name: str, size: int) -> Any:
    try:
        return getattr(task, name)(size)
    except KeyboardInterrupt:  # the user's, most likely
        raise
    except BaseException as error:  # whatever the task's own code raises
        raise ValueError(f"task {task.name}: its {name} raises {type(error).__name__} at size {size!r}: {error}") from error


def _check_shapes(task: Task, shapes: Any, size: int) -> None:
    wanted = "it must be a shape and an element type by name of argument, such as {'x': ((size, 512), FLOAT)}"
    if not isinstance(shapes, Mapping) or not shapes:
        raise ValueError(f"task {task.name}: its arrays gives {shapes!r} at size {size!r}: {wanted}.")
    for name, found in shapes.items():
        pair = isinstance(found, tuple | list) and len(found) == 2 and isinstance(found[0], tuple | list)
        if not pair or not all(_whole(length, 1) for length in found[0]) or not _dtype(found[1]):
            raise ValueError(f"task {task.name}: its arrays gives {name}={found!r} at size {size!r}: {wanted}.")
        letters = task.axes.get(name)
        if letters is not None and (len(letters) != len(found[0]) or len(set(letters)) != len(letters)):
            raise ValueError(
                f"task {task.name}: axes has {name}={letters!r}: it must be a letter for each axis of {list(found[0])}."
            )
    known = {"axes": (*shapes, *task.outputs), "in_place": tuple(shapes)}
    for field, names in known.items():
        for name in getattr(task, field):
            if name not in names:
                raise ValueError(f"task {task.name}: {field} has {name!r}: it must be one of {', '.join(names)}.")
