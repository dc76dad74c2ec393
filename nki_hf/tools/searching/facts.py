"""What a judgement says in a few numbers: times by chip and size, and two records side by side."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["beside", "case_of", "failed_record", "source_diff", "times_of"]


def case_of(row: Mapping[str, Any]) -> str:
    """The name of one time: `trn1@4096`."""
    return f"{row['chip']}@{row['size']}"


def times_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Simulated us by `case_of`; empty if it failed."""
    return {case_of(row): float(row["us"]) for row in record["times"]} if record["passed"] else {}


def failed_record(path: str, task: str, why: str) -> dict[str, Any]:
    """What stands for the record of a judgement that did not come to its end."""
    sentence = f"failed at stage load: {why}."
    return {
        "passed": False, "verdict": "failed at stage load", "stage": "load", "sentence": sentence, "file": path, "kernel": "",
        "task": task, "score": 0.0, "findings": [], "times": [], "diagnosis": "", "warnings": [], "cases": [],
    }  # fmt: skip


def source_diff(before: str, after: str, names: tuple[str, str] = ("before", "after"), context: int = 2) -> str:
    """A unified diff of two sources; empty if they are the same."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), *names, n=context, lineterm="")
    return "\n".join(lines)


def beside(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per chip and size that both records timed: times, engines, and the lines of both critical paths.

    `speedup` is how many times as fast b is, `band` the error band of both times. Engines are active shares of the latency; of
    a path the us by line.
    """
    found = []
    theirs = {case_of(row): row for row in b["times"]}
    for row in a["times"]:
        other = theirs.get(case_of(row))
        if other is None:
            continue
        engines = [
            {"engine": name, **{key: item["floors_us"].get(name, 0.0) / item["us"] for key, item in (("a", row), ("b", other))}}
            for name in dict.fromkeys((*row["floors_us"], *other["floors_us"]))
        ]
        found.append(
            {
                "chip": row["chip"],
                "size": row["size"],
                "a_us": row["us"],
                "b_us": other["us"],
                "speedup": row["us"] / other["us"],
                "least_us": row["least_us"],
                "engines": engines,
                "a_path": [_step(step) for step in row["path"]],
                "b_path": [_step(step) for step in other["path"]],
                "band": row["band"],
            }
        )
    return found


def _step(step: Mapping[str, Any]) -> dict[str, Any]:
    place = f"{Path(step['file']).name}:{step['line']}" if step["file"] else ""
    return {"what": f"{step['engine']} {step['opcode']}", "place": place, "us": step["us"], "share": step["share"]}
