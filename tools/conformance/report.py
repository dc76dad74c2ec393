"""The result tables in docs/conformance.md: one block per suite, with counts of each kernel and what did not pass."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.conformance.case import Outcome
from tools.page_block import block_of, replace_block

__all__ = ["PAGE", "VERDICTS", "Tally", "recorded", "render", "summary", "tallies", "update"]

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
VERDICTS = ("passed", "failed", "refused", "not run")
_REASON_LENGTH, _OPTION_LENGTH = 400, 160
_HEADS = ("| kernel | passed | failed | refused | not run | largest error |", "| kernel | cases | the first | verdict | why |")
_SHARE = re.compile(r"error (\d+\.\d+) of the tolerance")
_CELLS = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Tally:
    """What became of the cases of one kernel.

    Attributes:
      counts: cases of each of `VERDICTS`.
      largest: the largest error of a case that passed, as a share of its tolerance; empty if none has one.
      rows: of the cases that did not pass, those of one test with one reason together: how many, the first of them, its
        verdict, and why.
    """

    counts: tuple[int, ...]
    largest: str
    rows: tuple[tuple[str, str, str, str], ...]


def tallies(outcomes: Sequence[Outcome]) -> dict[str, Tally]:
    """The tally of each kernel, in the order of the outcomes."""
    return {
        name: _tally([item for item in outcomes if item.kernel == name]) for name in dict.fromkeys(o.kernel for o in outcomes)
    }


def summary(found: Sequence[Outcome] | Mapping[str, Tally]) -> str:
    """Counts per verdict as one line, e.g. `12 passed, 0 failed, 1 refused, 3 not run`."""
    parts = found if isinstance(found, Mapping) else tallies(found)
    sums = [sum(part.counts[i] for part in parts.values()) for i in range(len(VERDICTS))]
    return ", ".join(f"{number} {verdict}" for number, verdict in zip(sums, VERDICTS, strict=True))


def render(parts: Mapping[str, Tally], command: str) -> str:
    """The block of one suite: counts, a table of kernels, and what did not pass."""
    lines = [f"{summary(parts)}. Command: `{command}`", "", _HEADS[0], "|---|---:|---:|---:|---:|---:|"]
    lines += [_line((name, *map(str, part.counts), part.largest)) for name, part in parts.items()]
    rows = [_line((name, *row)) for name, part in parts.items() for row in part.rows]
    return "\n".join(lines + (["", _HEADS[1], "|---|---:|---|---|---|", *rows] if rows else []))


def recorded(suite: str, page: Path = PAGE) -> tuple[dict[str, Tally], str]:
    """The tallies and the command that the page holds for a suite."""
    block = block_of(page, suite)
    command = block.partition("Command: `")[2].partition("`")[0]
    kernels, rows = (_table(block, head) for head in _HEADS)
    found = {
        name: Tally(tuple(map(int, counts)), largest, tuple((a, b, c, d) for kernel, a, b, c, d in rows if kernel == name))
        for name, *counts, largest in kernels
    }
    return found, command


def update(suite: str, outcomes: Sequence[Outcome], command: str, page: Path = PAGE, *, order: Sequence[str] = ()) -> None:
    """Replace the suite's block in the page, which must have its two marker comments.

    With `order`, the names of all kernels, those without an outcome keep what the page has of them, and its command.
    """
    parts = tallies(outcomes)
    if order:
        before, command = recorded(suite, page)
        both = {**before, **parts}
        parts = {name: both[name] for name in order if name in both}
    replace_block(page, suite, render(parts, command))


def _tally(outcomes: Sequence[Outcome]) -> Tally:
    counts = Counter(outcome.verdict for outcome in outcomes)
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.verdict != "passed":
            key = (outcome.option.partition(":")[0], outcome.verdict, re.sub(r"[-\d.,e+]+|inf|nan", "#", outcome.detail))
            groups.setdefault(key, []).append(outcome)
    rows = [
        (str(len(items)), _cut(items[0].option, _OPTION_LENGTH), items[0].verdict, _cut(items[0].detail, _REASON_LENGTH))
        for items in groups.values()
    ]
    shares = [float(found[1]) for item in outcomes if (found := _SHARE.fullmatch(item.detail))]
    largest = f"{max(shares):.2f}" if shares else ""
    return Tally(tuple(counts[verdict] for verdict in VERDICTS), largest, tuple(rows))


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + " ..."


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _table(block: str, head: str) -> list[list[str]]:
    """The cells of the table of that head; empty if there is none."""
    lines = block.partition(head)[2].partition("\n\n")[0].strip().splitlines()[1:]
    rows = (_CELLS.split(line.removeprefix("|").removesuffix("|")) for line in lines)
    return [[cell.strip().replace("\\|", "|") for cell in row] for row in rows]
