"""Looks for races, overwritten tiles and foreign accumulation in the attention kernels of a checkout of aws-neuron/nki-library.

python tools/conformance/library_races.py CHECKOUT [--limit N] [--seconds S] [--report]

Every case of the library's own tests is run with its event stream kept. Memory faults end a case; races and products added
to what another engine wrote are counted per pair of source lines.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from nki_hf import sim
from nki_hf.observers.accumulation import foreign_accumulation
from nki_hf.observers.races import Trust, races
from tools.conformance.case import run_case
from tools.conformance.library_cases import cases_of
from tools.conformance.library_harness import library
from tools.page_block import replace_block

_KERNELS = ("attention_cte", "attention_tkg", "attention_bwd")
_PAGE = Path(__file__).parents[2] / "docs" / "races.md"


class Findings:
    """What the launches of one kernel showed."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        self.counts: Counter[str] = Counter()
        self.lines: Counter[str] = Counter()

    def look(self, result: sim.LaunchResult) -> None:
        """Count what one launch shows."""
        self.counts["launches"] += 1
        self.counts["on two cores"] += result.run.lnc == 2
        self.counts["instructions"] += len(result.events)
        for race in races(result.events):
            self.counts["races"] += 1
            self._at(f"race between {race.first.opcode} and {race.second.opcode}", race.second.file, race.second.line)
        distrusting = races(result.events, trust=Trust(addresses=False, hbm=False, indices=False))
        for race in distrusting:
            self.counts[f"resting on {race.cause}"] += race.cause != "cores"
        for record in foreign_accumulation(result.events, result.run.options.chip):
            self.counts["foreign accumulation"] += 1
            self._at(f"{record.instruction} adds to what another engine wrote", record.file, record.line)

    def _at(self, what: str, file: str, line: int) -> None:
        path = Path(file)
        shown = path.relative_to(self.checkout) if path.is_relative_to(self.checkout) else path.name
        self.lines[f"{what} ({shown}:{line})"] += 1


def main() -> int:
    """Run the cases; 0 unless a case failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--limit", type=int, default=10, help="cases of each test method")
    parser.add_argument("--seconds", type=float, default=20.0, help="most CPU time of one case")
    parser.add_argument("--report", action="store_true", help="write the result to docs/races.md")
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    found = {kernel: Findings(checkout) for kernel in _KERNELS}
    verdicts = {kernel: Counter[str]() for kernel in _KERNELS}
    launch = sim.launch
    with library(checkout):
        for kernel in _KERNELS:

            def observed(*args: Any, kernel: str = kernel, **kwargs: Any) -> sim.LaunchResult:
                kwargs["options"] = replace(kwargs["options"], events=True)
                result = launch(*args, **kwargs)
                found[kernel].look(result)
                return result

            sim.launch = observed  # the harness launches through the package
            for case in cases_of(kernel, options.limit):
                sink = io.StringIO()
                with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
                    verdicts[kernel][run_case(case, options.seconds).verdict] += 1
            sim.launch = launch
            print(kernel, dict(verdicts[kernel]), dict(found[kernel].counts), flush=True)
    command = f"python tools/conformance/library_races.py CHECKOUT --limit {options.limit} --seconds {options.seconds:.0f}"
    text = _render(found, verdicts, command)
    print(text)
    if options.report:
        replace_block(_PAGE, "nki-library", text.removesuffix("\n"))
    return int(any(verdict["failed"] for verdict in verdicts.values()))


def _render(found: dict[str, Findings], verdicts: dict[str, Counter[str]], command: str) -> str:
    columns = [
        "launches",
        "on two cores",
        "instructions",
        "races",
        "resting on addresses",
        "resting on hbm",
        "resting on indices",
        "foreign accumulation",
    ]
    lines = [f"Command: `{command}`", "", f"| kernel | cases passed | {' | '.join(columns)} |"]
    lines.append("|---|" + "---:|" * (len(columns) + 1))
    for kernel, findings in found.items():
        cells = [f"{findings.counts[column]:,}" for column in columns]
        lines.append(f"| {kernel} | {verdicts[kernel]['passed']} | {' | '.join(cells)} |")
    lines += ["", "| finding | launches |", "|---|---:|"]
    total: Counter[str] = sum((findings.lines for findings in found.values()), Counter())
    lines += [f"| {what} | {count} |" for what, count in sorted(total.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
