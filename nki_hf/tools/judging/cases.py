"""The record's `cases`: what the judgement of each output on each kind of inputs found."""

from __future__ import annotations

from typing import Any

from nki_hf.tasks import Task
from nki_hf.tools.judging.values import Outcome

__all__ = ["add_case"]


def add_case(outcome: Outcome, size: int, task: Task, record: dict[str, Any]) -> None:
    """One entry for each output."""
    for name, item, shown in zip(task.outputs, outcome.judgements, outcome.precisions, strict=False):
        plain = item.to_dict()
        record["cases"].append(
            {
                "size": size,
                "distribution": outcome.distribution,
                "output": name,
                "verdict": item.verdict,
                "detail": item.detail,
                "row_error": plain["row_error"],
                "tolerance": item.tolerance,
                "error_ratio": shown.ratio if shown else None,
                "row_factor_ratio": shown.factor_ratio if shown else None,
            }
        )
