"""The kernel of `--against`: whether it is right itself, and the first tile in which a wrong kernel differs from it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nki_hf.chips import Chip
from nki_hf.errors import KernelFault
from nki_hf.observers.races import races
from nki_hf.sim import SimOptions
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.sim.run.play import BadTape
from nki_hf.tasks import Task
from nki_hf.tools.judging.accepted import accepting
from nki_hf.tools.judging.findings import kernel_failure
from nki_hf.tools.judging.first_difference import first_difference
from nki_hf.tools.judging.other_kinds import wrong_in
from nki_hf.tools.judging.ours import packed_by
from nki_hf.tools.judging.values import Run, checked, distributions_of, drawn, run_tape, to_kernel
from nki_hf.tools.judging.without_values import input_written

__all__ = ["compared", "judge_parent", "without_credit"]


def compared(
    request: Mapping[str, Any], record: dict[str, Any], task: Task, run: Run, trace: Mapping[str, Any], chip: Chip
) -> dict[str, Any] | None:
    """See `first_difference`; None without `--against`, and with a warning where the other kernel cannot show anything.

    Args:
      request, record: of the judgement.
      task, run, trace, chip: the kernel's at the first size.
    """
    other = request.get("against")
    if other is None:
        return None
    if request["lnc"] != 1 or other["answer"]["error"] is not None:
        why = "it did not run" if other["answer"]["error"] is not None else "launches on two cores are not compared"
        record["warnings"].append(f"--against {other['file']} shows no first difference: {why}")
        return None
    theirs, parent = _theirs(other, task, run, chip, request["lnc"])
    arrays = drawn(run, "normal", request["seed"])
    options = SimOptions(chip=chip, third_party=True)
    try:
        first = run_tape(parent, to_kernel(theirs, arrays), options, 1)
        right = checked(theirs, parent, options, 1, request["seed"], ("normal",), first, arrays)
        _, right = accepting(theirs, right, request)
        if right.count or any(outcome.wrong is not None for outcome in right.outcomes):
            record["warnings"].append(f"--against {other['file']} shows no first difference: it is wrong itself")
            return None
        files = request["file"], other["file"]
        return first_difference(trace, to_kernel(run, arrays), parent, to_kernel(theirs, arrays), options, files)
    except (KernelFault, BadTape) as error:
        record["warnings"].append(f"--against {other['file']} shows no first difference: {error}")
        return None


def judge_parent(request: Mapping[str, Any], record: dict[str, Any], task: Task, runs: Sequence[Run], chip: Chip) -> None:
    """Fill in the record's `against`: limits, memory, races and values of the other kernel at every size that is judged.

    Args:
      request, record: of the judgement.
      task, runs, chip: the kernel's.
    """
    other = request.get("against")
    if other is None:
        return
    found: dict[str, Any] = {"file": other["file"], "verdict": "right", "detail": "", "right_at": []}
    record["against"] = found
    failed = kernel_failure(other["answer"])
    if failed is not None:
        verdict = "fails" if other["answer"]["error"] is None else "not run"
        found.update(verdict=verdict, detail=failed.findings[0]["message"])
        return
    for number, run in enumerate(runs):
        words = _wrong_at(request, other, number, run, chip)
        if words:
            found.update(verdict="fails", detail=f"at size {run.size:,}: {words}")
            return
        found["right_at"].append(run.size)


def _wrong_at(request: Mapping[str, Any], other: Mapping[str, Any], number: int, run: Run, chip: Chip) -> str:
    """What is wrong with the other kernel at one size, in words; empty if nothing is. `number`: of the size."""
    theirs, parent = _theirs(other, run.task, run, chip, request["lnc"])
    options = SimOptions(chip=chip, third_party=True, record=True)
    arrays = drawn(run, "normal", request["seed"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulatorWarning)
        try:
            first = run_tape(parent, to_kernel(theirs, arrays), options, request["lnc"])
            if found := races(first.events):
                return found[0].record().message
            if (written := input_written(first.events, run.task, dict(parent["parameters"]))) is not None:
                return str(written["message"])
            distributions = distributions_of(run.task, number)
            right = checked(theirs, parent, options, request["lnc"], request["seed"], distributions, first, arrays)
        except (KernelFault, BadTape) as error:
            return str(error)
    theirs, right = accepting(theirs, right, request)
    if words := right.count or wrong_in(right, theirs, request):
        return words
    return "its result depends on what an earlier run left in memory" if right.depends_on_memory else ""


def without_credit(record: dict[str, Any]) -> None:
    """Take the speed-ups out of a record whose other kernel is wrong itself, and say so."""
    found = record["against"]
    if found is None or found["verdict"] != "fails":
        return
    record["warnings"].append(
        f"--against {found['file']} fails the task {record['task']} itself ({found['detail']}): no speed-up over it is credited"
    )
    for row in record["times"]:
        row["against_us"] = row["speedup"] = None


def _theirs(other: Mapping[str, Any], task: Task, run: Run, chip: Chip, lnc: int) -> tuple[Run, Mapping[str, Any]]:
    """The other kernel's run at the size of `run`, and its program there."""
    parent = next(
        found for asked, found in zip(other["traces"], other["answer"]["traces"], strict=True) if asked["size"] == run.size
    )
    packed = packed_by(other["file"], other["answer"]["name"], task, chip, lnc)
    theirs = replace(
        run,
        layout=other["layout"] if packed is None else {"out": packed.out},
        packed=None if packed is None else packed.arrays(run.size, run.dtype),
        accepted="",  # what is accepted of one kernel may not be what the other does
    )
    return theirs, parent
