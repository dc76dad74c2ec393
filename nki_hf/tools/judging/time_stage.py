"""The stage of times, in a clean process of its own, beside those that judge values: it needs none but at timed sizes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import LaunchResult
from nki_hf.sim.beside import in_two, two_processes
from nki_hf.sim.run.play import BadTape, Marks
from nki_hf.tasks import Task, load_task
from nki_hf.timing.banks import WORTH_A_PROCESS
from nki_hf.tools.judging import plain
from nki_hf.tools.judging.findings import KIND_STAGE, Failed, finding, of_fault
from nki_hf.tools.judging.followed import Followed
from nki_hf.tools.judging.judged_programs import Judged, judged_by_chip
from nki_hf.tools.judging.other_kinds import (
    failed,
    judge_there,
    run_at,
    with_values,
)
from nki_hf.tools.judging.ours import packed_by
from nki_hf.tools.judging.timed_part import part_is_wrong
from nki_hf.tools.judging.timed_work import asked_outputs, cheap, missing_work, work_of
from nki_hf.tools.judging.times import COUNTED, ONE_TURN, TURNS_OF_INPUTS, sentence, stream_of, timed
from nki_hf.tools.judging.without_values import check_without_values

__all__ = ["time_rows"]


def time_rows(request: Mapping[str, Any], progress: Path) -> dict[str, Any]:
    """The record's `times` as `rows`, `warnings`, `seconds`, and `failed` (stage and findings; None).

    Args:
      request: as for `stages.judged`; the kernel's process has ended without an error.
      progress: a file that holds the name of the stage under way.
    """
    progress.write_text("times")
    with two_processes():
        return _time_rows(request)


def _time_rows(request: Mapping[str, Any]) -> dict[str, Any]:
    began = time.perf_counter()
    found: dict[str, Any] = {"rows": [], "warnings": [], "failed": None}
    try:
        task = load_task(request["task"])
        pairs = zip(request["traces"], request["answer"]["traces"], strict=True)
        launches = [pair for pair in pairs if not pair[0]["optional"]]
        judged = judged_by_chip(request["chips"], launches, request["file"])
        for trace, played in sorted(launches, key=lambda pair: pair[0]["size"] not in request["check"]):
            size, mine = trace["size"], judged[trace["chip"]]
            checks = size in request["check"] and mine.chip == trace["chip"]
            if not checks and size not in request["at"]:
                continue
            marks: dict[int, Marks] = {}
            with _at(trace):
                launched = stream_of(trace, played, get_chip(trace["chip"]), request["lnc"], marks)
            if size not in request["check"]:
                names = dict(played["parameters"])
                check_without_values(launched[0].events, task, names, size, may_race=bool(request.get("same_writes")))
            if checks:
                mine.add(size, task, launched[0], played)
            if size in request["at"]:
                found["rows"].append(_timed(request, found, task, trace, played, launched, marks, mine))
        _as_elsewhere(found["rows"], judged)
        found["rows"].sort(key=lambda row: (request["at"].index(row["size"]), request["chips"].index(row["chip"])))
        _against(request, found, task)
    except Failed as failed:
        found["failed"] = {"stage": failed.stage, "findings": list(failed.findings)}
    return {**found, "seconds": time.perf_counter() - began}


_JUDGED, _PART, _NOT_JUDGED = "judged", "part", "not judged"
"""Of the values of a timed size: all of them, those of one tile of rows, or none."""


def _as_elsewhere(rows: Sequence[dict[str, Any]], judged: Mapping[str, Judged]) -> None:
    """Where the kernel is the same program as on another chip its values were judged there."""
    for row in rows:
        there = judged[row["chip"]].chip
        if there != row["chip"]:
            row["values"] = next((o["values"] for o in rows if (o["size"], o["chip"]) == (row["size"], there)), _NOT_JUDGED)


def _timed(
    request: Mapping[str, Any],
    found: dict[str, Any],
    task: Task,
    trace: Mapping[str, Any],
    played: Mapping[str, Any],
    launched: tuple[LaunchResult, str],
    marks: Mapping[int, Marks],
    judged: Judged,
) -> dict[str, Any]:
    """The row of one launch, after it has been compared with those whose values were judged; warnings go to `found`."""
    size, there = trace["size"], None
    chip = get_chip(trace["chip"])
    turns = launched[0].run.short and packed_by(request["file"], request["answer"]["name"], task, chip, request["lnc"]) is None
    if turns:  # how often a loop turns, the inputs say
        there = with_values(request, task, trace, played, f"at size {size:,}")
        launched = (there[1], launched[1])
        found["warnings"].append(f"at size {size:,}: {TURNS_OF_INPUTS}")
    events = launched[0].events
    compared = trace["chip"] == judged.chip and size not in judged.work

    def other_program() -> bytes:
        """What the launch leaves out and does otherwise, in words, whether its values cost little, and what is wrong with a
        part of them if they do not.
        """
        work = work_of(events, size, task.flops(size), asked_outputs(launched[0], task))
        words = missing_work([judged.work[key] for key in sorted(judged.work)], work)
        if words or not compared:
            return plain.dump([words, None, False, None])
        followed = Followed(events)
        what, is_cheap = judged.other(size, task, launched[0], played, followed), cheap(task, trace, events)
        part = None
        if what is None and not turns and not is_cheap:
            run = run_at(request, task, trace)
            part = part_is_wrong(request, run, trace, played, launched[0], followed, marks, secrets.randbits(31))
        return plain.dump([words, what, is_cheap, part])

    worth = len(events) >= WORTH_A_PROCESS
    row, data = in_two(lambda: _row(request, task, trace, played, launched), other_program, worth=worth)
    words, what, is_cheap, part = plain.load(data)
    if launched[0].run.short and not turns:
        found["warnings"].append(f"at size {size:,}: {ONE_TURN}. {COUNTED}")
    elif words:
        raise Failed("times", finding("times", {**_OTHER, "message": f"at size {size:,} the kernel {words}"}))
    if part:
        raise failed(part)
    row["values"] = _JUDGED if size in judged.work else _NOT_JUDGED if part is None else _PART
    if not compared or (what is None and not turns and not is_cheap):
        return row
    row["values"] = _JUDGED
    there = there or with_values(request, task, trace, played, f"at size {size:,}")
    judge_there(request, task, trace, played, there, what, is_cheap)
    if what is not None:
        found["warnings"].append(f"at size {size:,} the kernel {what[0]}: values were judged there as well")
    return row


_OTHER = {
    "kind": "other program",
    "advice": "Values are judged at --check only: what is timed must be the same program for another size.",
}


def _row(
    request: Mapping[str, Any], task: Task, trace: Mapping[str, Any], played: Mapping[str, Any], launched: Any
) -> dict[str, Any]:
    chip = get_chip(trace["chip"])
    with _at(trace):
        row = timed(
            task, trace, played, chip, request["lnc"], dtype=request["dtype"], window=request["window"], launched=launched
        )
    return {**row, "sentence": sentence(row, request["file"]), "against_us": None, "speedup": None}


@contextmanager
def _at(trace: Mapping[str, Any]) -> Iterator[None]:
    """Block in which faults of a launch fail at their stage."""
    try:
        yield
    except KernelFault as fault:
        at = KIND_STAGE.get(fault.record.kind, "limits")
        message = f"at size {trace['size']} on {trace['chip']}: {fault.record.message}"
        raise Failed(at, {**of_fault(at, fault.record), "message": message}) from None
    except (MemoryError, BadTape) as error:
        raise Failed("times", finding("times", {"kind": type(error).__name__, "message": str(error)})) from None


def _against(request: Mapping[str, Any], found: dict[str, Any], task: Task) -> None:
    """Times of the other kernel beside those of this one."""
    other = request.get("against")
    if other is None:
        return
    if other["answer"]["error"] is not None:
        found["warnings"].append(f"--against {other['file']} did not run: {other['answer']['error']['message']}")
        return
    for trace, played in zip(other["traces"], other["answer"]["traces"], strict=True):
        for mine in found["rows"]:
            if (mine["size"], mine["chip"]) == (trace["size"], trace["chip"]):
                chip = get_chip(trace["chip"])
                try:
                    row = timed(task, trace, played, chip, request["lnc"], dtype=request["dtype"], window=request["window"])
                except (KernelFault, BadTape, MemoryError) as error:
                    found["warnings"].append(
                        f"--against {other['file']} does not run on task {task.name} at size {trace['size']:,}: {error}"
                    )
                    return
                mine["against_us"], mine["speedup"] = row["us"], row["us"] / mine["us"]
