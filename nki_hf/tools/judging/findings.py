"""Findings: one fault of a kernel as plain data, and the stage that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nki_hf.errors import FaultRecord
from nki_hf.tools.judging.stage_names import STAGES

__all__ = ["KIND_STAGE", "Failed", "KernelFailed", "finding", "kernel_failure", "of_fault"]

KIND_STAGE = {"capacity": "memory", "overlap": "memory", "race": "races", "deadlock": "races", "uninitialized": "values"}
"""Kind of a fault -> stage; every other kind is a limit."""


class Failed(Exception):
    """A stage that the kernel does not pass, with what was found there."""

    def __init__(self, stage: str, *findings: dict[str, Any]) -> None:
        self.stage = stage
        self.findings = findings
        super().__init__(stage)


def finding(stage: str, error: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of the record's `findings`; of `error` only `kind` and `message` must be there."""
    return {
        "stage": stage if stage in STAGES else "load",
        "kind": error["kind"],
        "message": error["message"],
        "limit": error.get("limit", ""),
        "advice": error.get("advice", ""),
        "file": error.get("file", ""),
        "line": int(error.get("line") or 0),
    }


def of_fault(stage: str, record: FaultRecord) -> dict[str, Any]:
    """A fault of the simulator as a finding."""
    return finding(stage, {**record.to_dict(), "message": f"{record.instruction}: {record.message}"})


def kernel_failure(answer: Mapping[str, Any]) -> Failed | None:
    """What went wrong in the kernel's own process, from its answer (see `child.answer`)."""
    error = answer["error"]
    if error is None:
        return _impure(answer.get("changed"))
    at = answer["stage"] if answer["stage"] in STAGES else "load"
    if error.get("fault"):
        at = KIND_STAGE.get(error["kind"], "limits")
        if "on shapes alone" in error["message"] or "shapes only" in str(error.get("limit")):
            at = "values"
            error = {**error, "kind": "not replayable", "message": f"this kernel cannot be replayed: {error['message']}"}
    return Failed(at, finding(at, error))


def _impure(changed: Mapping[str, Any] | None) -> Failed | None:
    if changed is None:
        return None
    advice = "A kernel is a pure function of its arguments (language guide, kernel caching)."
    message = "the kernel gives another program when it is launched again with the same arguments"
    return Failed("run", finding("run", {"message": message, **changed, "kind": "not a function", "advice": advice}))


class KernelFailed(ValueError):
    """A kernel that cannot be shown: its file or its Python fails; the text is the sentence of the judgement (exit code 1)."""
