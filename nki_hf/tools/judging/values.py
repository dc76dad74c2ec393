"""Values: the tape is run on inputs that the kernel's Python never saw, and every output is compared with the reference."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nki_hf.errors import KernelFault
from nki_hf.sim import LaunchResult, SimOptions, launch
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.sim.run.play import played
from nki_hf.tasks import FLOAT, Task
from nki_hf.testing import DISTRIBUTIONS
from nki_hf.tools.judging.layouts import layout_of, placed, returned
from nki_hf.tools.judging.precision import Precision, precision
from nki_hf.tools.judging.task_functions import of_the_task
from nki_hf.tools.judging.task_values import checked_inputs, outputs_of, scales_of
from nki_hf.tools.numpy_layouts import NUMPY_DTYPES
from nki_hf.tools.verify_cases import never_written
from nki_hf.tools.verify_inputs import array_inputs
from nki_hf.tools.verify_judge import Judgement, judge, row_error, unit_roundoff

__all__ = [
    "Checked",
    "Outcome",
    "Run",
    "checked",
    "distributions_of",
    "drawn",
    "in_layout",
    "judged_on",
    "other_draw",
    "replayed",
    "run_tape",
    "strict_read",
    "to_kernel",
]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is judged: a task at one size in one element type.

    Attributes:
      task, size, dtype: what.
      layout: letters by array.
      rtol: allowed row error; 0 = from the ideal kernel.
      packed: how a kernel of ours takes the task's arrays, by a function; None = as they are.
      accepted: the entry of `Task.accepted` by which values are judged; empty = none.
    """

    task: Task
    size: int
    dtype: str
    layout: Mapping[str, str] = field(default_factory=dict)
    rtol: float = 0.0
    packed: Any = None
    accepted: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One distribution: the judgement of each output, and what is needed to find out more. `first` is where the outputs begin
    in those that they are a part of, axis by axis.
    """

    distribution: str
    arrays: Mapping[str, Array]
    outputs: Sequence[Array]
    references: Sequence[Array]
    judgements: Sequence[Judgement]
    precisions: Sequence[Precision | None]
    first: tuple[int, ...] = ()

    @property
    def least_exact(self) -> int:
        """The output whose error is the largest beside that of an ideal kernel."""
        ratios = [0.0 if item is None else item.ratio for item in self.precisions]
        return ratios.index(max(ratios, default=0.0)) if ratios else 0

    @property
    def wrong(self) -> int | None:
        """The first output that is wrong."""
        return next((i for i, found in enumerate(self.judgements) if not found.passed), None)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One size: outcomes by distribution, whether the result depends on old memory, and the launch itself."""

    size: int
    outcomes: Sequence[Outcome]
    depends_on_memory: bool
    count: str
    result: LaunchResult


def drawn(run: Run, distribution: str, seed: int) -> dict[str, Array]:
    """The task's arrays in the run's element types."""
    shapes = run.task.shapes(run.size, run.dtype)
    rng = np.random.default_rng([seed, run.size, *distribution.encode()])
    if run.task.inputs is not None:
        with of_the_task(run, "inputs"):
            found = run.task.inputs(run.size, distribution, rng)
        return checked_inputs(run, distribution, found, shapes)
    usual = distribution if distribution in DISTRIBUTIONS else "normal"
    made = array_inputs({name: shape for name, (shape, _) in shapes.items()}, usual, int(rng.integers(1 << 31)))
    return {name: np.asarray(made[name]).astype(NUMPY_DTYPES[dtype]) for name, (_, dtype) in shapes.items()}


def distributions_of(task: Task, number: int) -> tuple[str, ...]:
    """What the inputs of a size are drawn from: of the first size all there is, of others those that find most."""
    if task.recorded:
        return ("normal",)
    names = (*DISTRIBUTIONS, *(("late_maximum",) if "k" in task.axes else ()), *task.distributions)
    return names if not number else tuple(name for name in names if name in _FIND_MOST)


