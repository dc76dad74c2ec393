"""The stages of a judgement but for the times, in a clean process: what is judged comes from tapes, not from the kernel."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.observers.accumulation import foreign_accumulation
from nki_hf.observers.capacity import report as capacity_report
from nki_hf.observers.races import races
from nki_hf.sim import LaunchResult, SimOptions
from nki_hf.sim.faults import SecondWriteWarning, SimulatorWarning
from nki_hf.sim.run.play import BadTape
from nki_hf.tasks import Task, load_task
from nki_hf.tools.judging.accepted import accepting, less_exact
from nki_hf.tools.judging.against import judge_parent
from nki_hf.tools.judging.cases import add_case
from nki_hf.tools.judging.findings import KIND_STAGE, Failed, finding, kernel_failure, of_fault
from nki_hf.tools.judging.harmless_races import Repeated, harmless
from nki_hf.tools.judging.lint_stage import judge_lint
from nki_hf.tools.judging.ours import packed_by
from nki_hf.tools.judging.ragged import judge_ragged
from nki_hf.tools.judging.returned_inputs import outputs_written
from nki_hf.tools.judging.stage_names import STAGES
from nki_hf.tools.judging.steered import Steered
from nki_hf.tools.judging.tape_difference import tape_difference
from nki_hf.tools.judging.value_stage import judge_values
from nki_hf.tools.judging.values import (
    Checked,
    Outcome,
    Run,
    checked,
    distributions_of,
    drawn,
    other_draw,
    run_tape,
    to_kernel,
)
from nki_hf.tools.judging.verdict import empty, fails, passes
from nki_hf.tools.judging.without_values import input_written

__all__ = ["judged"]


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What a kernel is judged with on every chip.

    Attributes:
      request: as of `judged`.
      task: what the kernel computes.
      traces: what was recorded of the kernel, by size and name of the chip.
      stage: says which stage is under way.
    """

    request: Mapping[str, Any]
    task: Task
    traces: Mapping[tuple[int, str], Any]
    stage: Callable[[str], None]


def judged(request: Mapping[str, Any], progress: Path) -> dict[str, Any]:
    """The record without times, plain data.

    Args:
      request: the command's options, `until` (the last stage), `answer` (of child.py, or what became of it) and `printed`.
      progress: a file that always holds the name of the stage under way.
    """
    record = empty(request)
    began: list[Any] = [time.perf_counter(), "load"]

    def stage(name: str) -> None:
        progress.write_text(name)
        now = time.perf_counter()
        record["seconds"][began[1]] = record["seconds"].get(began[1], 0.0) + now - began[0]
        began[:] = [now, name]

    try:
        _stages(request, record, stage)
        passes(record)
    except Failed as failed:
        fails(record, failed.stage, list(failed.findings))
    return record


def _stages(request: Mapping[str, Any], record: dict[str, Any], stage: Callable[[str], None]) -> None:
    stage("load")
    answer = request["answer"]
    task = load_task(request["task"])
    failed = kernel_failure(answer)
    if failed is not None:
        raise failed
    stage("lint")
    judge_lint(request, record)
    if STAGES.index(request["until"]) <= STAGES.index("lint"):
        return
    chip = get_chip(request["chips"][0])
    packed = packed_by(request["file"], answer["name"], task, chip, request["lnc"])
    runs = [
        Run(
            task=task,
            size=size,
            dtype=request["dtype"],
            layout=request["layout"] if packed is None else {"out": packed.out},
            rtol=request["rtol"],
            packed=None if packed is None else packed.arrays(size, request["dtype"]),
        )
        for size in dict.fromkeys(request["check"])
    ]
    traces = {(trace["size"], trace["chip"]): found for trace, found in zip(request["traces"], answer["traces"], strict=True)}
    asked = _Asked(request=request, task=task, traces=traces, stage=stage)
    judged_runs = _on_chip(asked, record, chip, runs)
    record["right_at"] = [run.size for run in runs]
    for name in request["chips"][1:]:
        _on_other_chip(asked, record, name, runs)
    judge_ragged(request, record, task, traces.get((request["ragged"], chip.name)), chip, judged_runs[0].accepted)
    judge_parent(request, record, task, judged_runs, chip)
    stage("end")


