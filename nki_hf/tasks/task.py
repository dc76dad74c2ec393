"""Task: what a kernel is to compute, as data and NumPy functions: arrays, reference, operations, sizes."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nki_hf.from_source import spec_of
from nki_hf.tasks.task_fields import FLOAT, check_fields

__all__ = ["FLOAT", "Task", "load_task", "rows_of", "task_names"]

Array = np.ndarray[Any, Any]
Shapes = Mapping[str, tuple[tuple[int, ...], str]]


def _nothing(size: int) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a kernel is to compute.

    Attributes:
      name: how it is asked for.
      about: one sentence with the formula.
      arrays: size -> shape and element type by argument name, in the order of the arguments; `FLOAT` = the run's type.
      reference: the arrays in float64 (integers as they are) and the constants, by name -> the output or a tuple of them.
      flops: size -> useful floating-point operations.
      check: sizes at which values are judged; the first is the one that `--check` replaces.
      at: sizes that are timed.
      ragged: a size that no tile divides; kernels that take it must be right there too. 0 = none.
      axes: letters of an array's or output's axes, for `--layout`; an array that is not listed has one layout.
      outputs: names of the outputs.
      dtype: `FLOAT` unless told otherwise.
      out_dtypes: element types of the outputs; `FLOAT` = the run's; empty = all the run's.
      constants: size -> further keyword arguments; given to kernels that have such parameters.
      in_place: arrays that the kernel may both read and write; of all others it must leave what it reads as it is.
      inputs: size, distribution, random generator -> arrays in float64, where the usual distributions do not fit.
      distributions: further names that `inputs` knows, such as `small`; judged beside the usual ones.
      recorded: `inputs` gives the same arrays whatever the distribution: they are judged once, and run again.
      ideal: arrays in the run's type (as float32) and constants, by name -> what a perfect kernel of that type gives, before
        the last rounding; None = the reference in float32.
      wrong: words -> a reference with one mistake, to name what a wrong output is.
      accepted: words -> the arguments of the reference that are otherwise for a kernel that is less exact at one place, as
        published kernels are: a function of the first output (float64), the element type by name, and the reference's
        arguments in float64. Such a kernel passes with a warning, if it is right for those arguments.
      family: whose measured latencies say how far the timing model is off: `attention`, `decode attention`, `matmul`,
        `normalisation`; empty = none were measured.
      least_rtol: row error in float32 that is always allowed: other orders of summation differ by as much; a task that sums
        nothing has a smaller one.
      scale: arrays in float64 and constants, by name -> size of what each row of the first output sums, where much of it may
        cancel; a tuple for all outputs.
      part: arrays by name and an index of the outputs (a slice of one for each axis but the last two, and some rows) -> arrays
        for which the reference gives this part of the outputs. At timed sizes, where all values would take too long, those of
        one tile of rows are judged (None = values are judged at `--check` alone), and mistakes are compared with the last rows
        before they are with all of the output.
      step: of a recurrence along the last axis of the first output: what columns 1 to the last are, from columns 0 to the one
        before the last (float64, the first argument) and the arrays by name; linear in the former. By it a wrong carry from
        block to block is told from wrong blocks.
      mask: of attention, `ahead` and `window` as in `nki_hf.problem.Mask`, where the last query sees the last key; kernels of
        this package are given it.
    """

    name: str
    about: str
    arrays: Callable[[int], Shapes]
    reference: Callable[..., Any]
    flops: Callable[[int], int]
    check: Sequence[int]
    at: Sequence[int]
    ragged: int = 0
    axes: Mapping[str, str] = field(default_factory=dict)
    outputs: Sequence[str] = ("out",)
    dtype: str = "bfloat16"
    out_dtypes: Sequence[str] = ()
    constants: Callable[[int], Mapping[str, Any]] = _nothing
    in_place: Sequence[str] = ()
    inputs: Callable[[int, str, np.random.Generator], Mapping[str, Array]] | None = None
    distributions: Sequence[str] = ()
    recorded: bool = False
    ideal: Callable[..., Any] | None = None
    wrong: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    accepted: Mapping[str, Callable[..., Mapping[str, Any]]] = field(default_factory=dict)
    scale: Callable[..., Any] | None = None
    part: Callable[[Mapping[str, Array], tuple[slice, ...]], Mapping[str, Array]] | None = None
    family: str = ""
    least_rtol: float = 2e-5
    step: Callable[..., Array] | None = None
    mask: Mapping[str, int] = field(default_factory=dict)

    def shapes(self, size: int, dtype: str) -> dict[str, tuple[tuple[int, ...], str]]:
        """`arrays` with the run's element type."""
        return {name: (shape, dtype if kind == FLOAT else kind) for name, (shape, kind) in self.arrays(size).items()}


def rows_of(*names: str) -> Callable[[Mapping[str, Array], tuple[slice, ...]], dict[str, Array]]:
    """`Task.part` of a task whose outputs have a row for each row of the arrays `names`, and need all of the others."""
    return lambda arrays, index: {name: array[index] if name in names else array for name, array in arrays.items()}


def task_names() -> list[str]:
    """Names of the tasks that come with the package."""
    return sorted(found for module in _modules() for found in getattr(module, "TASKS", {}))


def load_task(name: str, *, checked: bool = True) -> Task:
    """The task of a name, or of a file that says `TASK = Task(...)` (`FILE.py` or `FILE.py:NAME`).

    Args:
      name: of either.
      checked: fields of a file's task are checked, too.

    Raises:
      ValueError: there is none.
    """
    file, _, wanted = name.partition(".py")
    if file != name:
        task = _from_file(Path(file + ".py"), wanted.removeprefix(":") or "TASK")
        if checked:
            check_fields(task)
        return task
    for module in _modules():
        found = getattr(module, "TASKS", {}).get(name)
        if found is not None:
            return found
    raise ValueError(
        f"task={name!r} is not known: it is one of {', '.join(task_names())}, or a file that says TASK = Task(...)."
    )


def _modules() -> list[Any]:
    package = importlib.import_module("nki_hf.tasks")
    return [importlib.import_module(f"nki_hf.tasks.{item.name}") for item in pkgutil.iter_modules(package.__path__)]


def _from_file(path: Path, wanted: str) -> Task:
    if not path.is_file():
        raise ValueError(f"task={path} is not a file: give a .py file that says TASK = Task(...), or one of the names.")
    spec = spec_of(f"nki_hf_task_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"task={path} cannot be loaded.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a record may go to standard output, alone
            spec.loader.exec_module(module)
    except KeyboardInterrupt:  # the user's, most likely
        raise
    except BaseException as error:  # whatever the file's own code raises
        raise ValueError(f"task={path} cannot be imported: {type(error).__name__}: {error}.") from error
    found = getattr(module, wanted, None)
    if not isinstance(found, Task):
        raise ValueError(f"task={path} has no {wanted} = Task(...): see docs/writing_kernels.md.")
    return found
