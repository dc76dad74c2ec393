"""A trial: one kernel with one set of constants, traced on shapes alone and scheduled, in no process of its own.

With values where loops turn by them.
"""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nki_hf.chips import Chip, get_chip
from nki_hf.errors import KernelFault, UnsupportedProblem
from nki_hf.sim import Kernel, SimOptions, as_nki, launch
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.sim.stream.events import Event
from nki_hf.tasks import load_task
from nki_hf.timing.schedule import schedule_below
from nki_hf.tools.judging.child import UnknownConstant, bound_arguments, check_constants, module_of
from nki_hf.tools.judging.kernel_choice import kernel_in
from nki_hf.tools.judging.values import Run, drawn, to_kernel
from nki_hf.tools.numpy_layouts import NUMPY_DTYPES
from nki_hf.tools.shape import problem_of
from nki_hf.tools.tuning.noticing import Noticed, noticing
from nki_hf.tools.tuning.own import own_launch
from nki_hf.tools.tuning.surroundings import begun, surroundings

__all__ = ["Trials"]


class _Unknown(Exception):
    """A constant is tuned that the kernel has not."""


class Trials:
    """Runs trials of one kernel; its file is loaded once for as long as it stays as it is.

    What a trial loads is there for the next one, and need not be asked for again: what has been noticed counts for all that
    come after.
    """

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, str], tuple[float, Kernel, str]] = {}
        self._noticed = Noticed()
        self._environment = dict(os.environ)
        self._start = begun(self._environment)

    def run(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """`us` and `floor_us`; or `floor_us` and `pruned`; or `failed`, a sentence; or `unknown`, one. `around` has what else
        they follow from (surroundings.py), where there is such; `programs` what reaches beyond Python, which nobody can note.

        Args:
          job: `constants` (as text), `chip`, `lnc`, `window`, `best_us` (what a trial must be below to be of interest, or
            None); and either `kernel` (one of ours), `shape` and `units` (how many per core stand for all; None = all), or
            `path`, `arrays` (name, shape, element type), `tuned` and `named` (names of what is tuned, and of what is given).
        """
        with noticing(self._noticed):
            found = self._run(job)
        file, separator, _ = job.get("path", "").rpartition(":")
        own = file if separator and file.endswith(".py") else job.get("path", "")
        around = surroundings(self._noticed, own, self._environment, self._start)
        programs = sorted(self._noticed.programs)
        return {**found, **({"around": around} if around else {}), **({"programs": programs} if programs else {})}

    def _run(self, job: Mapping[str, Any]) -> dict[str, Any]:
        chip, constants = get_chip(job["chip"]), ast.literal_eval(job["constants"])
        try:
            cores = None
            if job.get("kernel"):
                problem = problem_of(job["shape"])
                factor, run, cores = own_launch(job["kernel"], problem, chip, job["lnc"], constants, job["units"])
            else:
                factor, run = 1.0, self._launch(job, chip, constants)
            return _timed(run, factor, chip, job["window"], job["best_us"], spill=not job.get("kernel"), cores=cores)
        except _Unknown as error:  # wrong use: no other combination does better
            return {"unknown": str(error)}
        except (KernelFault, UnsupportedProblem, MemoryError) as error:
            return {"failed": str(error)[:400]}
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # whatever the kernel's own Python raises, SystemExit too
            return {"failed": f"{type(error).__name__}: {error}"[:400]}

    def _launch(self, job: Mapping[str, Any], chip: Chip, constants: Mapping[str, Any]) -> Callable[[bool], Sequence[Event]]:
        file, separator, name = job["path"].rpartition(":")
        file, name = (file, name) if separator and file.endswith(".py") else (job["path"], "")
        kernel, label = self._kernel(file, name)
        arrays = {key: np.broadcast_to(np.zeros((), NUMPY_DTYPES[kind]), shape) for key, shape, kind in job["arrays"]}
        given, names = bound_arguments(kernel.function, label, arrays, constants)
        try:
            check_constants(kernel.function, label, names, (*job["tuned"], *job["named"]))
        except UnknownConstant as error:
            raise _Unknown(str(error)) from None

        def run(checks: bool) -> Sequence[Event]:
            options = SimOptions(chip=chip, values=False, trip_counts=1, third_party=True, checks=checks)
            with as_nki():
                found = launch(kernel.function, (), given, options=options, lnc=job["lnc"])
                if not found.run.short:
                    return found.events
                # How often a loop turns, the inputs say; the judge times it on such inputs, too.
                options = SimOptions(chip=chip, third_party=True, checks=False)
                valued, _ = bound_arguments(kernel.function, label, _inputs(job), constants)
                return launch(kernel.function, (), valued, options=options, lnc=job["lnc"]).events

        return run

    def _kernel(self, file: str, name: str) -> tuple[Kernel, str]:
        stamp = Path(file).stat().st_mtime_ns
        known = self._loaded.get((file, name))
        if known is None or known[0] != stamp:
            with as_nki():
                kernel, label = kernel_in(module_of(file), file, name)
            known = self._loaded[file, name] = (stamp, kernel, label)
        return known[1], known[2]


def _inputs(job: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Normal inputs of the job's task as its kernel takes them."""
    run = Run(task=load_task(job["task"]), size=job["size"], dtype=job["dtype"], layout=job["layout"])
    return to_kernel(run, drawn(run, "normal", 0))


def _timed(
    run: Callable[[bool], Sequence[Event]],
    factor: float,
    chip: Chip,
    window: int | None,
    best_us: float | None,
    *,
    spill: bool,
    cores: int | None,
) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulatorWarning)
        try:
            events = run(True)
        except KernelFault as fault:
            if not spill or fault.record.kind != "capacity":
                raise
            events = run(False)  # what does not fit is spilled by the schedule, as for the judge
    fixed = float(chip.kernel_fixed_ns)

    def whole_us(ns: float) -> float:
        return ((ns - fixed) * factor + fixed) / 1e3

    limit = float("inf") if best_us is None else (best_us * 1e3 - fixed) / factor + fixed
    floor, plan = schedule_below(events, chip, limit, window=window, cores=cores)
    if plan is None:
        return {"floor_us": whole_us(floor), "pruned": True}
    return {"us": whole_us(plan.total_ns), "floor_us": whole_us(floor)}
