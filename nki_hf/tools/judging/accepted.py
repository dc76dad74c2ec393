"""Kernels that are less exact at one place than an ideal one, as published kernels are: they pass with a warning.

They are judged by the reference with other arguments (`Task.accepted`), everything else as for any kernel: whatever else is
inexact, or wrong, shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nki_hf.tools.judging.imprecision import imprecision
from nki_hf.tools.judging.precision import RATIOS
from nki_hf.tools.judging.values import Checked, Outcome, Run, judged_on

__all__ = ["accepting", "less_exact"]

_VALUES = ("pass", "rows", "magnitude", "cosine")
"""Verdicts that a rounding can explain."""


def accepting(run: Run, found: Checked, request: Mapping[str, Any]) -> tuple[Run, Checked]:
    """The run and what was found, judged by the first entry of `Task.accepted` that makes all of it right, if it is not so."""
    if run.accepted or found.count or all(_fine(run, outcome, request) for outcome in found.outcomes):
        return run, found
    if any(item.verdict not in _VALUES for outcome in found.outcomes for item in outcome.judgements):
        return run, found
    for words in run.task.accepted:
        other, outcomes = replace(run, accepted=words), list[Outcome]()
        for outcome in found.outcomes:
            outcomes.append(judged_on(other, outcome.distribution, outcome.arrays, outcome.outputs, outcome.first))
            if not _fine(run, outcomes[-1], request):
                break
        else:
            return other, replace(found, outcomes=outcomes)
    return run, found


def less_exact(run: Run, found: Checked, before: Checked) -> str:
    """The warning about what was accepted; empty if nothing was.

    Args:
      before: what was found without it.
    """
    if found is before:
        return ""
    worst = max(
        (item.row_error, outcome.distribution, item.tolerance) for outcome in before.outcomes for item in outcome.judgements
    )
    return (
        f"precision: {run.accepted}. Published kernels do so, and it is allowed; rows at size {found.size:,} err up to "
        f"{worst[0]:.2g} on {worst[1]} inputs, where a kernel without it may err {worst[2]:.2g}"
    )


def _fine(run: Run, outcome: Outcome, request: Mapping[str, Any]) -> bool:
    inexact = request["dtype"] in ("bfloat16", "float16") and not request["rtol"]
    return outcome.wrong is None and not (inexact and imprecision(outcome, RATIOS[run.task.ideal is not None]))
