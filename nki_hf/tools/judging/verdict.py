"""Verdict: the record of a judgement before, after and without its end, and its sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nki_hf.tools.judging.against import without_credit
from nki_hf.tools.judging.findings import finding
from nki_hf.tools.judging.overflows import overflow_warnings, spoken
from nki_hf.tools.judging.stage_names import SCHEMA_VERSION, STAGES

__all__ = ["broken", "empty", "failure_sentence", "fails", "finite", "passes", "timed_too"]


def empty(request: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a judgement that begins."""
    answer = request.get("answer") or {}
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": "",
        "passed": False,
        "stage": None,
        "sentence": "",
        "file": request["file"],
        "kernel": answer.get("name") or request["name"],
        "task": request["task"],
        "dtype": request["dtype"],
        "chip": request["chips"][0],
        "lnc": request["lnc"],
        "seed": request["seed"],
        "score": 0.0,
        "right_at": [],
        "ragged": None,
        "against": None,
        "diagnosis": "",
        "first_difference": None,
        "findings": [],
        "warnings": [],
        "cases": [],
        "memory": [],
        "times": [],
        "printed": request.get("printed") or {},
        "seconds": {"kernel": request.get("kernel_seconds", 0.0)},
    }


def passes(record: dict[str, Any]) -> None:
    """Every stage so far has passed."""
    times = record["times"]
    record.update(
        verdict="pass",
        passed=True,
        stage=None,
        score=sum(row["score"] for row in times) / len(times) if times else 1.0,
        sentence=f"pass: {spoken(times)}{_right(record)}" if times else f"pass.{_right(record)}",
    )


def _right(record: Mapping[str, Any]) -> str:
    """For which sizes it is right."""
    if not record["right_at"]:
        return ""
    said = " and ".join(f"{size:,}" for size in record["right_at"])
    ragged = record["ragged"] or {"verdict": "", "size": 0}
    tail = {
        "right": f" and at {ragged['size']}, which no tile divides",
        "wrong": f"; wrong at {ragged['size']}, which no tile divides",
        "refused": f"; it does not take {ragged['size']}, which no tile divides",
        "crashed": f"; it crashes at {ragged['size']}, which no tile divides, without saying which sizes it takes",
        "not taken": f"; it leaves out the end of {ragged['size']}, which no tile divides",
    }
    return f" Right at sizes {said}{tail.get(ragged['verdict'], '')}."


def fails(record: dict[str, Any], stage: str, findings: list[dict[str, Any]]) -> None:
    """A stage has failed: its findings, and the sentence that names the cause before the symptom."""
    record.update(verdict=f"failed at stage {stage}", passed=False, stage=stage, score=0.0)
    record["findings"] += findings
    record["sentence"] = failure_sentence(stage, findings, record["diagnosis"])


def failure_sentence(stage: str, findings: Sequence[Mapping[str, Any]], diagnosis: str = "") -> str:
    """What failed, in one sentence and what to do: the cause where it has a name, else the first finding."""
    first = findings[0] if findings else {"message": "", "advice": ""}
    limit = f", {first['limit']}" if first.get("limit") and not diagnosis else ""
    said = (diagnosis or f"{first['message'].rstrip('.')}{limit}").rstrip(".")
    place = f" ({first['file'].rsplit('/', 1)[-1]}:{first['line']})" if first.get("line") else ""
    advice = f" {first['advice']}" if first.get("advice") else ""
    return f"failed at stage {stage}: {said}{place}.{advice}"


def broken(request: Mapping[str, Any], stage: str, error: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a judgement whose own process did not come to its end."""
    record = empty(request)
    fails(record, stage if stage in STAGES else "load", [finding(stage, error)])
    return record


def timed_too(record: dict[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a kernel that passed, with what `time_rows` found."""
    record["times"] = found["rows"]
    record["warnings"] += [*found["warnings"], *overflow_warnings(found["rows"])]
    record["seconds"]["times"] = found["seconds"]
    without_credit(record)
    if found["failed"] is not None:
        fails(record, found["failed"]["stage"], found["failed"]["findings"])
    else:
        passes(record)
    return record


def finite(value: Any) -> Any:
    """The record with None for numbers that JSON has not."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value
