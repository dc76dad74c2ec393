"""`nki_hf bench-tasks`: every task's baseline, our best kernel and the floor, per chip; a bench without hardware."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

import nki_hf
from nki_hf.chips import CHIPS, get_chip
from nki_hf.kernels.registry import bindings
from nki_hf.problem import Problem
from nki_hf.tasks import Task, load_task, task_names
from nki_hf.tools.bench_tasks_page import page, show
from nki_hf.tools.error_bands import task_band
from nki_hf.tools.judging.named_kernels import Named, named
from nki_hf.tools.judging.ours import Packed
from nki_hf.tools.judging.times import least_us
from nki_hf.tools.latency import attention_us
from nki_hf.tools.output_files import check_writable, whole_file, writing
from nki_hf.tools.progress import working
from nki_hf.tools.screen import Screen
from nki_hf.tools.searching.options import judge_options, round_limit
from nki_hf.tools.searching.workers import Workers, processes_of
from nki_hf.tools.subjects import attention_candidate, own_kernels
from nki_hf.tools.tuning.cases import file_cases
from nki_hf.tools.tuning.study import Study, cache_folder, study_of

__all__ = ["KERNELS", "VERB", "command", "rows_of"]

VERB = "bench-tasks"
_FOLDER = Path(nki_hf.__file__).parent / "tasks" / "kernels"
_TIMEOUT = 900.0


def _pair(file: str, stem: str) -> tuple[str, str]:
    return f"{file}.py:{stem}_baseline", f"{file}.py:{stem}_best"


KERNELS: Mapping[str, tuple[str, str]] = {
    **{name: _pair("rows", name) for name in ("softmax", "rmsnorm", "layernorm", "cumsum", "cross_entropy", "transpose")},
    **{name: _pair("sequences", name) for name in ("rope", "conv1d", "selective_scan", "adamw")},
    **{name: _pair("products", name) for name in ("matmul", "swiglu", "residual_rmsnorm_matmul")},
    **{f"attention{name}": ("attention.py:baseline", "ours") for name in ("", "_causal", "_window", "_gqa", "_decode")},
    "attention_unscaled": ("v4", "v11"),
    "attention_diffusion": ("sd_baseline", "sd_swapped_operands"),
    "attention_backward": ("attention.py:backward_baseline", "attention.py:backward_best"),
    "nkibench_adamw": _pair("sequences", "adamw_step"),
    "nkibench_silu": _pair("sequences", "silu"),
    "nkibench_rope": _pair("sequences", "rope_columns"),
    "nkibench_mamba": _pair("sequences", "mamba"),
    **{
        f"nkibench_{name}": _pair("products", name)
        for name in (
            "matmul",
            "transpose_matmul",
            "lora",
            "bmm",
            "bmm_softmax",
            "rmsnorm_matmul",
            "add_rmsnorm_matmul",
            "matmul_add_rmsnorm",
            "swiglu",
        )
    },
    "nkibench_gqa_full": ("attention.py:baseline", "ours"),
    **{f"autocomp_{name}": _pair("rows", name) for name in ("rmsnorm", "layernorm", "cumsum")},
    "autocomp_gemm": _pair("products", "transpose_matmul"),
    "autocomp_maxpool": _pair("sequences", "maxpool"),
    "autocomp_rope": _pair("sequences", "rope_columns"),
    "autocomp_mamba": _pair("sequences", "mamba"),
    "autocomp_csa": ("attention.py:baseline", "ours"),
}
"""Baseline and best kernel by task: of nki_hf/tasks/kernels, a rung of the ladder, or `ours`: what dispatch picks on a chip;
empty where there is none yet."""


def command(
    tasks: Annotated[str, typer.Option(help="Tasks, e.g. softmax,matmul; default: all.")] = "",
    chip: Annotated[str, typer.Option(help="Chips, e.g. trn1,trn2; default: all.")] = "",
    small: Annotated[
        bool, typer.Option("--small", help="Time at the first size that is judged, in place of the task's.")
    ] = False,
    processes: Annotated[int, typer.Option(help="Kernels judged at a time; 0 = one per core.")] = 0,
    cache: Annotated[str, typer.Option(help="Folder of results; default: the user's cache folder; off = none.")] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the table as a page, a .md file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Judge and time a plain and our best kernel of every task on every chip, beside the least possible time.

    Only kernels of this package run. Exit code 0: all pass; 1: one fails; 2: wrong use.
    """
    names = [name for name in tasks.split(",") if name] or [name for name in task_names() if name in KERNELS]
    for name in names:
        if name not in KERNELS:
            raise ValueError(f"tasks={tasks!r}: {name!r} has no kernels here: it is one of {', '.join(KERNELS)}.")
    chips = [get_chip(item).name for item in chip.split(",") if item] or list(CHIPS)
    if output is not None:
        if output.suffix != ".md":
            raise ValueError(f"output={output} is no page: its name ends in .md.")
        check_writable(output)
    folder = None if cache == "off" else Path(cache) if cache else cache_folder()
    rows = rows_of(names, chips, processes_of(processes), folder, small=small)
    if output is not None:
        with writing(output), whole_file(output) as file:
            file.write(page(rows, chips).encode())
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        show(rows, Screen())
    raise typer.Exit(0 if all(row["passed"] for row in rows) else 1)