def _on_chip(asked: _Asked, record: dict[str, Any], chip: Any, runs: list[Run]) -> list[Run]:
    """Limits, memory, races and values on one chip; the runs, with the rounding that is accepted."""
    request, task, traces, stage = asked.request, asked.task, asked.traces, asked.stage
    options = SimOptions(chip=chip, third_party=True, record=True)
    checks: list[Checked] = []
    steered: list[Steered] = []
    for number in range(len(runs)):
        run = runs[number]
        trace = traces[run.size, chip.name]
        first, arrays = _first(run, trace, options, request, record, stage)
        if not number:
            _memory(first, chip, record, stage)
        again = Repeated(run, trace, options, request["lnc"], arrays, request["file"])
        _races(first, record, stage, again, bool(request.get("same_writes")))
        if (written := input_written(first.events, task, dict(trace["parameters"]))) is not None:
            raise Failed("values", written)
        outputs_written(first, task, dict(trace["parameters"]))
        stage("values")
        distributions = distributions_of(task, number)
        try:
            found = checked(run, trace, options, request["lnc"], request["seed"], distributions, first, arrays)
        except KernelFault as fault:
            raise Failed("values", of_fault("values", fault.record)) from None
        plain = found
        run, found = accepting(run, found, request)
        runs = [replace(item, accepted=run.accepted) for item in runs]
        if words := less_exact(run, found, plain):
            record["warnings"].append(words)
        checks.append(found)
        steered.append(Steered(run, trace, options, found, request))
        for outcome in found.outcomes:
            add_case(outcome, found.size, task, record)
        if found.count or found.depends_on_memory or any(o.wrong is not None for o in found.outcomes):
            break
        if not number and request.get("secret") is not None and not task.recorded:
            unseen = other_draw(run, trace, options, request["lnc"], request["secret"], first)
            if unseen.wrong is not None and any(item.loops for item in steered[-1].items):
                steered[-1].judge(record)  # that draw may have turned a loop that inputs steer: a truer cause
            _unforeseen(unseen, task, run)
    judge_values(request, record, task, runs, checks, traces, chip, steered)
    for item in steered:
        item.judge(record)
    return runs


def _on_other_chip(asked: _Asked, record: dict[str, Any], name: str, runs: list[Run]) -> None:
    """The same on a chip that is only timed, at the sizes at which the kernel is another program there."""
    first = asked.request["chips"][0]
    pairs = [(run, asked.traces.get((run.size, name)), asked.traces[run.size, first]) for run in runs]
    other = [run for run, mine, usual in pairs if mine and tape_difference(usual["tape"], mine["tape"])]
    if not other:
        return
    said = f"on {name}, where the kernel is another program than on {first}"
    found = empty(asked.request)
    try:
        _on_chip(asked, found, get_chip(name), other)
    except Failed as failed:
        record["diagnosis"] = found["diagnosis"] and f"{said}: {found['diagnosis']}"
        findings = [{**item, "message": f"{said}: {item['message']}"} for item in failed.findings]
        raise Failed(failed.stage, *findings) from None
    finally:
        new = [item for item in found["warnings"] if item not in record["warnings"]]
        record["warnings"] += [f"on {name}: {item}" for item in new]


def _unforeseen(outcome: Outcome, task: Task, run: Run) -> None:
    """Fail where a kernel is right on the inputs of the seed that was named, and wrong on others."""
    if outcome.wrong is None:
        return
    message = (
        f"{task.outputs[outcome.wrong]} at size {run.size} is right on the inputs of the seed that was named, and wrong on "
        f"others ({outcome.judgements[outcome.wrong].detail}): the kernel has constants of those inputs"
    )
    raise Failed("values", finding("values", {"kind": "foreseen", "message": message}))


def _first(
    run: Run,
    trace: Mapping[str, Any],
    options: SimOptions,
    request: Mapping[str, Any],
    record: dict[str, Any],
    stage: Callable[[str], None],
) -> tuple[LaunchResult, Mapping[str, Any]]:
    """The launch that checks every limit, on the first distribution."""
    stage("limits")
    arrays = drawn(run, "normal", request["seed"])
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = run_tape(trace, to_kernel(run, arrays), options, request["lnc"])
    except KernelFault as fault:
        at = KIND_STAGE.get(fault.record.kind, "limits")
        raise Failed(at, of_fault(at, fault.record)) from None
    except BadTape as error:
        raise Failed(
            "run",
            finding(
                "run",
                {
                    "kind": "tampered",
                    "message": f"what the kernel's process recorded is no program ({error})",
                    "advice": "A kernel uses the language alone: it must not change the simulator.",
                },
            ),
        ) from None
    for item in caught:
        if issubclass(item.category, SimulatorWarning):
            kept = str(item.message)
            if issubclass(item.category, SecondWriteWarning) or kept not in record["warnings"]:
                record["warnings"] = [*record["warnings"], kept][:40]
    return found, arrays


def _memory(first: LaunchResult, chip: Any, record: dict[str, Any], stage: Callable[[str], None]) -> None:
    """Who holds SBUF and PSUM: it follows from the instructions alone, so one size shows it."""
    stage("memory")
    record["memory"] = capacity_report(first.events, chip, largest=3)
    record["warnings"] += [
        f"{item.message}, {item.limit} ({item.file}:{item.line})" for item in foreign_accumulation(first.events, chip)
    ]


def _races(first: LaunchResult, record: dict[str, Any], stage: Callable[[str], None], again: Repeated, may: bool) -> None:
    """Races of the cores, at every size: one tile has no next turn that writes what the other core still reads."""
    stage("races")
    found = races(first.events)
    said = harmless(found, first, again) if found and may else []
    record["warnings"] += [words for words in said if words not in record["warnings"]]
    if found and not said:
        raise Failed("races", *[of_fault("races", race.record()) for race in found[:5]])