_FIND_MOST = ("normal", "wide", "late_maximum", "uneven_rows")
"""`uneven_rows` shows what rows take from another tile of rows: the first size may have but one."""


def to_kernel(run: Run, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays as the kernel takes them."""
    if run.packed is not None:
        return run.packed(arrays)
    found = {}
    for name, array in arrays.items():
        own, wanted = layout_of(run.task, run.layout, name)
        found[name] = placed(array, own, wanted) if own else array
    return found


def run_tape(trace: Mapping[str, Any], inputs: Mapping[str, Array], options: SimOptions, lnc: int) -> LaunchResult:
    """Launch the recorded program; `inputs` by the task's names."""
    names = [parameter for parameter, _ in trace["parameters"]]
    arguments = {parameter: np.array(inputs[name]) for parameter, name in trace["parameters"]}
    return launch(played(trace["tape"], names), (), arguments, options=options, lnc=lnc)


def checked(
    run: Run,
    trace: Mapping[str, Any],
    options: SimOptions,
    lnc: int,
    seed: int,
    distributions: Sequence[str],
    first: LaunchResult,
    first_arrays: Mapping[str, Array],
) -> Checked:
    """Judge one size: `first` is the launch on `first_arrays`, the others are replays of it."""
    program = first.program
    outcomes = [_outcome(run, distributions[0], first_arrays, in_layout(run, first.outputs), never_written(first))]
    wanted, given = len(run.task.outputs), len(first.outputs)
    if given < wanted:
        return Checked(
            size=run.size,
            outcomes=outcomes,
            depends_on_memory=False,
            result=first,
            count=f"the kernel returns {given} outputs, {wanted} are expected ({', '.join(run.task.outputs)})"
            + (": it returns None" if trace["tape"]["returned"].get("0") is None else ""),
        )
    for distribution in distributions[1:]:
        arrays = drawn(run, distribution, seed)
        outcomes.append(judged_on(run, distribution, arrays, replayed(run, program, trace, arrays, options, lnc)))
    depends = False
    if program is not None and (len(distributions) > 1 or run.task.recorded):
        repeated = _replayed(run, program, trace, first_arrays, options, lnc)
        depends = any(a.tobytes() != b.tobytes() for a, b in zip(first.outputs, repeated, strict=True))
    return Checked(size=run.size, outcomes=outcomes, depends_on_memory=depends, count="", result=first)


def other_draw(run: Run, trace: Mapping[str, Any], options: SimOptions, lnc: int, secret: int, first: LaunchResult) -> Outcome:
    """Normal inputs of a seed that nobody knew, beside those of a seed that was named: a kernel's Python may have read that."""
    arrays = drawn(run, "normal", secret)
    return judged_on(run, "normal", arrays, replayed(run, first.program, trace, arrays, options, lnc))


def judged_on(
    run: Run, distribution: str, arrays: Mapping[str, Array], outputs: Sequence[Array], first: tuple[int, ...] = ()
) -> Outcome:
    """The judgement of outputs in the task's layout on these inputs; `first` as in `Outcome`."""
    return _outcome(run, distribution, arrays, outputs, None, first)


def replayed(
    run: Run, program: Any, trace: Mapping[str, Any], arrays: Mapping[str, Array], options: SimOptions, lnc: int
) -> list[Array]:
    """The outputs on these inputs, in the task's layout."""
    return in_layout(run, _replayed(run, program, trace, arrays, options, lnc))


def _replayed(
    run: Run, program: Any, trace: Mapping[str, Any], arrays: Mapping[str, Array], options: SimOptions, lnc: int
) -> Sequence[Array]:
    inputs = to_kernel(run, arrays)
    if program is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SimulatorWarning)
            return run_tape(trace, inputs, options, lnc).outputs
    return program({parameter: np.array(inputs[name]) for parameter, name in trace["parameters"]})


