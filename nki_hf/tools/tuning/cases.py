"""Cases of a tuner: a kernel's file on a task's sizes, or a kernel of ours on a shape, on each chip."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nki_hf.chips import get_chip
from nki_hf.kernels.plan import Target
from nki_hf.kernels.registry import binding
from nki_hf.tasks import load_task
from nki_hf.tools.cores import check_cores
from nki_hf.tools.error_bands import band_of, task_band
from nki_hf.tools.judging.layouts import layout_of, parsed, placed_shape
from nki_hf.tools.judging.named_kernels import Named
from nki_hf.tools.shape import problem_of
from nki_hf.tools.tuning.own import own_constants, own_plan
from nki_hf.tools.tuning.search import Case
from nki_hf.tools.tuning.space import Space
from nki_hf.tools.tuning.study import study_of

__all__ = ["file_cases", "own_cases"]

_WHOLE = 6_000
"""Instructions per core up to which every unit of a problem is traced; of more, as many units as have so many."""


def file_cases(kernel: Named, task: str, options: Mapping[str, Any], folder: Path | None) -> list[Case]:
    """A case per chip and timed size.

    Raises:
      ValueError: a layout, a size or a constant is not one of the task's.
    """
    found = load_task(task)
    dtype = options["dtype"] or found.dtype
    if dtype not in ("bfloat16", "float16", "float32"):
        raise ValueError(f"dtype={dtype!r} is not an element type of a run: it is bfloat16, float16 or float32.")
    laid = parsed(kernel.layout, found)
    file, separator, name = kernel.path.rpartition(":")
    path, name = (file, name) if separator and file.endswith(".py") else (kernel.path, "")
    place = Path(path).absolute()  # the same for a worker, whatever was typed
    cases = []
    for chip in options["chip"]:
        for size in options["at"] or found.at:
            if not 0 < size < 1 << 24:
                raise ValueError(f"at={size}: a size is 1 to 16,777,215.")
            arrays = []
            for key, (shape, kind) in found.shapes(size, dtype).items():
                own, wanted = layout_of(found, laid, key)
                arrays.append((key, list(placed_shape(shape, own, wanted) if own else shape), kind))
            given = {**found.constants(size), **options["constants"]}
            job = {
                "kind": "trial",
                "path": f"{place}:{name}" if name else f"{place}",
                "task": task,
                "size": size,
                "dtype": dtype,
                "layout": laid,
                "arrays": arrays,
                "chip": chip,
                "lnc": options["lnc"],
                "window": options["window"],
                "given": given,
                "named": list(options["constants"]),
            }
            facts = {key: job[key] for key in ("arrays", "chip", "lnc", "window")} | {"given": repr(given), "name": name}
            study = study_of(facts, place, folder)
            cases.append(Case(label=f"{chip}@{size}", job=job, start={}, study=study, band=task_band(found, chip)))
    return cases


def own_cases(
    kernel: str, shape: str, chips: list[str], lnc: int | None, window: int | None, space: Space, folder: Path | None
) -> list[Case]:
    """A case per chip of a kernel of ours on one problem.

    Raises:
      ValueError: the kernel has no plan constants, or not those of `space`; `lnc` is not possible.
      UnsupportedProblem: it does not take the problem.
    """
    problem = problem_of(shape)
    cases = []
    for name in chips:
        chip = get_chip(name)
        cores = chip.default_lnc if lnc is None else lnc
        check_cores(cores, [name])
        target = Target(chip=chip, lnc=cores)
        rule = own_constants(kernel, problem, target)
        unknown = sorted(set(space) - set(rule))
        if unknown:
            raise ValueError(f"const: {kernel} has no plan constant {', '.join(unknown)}: it has {', '.join(rule)}.")
        count = own_plan(kernel, problem, target, {}).instructions
        per_unit = count // (problem.batch * problem.num_heads_kv) + 1
        units = None if count <= _WHOLE * cores else -(-_WHOLE // per_unit)
        job = {
            "kind": "trial",
            "kernel": kernel,
            "shape": shape,
            "chip": name,
            "lnc": cores,
            "window": window,
            "units": units,
            "given": {},
        }
        spec = importlib.util.find_spec(binding(kernel).module)
        if spec is None or spec.origin is None:
            raise ValueError(f"kernel={kernel} is not here.")
        facts = {key: job[key] for key in ("kernel", "chip", "lnc", "window", "units")} | {"problem": repr(problem)}
        study = study_of(facts, Path(spec.origin), folder)
        start = {key: rule[key] for key in space}
        label = f"{name}, {cores} core{'s' * (cores > 1)}"
        cases.append(Case(label=label, job=job, start=start, study=study, band=band_of(kernel, name)))
    return cases
