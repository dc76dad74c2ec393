"""The result tables in docs/conformance.md: one block per suite, replaced as a whole by its runner."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tools.conformance.case import Outcome
from tools.page_block import block_of, replace_block

__all__ = ["PAGE", "recorded", "render", "summary", "update"]

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
_VERDICTS = ("passed", "failed", "refused", "not run")
_REASON_LENGTH = 240


def summary(outcomes: Sequence[Outcome]) -> str:
    """Counts per verdict as one line, e.g. `12 passed, 0 failed, 1 refused, 3 not run`."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in _VERDICTS)


def render(outcomes: Sequence[Outcome], command: str) -> str:
    """The block of one suite: counts, a table of kernels, and each case that is not plainly passed."""
    lines = [f"{summary(outcomes)}. Command: `{command}`", "", "| kernel | passed | failed | refused | not run |"]
    lines.append("|---|---:|---:|---:|---:|")
    for kernel in dict.fromkeys(outcome.kernel for outcome in outcomes):
        counts = Counter(outcome.verdict for outcome in outcomes if outcome.kernel == kernel)
        lines.append(f"| {kernel} | " + " | ".join(str(counts[verdict]) for verdict in _VERDICTS) + " |")
    lines += ["", "| kernel | option | verdict | detail |", "|---|---|---|---|"]
    for outcome in outcomes:
        detail = outcome.detail if len(outcome.detail) <= _REASON_LENGTH else outcome.detail[:_REASON_LENGTH] + " ..."
        cells = (outcome.kernel, outcome.option, outcome.verdict, detail)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def recorded(suite: str, page: Path = PAGE) -> tuple[list[Outcome], str]:
    """The outcomes and the command that the page holds for a suite."""
    block = block_of(page, suite)
    command = block.partition("Command: `")[2].partition("`")[0]
    rows = block.partition("| kernel | option | verdict | detail |")[2].strip().splitlines()[1:]
    cells = (re.split(r"(?<!\\) \| ", row.removeprefix("| ").removesuffix(" |")) for row in rows)
    return [Outcome(*(cell.replace("\\|", "|") for cell in row)) for row in cells], command


def update(suite: str, outcomes: Sequence[Outcome], command: str, page: Path = PAGE) -> None:
    """Replace the suite's block in the page; the page must have its two marker comments."""
    replace_block(page, suite, render(outcomes, command))