def in_layout(run: Run, outputs: Sequence[Array]) -> list[Array]:
    """What a kernel returned in the task's layout."""
    found = []
    for name, output in zip(run.task.outputs, outputs, strict=False):
        own, given = layout_of(run.task, run.layout, name)
        found.append(returned(output, own, given) if own else output)
    return found


def _outcome(
    run: Run,
    distribution: str,
    arrays: Mapping[str, Array],
    outputs: Sequence[Array],
    unwritten: Sequence[Any] | None,
    first: tuple[int, ...] = (),
) -> Outcome:
    task = run.task
    constants = dict(task.constants(run.size))
    exact = {name: _wide(array, np.float64) for name, array in arrays.items()}
    with np.errstate(all="ignore"):
        other: Mapping[str, Any] = {}
        if run.accepted:
            with of_the_task(run, "accepted"):
                other = task.accepted[run.accepted](np.asarray(outputs[0], np.float64), run.dtype, **exact, **constants)
        with of_the_task(run, "reference"):
            given = task.reference(**{**exact, **constants, **other})
        references = outputs_of(run, "reference", given)
        with of_the_task(run, "scale"):
            scale = None if task.scale is None else task.scale(**exact, **constants)
        scales = scales_of(run, scale, references)
        plain = {name: _wide(array, np.float32) for name, array in arrays.items()}
        narrow = {name: _wide(np.asarray(array), np.float32) for name, array in other.items()}
        perfect = "ideal" if task.ideal else "reference"
        with of_the_task(run, perfect):
            given = (task.ideal or task.reference)(**{**plain, **constants, **narrow})
        ideal = outputs_of(run, perfect, given, references)
    found, shown = [], list[Precision | None]()
    for i, (output, reference) in enumerate(zip(outputs, references, strict=False)):
        dtype = _dtype(run, i)
        best = np.asarray(ideal[i]).astype(NUMPY_DTYPES[dtype]).astype(np.float64)
        size = scales[i]
        tolerance = run.rtol or _tolerance(task, best, reference, size, dtype)
        written = unwritten[i] if unwritten is not None and i < len(unwritten) else None
        written = None if written is None or written.shape != reference.shape else written
        kind = NUMPY_DTYPES[dtype]
        found.append(judge(output, reference, tolerance=tolerance, unwritten=written, scale=size, dtype=kind, first=first))
        normal = distribution == "normal" and output.shape == reference.shape
        finite = normal and np.isfinite(_wide(output, np.float64)).all()
        shown.append(precision(_wide(output, np.float64), best, reference) if finite else None)
    return Outcome(
        distribution=distribution,
        arrays=arrays,
        outputs=outputs,
        references=references,
        judgements=found,
        precisions=shown,
        first=first,
    )


def _dtype(run: Run, number: int) -> str:
    kind = run.task.out_dtypes[number] if number < len(run.task.out_dtypes) else FLOAT
    return run.dtype if kind == FLOAT else kind


def _tolerance(task: Task, best: Array, reference: Array, scale: Any, dtype: str) -> float:
    """Four times what an ideal kernel errs, and at least four roundings (in float32 what the task says)."""
    least = 4 * unit_roundoff(dtype) if dtype != "float32" else task.least_rtol
    if best.shape != reference.shape:
        return least
    errors = row_error(np.atleast_1d(best), np.atleast_1d(reference), scale)
    largest = float(np.nanmax(errors)) if np.size(errors) else 0.0
    return max(4 * largest, least) if np.isfinite(largest) else least


def _wide(array: Array, dtype: Any) -> Array:
    return array.astype(dtype) if array.dtype.kind not in "iub" else array


def strict_read(
    run: Run, trace: Mapping[str, Any], arrays: Mapping[str, Array], options: SimOptions, lnc: int
) -> KernelFault | None:
    """The first read of never-written memory, if there is one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SimulatorWarning)
            run_tape(trace, to_kernel(run, arrays), options, lnc)
    except KernelFault as fault:
        return fault if fault.record.kind == "uninitialized" else None
    return None
