"""The stage of times, in a clean process of its own: it needs no values, so it runs beside the stages that do."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim.run.play import BadTape
from nki_hf.tasks import Task, load_task
from nki_hf.tools.judging.findings import KIND_STAGE, Failed, finding, of_fault
from nki_hf.tools.judging.immediates import Immediate, immediates, other_number
from nki_hf.tools.judging.other_kinds import Kind, Use, judge_there, kinds_of, otherwise
from nki_hf.tools.judging.timed_work import Work, missing_work, work_of
from nki_hf.tools.judging.times import ONE_TURN, sentence, stream_of, timed

__all__ = ["time_rows"]


def time_rows(request: Mapping[str, Any], progress: Path) -> dict[str, Any]:
    """The record's `times` as `rows`, `warnings`, `seconds`, and `failed` (stage and findings; None).

    Args:
      request: as for `stages.judged`; the kernel's process has ended without an error.
      progress: a file that holds the name of the stage under way.
    """
    progress.write_text("times")
    began = time.perf_counter()
    found: dict[str, Any] = {"rows": [], "warnings": [], "failed": None}
    try:
        task = load_task(request["task"])
        checked: dict[int, Work] = {}
        judged: dict[int, dict[Kind, Use]] = {}
        numbers: dict[int, dict[Immediate, tuple[str, int]]] = {}
        pairs = zip(request["traces"], request["answer"]["traces"], strict=True)
        launches = [pair for pair in pairs if not pair[0]["optional"]]
        for trace, played in sorted(launches, key=lambda pair: pair[0]["size"] not in request["check"]):
            with _at(trace):
                launched = stream_of(trace, played, get_chip(trace["chip"]), request["lnc"])
            size = trace["size"]
            work, kinds = work_of(launched[0].events, size, task.flops(size)), kinds_of(launched[0].events)
            if size in request["check"]:
                checked.setdefault(size, work)
                judged.setdefault(size, kinds)
                numbers.setdefault(size, immediates(played["tape"]))
            if size in request["at"]:
                row = _row(request, task, trace, played, launched)
                found["rows"].append(row)
                words = missing_work([checked[key] for key in sorted(checked)], work)
                if launched[0].run.short:
                    if row["us"] < row["least_us"]:
                        words = f"takes {row['us']:.1f} us, below the {row['least_us']:.1f} that no kernel can"
                    if words:
                        raise Failed(
                            "times", finding("times", {**_TURNS, "message": f"at size {size:,}, {ONE_TURN}: it {words}"})
                        )
                    found["warnings"].append(f"at size {size:,}: {ONE_TURN}")
                elif words:
                    raise Failed("times", finding("times", {**_OTHER, "message": f"at size {size:,} the kernel {words}"}))
                what = otherwise(judged, kinds, size) if trace["chip"] == request["chips"][0] else None
                if what is None and trace["chip"] == request["chips"][0] and numbers and size not in numbers:
                    what = other_number(numbers.values(), immediates(played["tape"]))
                if what is not None:
                    found["warnings"].append(judge_there(request, task, trace, played, what))
        found["rows"].sort(key=lambda row: (request["at"].index(row["size"]), request["chips"].index(row["chip"])))
        _against(request, found, task)
    except Failed as failed:
        found["failed"] = {"stage": failed.stage, "findings": list(failed.findings)}
    return {**found, "seconds": time.perf_counter() - began}


_TURNS = {
    "kind": "trip count",
    "advice": "Bounds that follow from sizes are counted, as in nl.fori_loop(0, x.shape[0] // 128, body).",
}

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
    return {**row, "sentence": sentence(row), "against_us": None, "speedup": None}


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