def rows_of(
    names: list[str], chips: list[str], processes: int, folder: Path | None, *, small: bool = False
) -> list[dict[str, Any]]:
    """A row per task, size, chip and kernel (`baseline`, `best`): us, the least possible us, their quotient, verdict.

    Values are judged at the task's small sizes; times are those of a trace on shapes and its schedule, as the judge's are. What
    is known in `folder` is not found out again.
    """
    entries = [entry for name in names for entry in _entries(name, chips, small, folder)]
    todo = [(entry, job, study, key) for entry in entries for job, study, key in entry.jobs if key not in study.known()]
    with working("nki_hf bench-tasks", len(todo)) as work, Workers(processes) as workers:
        for number, answer in workers.run([item[1] for item in todo], round_limit({"timeout": _TIMEOUT})):
            entry, _, study, key = todo[number]
            if "record" in answer:
                record = answer["record"]
                answer = {name: record[name] for name in ("passed", "stage", "sentence")}
            if "error" not in answer:
                study.keep(key, answer)
            entry.found[key] = answer
            work.advance(f"after {entry.task.name} {entry.which}")
    return [row for entry in entries for row in entry.rows()]


@dataclass
class _Entry:
    """A kernel of a task: what is to be found out, and what was.

    Attributes:
      task, which, kernel: whose.
      cases: chips and sizes.
      jobs: of the workers, with the study that keeps the result, and its key there.
      found: results by key; those that a study knows are looked up.
    """

    task: Task
    which: str
    kernel: str
    cases: list[tuple[str, int]]
    jobs: list[tuple[dict[str, Any], Study, str]] = field(default_factory=list)
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """Verdict and time of each case."""
        for _, study, key in self.jobs:
            if key not in self.found:
                self.found[key] = study.known()[key]
        verdict = self.found["judged"]
        sentence = verdict.get("sentence") or verdict.get("error", "")
        passed = bool(verdict.get("passed"))
        found = []
        for chip, size in self.cases:
            us, why = self._us(chip, size)
            arrays = [(name, *item) for name, item in self.task.shapes(size, self.task.dtype).items()]
            least = least_us(self.task, {"size": size, "arrays": arrays}, get_chip(chip), 1)
            found.append(
                {
                    "task": self.task.name,
                    "which": self.which,
                    "kernel": self.kernel,
                    "chip": chip,
                    "size": size,
                    "us": us,
                    "least_us": least,
                    "score": min(1.0, least / us) if us else 0.0,
                    "passed": passed and us is not None,
                    "sentence": sentence if us is not None else why,
                    "band": task_band(self.task, chip),
                }
            )
        return found

    def _us(self, chip: str, size: int) -> tuple[float | None, str]:
        if self.kernel not in own_kernels():
            result = self.found[f"{chip}@{size}"]
            return result.get("us"), result.get("failed") or result.get("error", "")
        problem = _problem(self.task, size, chip)
        return attention_us(problem, get_chip(chip), 1, kernel=self.kernel).us, ""


def _entries(name: str, chips: list[str], small: bool, folder: Path | None) -> list[_Entry]:
    task = load_task(name)
    sizes = [task.check[0]] if small else list(task.at)
    found = []
    for which, kernel in zip(("baseline", "best"), KERNELS[name], strict=True):
        if kernel == "ours":
            by_kernel: dict[str, list[tuple[str, int]]] = {}
            for chip in chips:
                for size in sizes:
                    by_kernel.setdefault(_dispatched(task, size, chip), []).append((chip, size))
            for ours, cases in by_kernel.items():
                entry = _Entry(task, which, ours, cases)
                entry.jobs.append(_judgement(task, named(ours, name), cases[0][0], folder, []))
                found.append(entry)
        elif kernel:
            item = named(kernel if ":" not in kernel else str(_FOLDER / kernel), name)
            const = []
            if kernel == "attention.py:baseline":
                const = ["causal=True"] * ("ahead" in task.mask) + [f"window={n}" for n in [task.mask.get("window")] if n]
            entry = _Entry(task, which, kernel.partition(":")[2] or kernel, [(chip, size) for chip in chips for size in sizes])
            entry.jobs.append(_judgement(task, item, chips[0], folder, const))
            options = judge_options(at=",".join(map(str, sizes)), chip=",".join(chips), const=const)
            for case in file_cases(item, name, options, folder):
                job = {**case.job, "constants": repr(case.job["given"]), "tuned": [], "best_us": None}
                entry.jobs.append((job, case.study, case.label))
            found.append(entry)
    return found


def _judgement(task: Task, item: Named, chip: str, folder: Path | None, const: list[str]) -> tuple[dict[str, Any], Study, str]:
    """The job that judges values, limits and races at the task's small sizes."""
    options = judge_options(layout=item.layout, chip=chip, timeout=_TIMEOUT, seed=1, const=const) | {"until": "values"}
    job = {"kind": "judge", "path": item.path, "task": task.name, "options": options}
    facts = {"task": task.name, "path": item.path.rpartition(":")[2], "options": repr(options), "tasks": _tasks_digest()}
    file = item.path if item.path.endswith(".py") else item.path.rpartition(":")[0]
    return job, study_of(facts, Path(file), folder), "judged"


@functools.cache
def _tasks_digest() -> str:
    """Digest of the tasks: their references are what values are compared with."""
    found = hashlib.sha256()
    for path in sorted(_FOLDER.parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _problem(task: Task, size: int, chip: str) -> Problem:
    return Packed(bindings("forward")[0], task, get_chip(chip), 1).problem(size, task.dtype)


def _dispatched(task: Task, size: int, chip: str) -> str:
    """The kernel of ours that dispatch picks for the task at a size, one core."""
    return attention_candidate(_problem(task, size, chip), get_chip(chip)).binding.name
