"""Two results of the benchmark side by side: what got faster, slower, or cannot be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nki_hf.tools.charting import SERIES, Theme, picture_element, style
from nki_hf.tools.model_bench.options import WrongUse
from nki_hf.tools.model_bench.rank_interval import CONFIDENCE, Ratio, ratio_of
from nki_hf.tools.model_bench.record import BenchResult
from nki_hf.tools.output_files import whole_file
from nki_hf.tools.screen import Screen
from nki_hf.tools.web_page import Page

__all__ = ["Compared", "compared", "show_comparison", "write_comparison"]

SAME = 0.03
"""Simulated times that differ by less are not told apart: a window's order alone moves them that much (docs/timing.md)."""
NOTE = (
    f"Time: new over old, below 1 is faster, with an interval of {CONFIDENCE:.0%} from the spread of the timed calls within "
    "each run. What differs from run to run (another load, another clock) is not in it: repeat both if the answer matters. "
    f"Simulated times have no spread; below {SAME:.0%} they count as no difference."
)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One line.

    Attributes:
      what: an attention, or a chip and its cores.
      unit: s, or simulated µs a layer.
      old, new: medians of the timed calls, or simulated times.
      ratio: new over old.
      simulated: True if the timing model gave both.
    """

    what: str
    unit: str
    old: float
    new: float
    ratio: Ratio
    simulated: bool

    @property
    def verdict(self) -> str:
        """`faster`, `slower`, `no difference`, or `too few calls to tell`."""
        if self.simulated and abs(self.ratio.value - 1) < SAME:
            return "no difference"
        return self.ratio.verdict


def compared(old: BenchResult, new: BenchResult) -> list[Compared]:
    """A line for each attention that ran in both, and for each simulated chip and problem that both have.

    Raises:
      WrongUse: the runs are not of the same model and input, or share no attention.
    """
    for name in ("model", "input"):
        work = old.header.get(name), new.header.get(name)
        if work[0] != work[1]:
            raise WrongUse(f"compare: the runs differ in {name} ({work[0]} | {work[1]}): give two runs of the same work.")
    lines = []
    timed = {row.attn: row.timing for row in old.rows if row.timing is not None}
    for row in new.rows:
        if row.timing is not None and row.attn in timed:
            before = timed[row.attn]
            ratio = ratio_of(before.iterations_s, row.timing.iterations_s)
            lines.append(
                Compared(what=row.attn, unit="s", old=before.median_s, new=row.timing.median_s, ratio=ratio, simulated=False)
            )
    if not lines:
        raise WrongUse("compare: no attention ran in both: give two runs that share one.")
    return lines + _simulated(old, new)


def _simulated(old: BenchResult, new: BenchResult) -> list[Compared]:
    def times(result: BenchResult) -> dict[tuple[str, str, int], dict[str, Any]]:
        return {(entry.problem, row["chip"], row["cores"]): row for entry in result.modelled for row in entry.rows}

    before, lines = times(old), []
    several = len(old.modelled) > 1
    for (problem, chip, cores), row in times(new).items():
        if (problem, chip, cores) in before:
            us = before[problem, chip, cores]["nki_us_simulated"], row["nki_us_simulated"]
            value = us[1] / us[0]
            what = f"{chip} x {cores}" + (f", {problem}" if several else "")
            lines.append(
                Compared(
                    what=what,
                    unit="µs sim",
                    old=us[0],
                    new=us[1],
                    simulated=True,
                    ratio=Ratio(value=value, low=value, high=value),
                )
            )
    return lines


def differences(old: BenchResult, new: BenchResult) -> list[tuple[str, str, str]]:
    """Lines of the two headers that differ, and attentions that one run has no times of: name, old, new."""
    names = dict.fromkeys([*old.header, *new.header])
    found = [(name, old.header.get(name, "-"), new.header.get(name, "-")) for name in names]
    found.append(("simulated kernels", _kernels(old), _kernels(new)))
    attentions = dict.fromkeys(row.attn for row in (*old.rows, *new.rows))
    found += [(f"{name}, not compared", _ran(old, name), _ran(new, name)) for name in attentions]
    return [line for line in found if line[1] != line[2]]


def _ran(result: BenchResult, attn: str) -> str:
    """`timed`, or why an attention has no times."""
    row = next((row for row in result.rows if row.attn == attn), None)
    return "not in this run" if row is None else "timed" if row.timing is not None else row.skipped or "not timed"


def _kernels(result: BenchResult) -> str:
    return ", ".join(sorted({row["kernel"] for entry in result.modelled for row in entry.rows}))


def show_comparison(old: BenchResult, new: BenchResult, screen: Screen) -> None:
    """Print the lines, what differs between the machines, and both verdicts."""
    screen.table(_TITLES, [_cells(line) for line in compared(old, new)], left=(0, 5))
    screen.say("")
    for name, before, after in differences(old, new):
        screen.say(f"{name}: {before} | {after}")
    for label, result in (("old", old), ("new", new)):
        screen.say(f"{label}: {'PASS' if result.passed else 'FAIL'}: {result.verdict}")
    screen.say(NOTE)


def write_comparison(old: BenchResult, new: BenchResult, path: Path) -> None:
    """Write the same as a page."""
    lines = compared(old, new)
    made = Page("nki_hf benchmark: two runs")
    made.lead("; ".join(f"{line.what}: {line.verdict}" for line in lines if not line.simulated))
    made.say(f"{new.header.get('model', '')}. {new.header.get('input', '')}.")
    made.chart(picture_element(partial(_draw, lines), (9.0, 1.4 + 0.45 * len(lines)), "ratio of times, new over old"))
    made.table(_TITLES, [_cells(line) for line in lines])
    made.say(NOTE, note=True)
    made.heading("what differs between the runs")
    made.facts([(name, f"{before} | {after}") for name, before, after in differences(old, new)] or [("nothing", "")])
    for label, result in (("old", old), ("new", new)):
        made.heading(label)
        made.lead(f"{'PASS' if result.passed else 'FAIL'}: {result.verdict}", good=result.passed)
        made.code(result.command)
    with whole_file(path) as file:
        file.write(made.text().encode())


_TITLES = ("what", "old", "new", "new / old", "interval", "verdict")


def _cells(line: Compared) -> list[str]:
    spread = line.ratio.low is not None and not line.simulated
    interval = f"{line.ratio.low:.3f} .. {line.ratio.high:.3f}" if spread else "-"
    old, new = (f"{value:,.4g} {line.unit}" for value in (line.old, line.new))
    return [line.what, old, new, f"{line.ratio.value:.3f}", interval, line.verdict]


def _draw(lines: Sequence[Compared], figure: Any, theme: Theme) -> None:
    axes = figure.subplots()
    for place, line in enumerate(lines):
        colour = {"faster": SERIES[2], "slower": SERIES[4]}.get(line.verdict, SERIES[6])
        if line.ratio.low is not None and line.ratio.high is not None:
            axes.plot([line.ratio.low, line.ratio.high], [place, place], color=colour, linewidth=5, alpha=0.45)
        axes.plot(line.ratio.value, place, "D" if line.simulated else "o", color=colour, markersize=6)
        axes.annotate(
            line.verdict, (1.01, place), xycoords=("axes fraction", "data"), va="center", color=theme.text, fontsize=8
        )
    axes.axvline(1, color=theme.text, linewidth=1)
    axes.set_yticks(range(len(lines)), [f"{line.what} (sim)" if line.simulated else line.what for line in lines])
    axes.invert_yaxis()
    axes.margins(y=0.15)
    style(
        axes,
        theme,
        title="new time over old time: circle measured, diamond simulated",
        x="new / old (below 1: faster)",
        grid="x",
    )
