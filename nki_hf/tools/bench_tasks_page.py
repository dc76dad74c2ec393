"""The bench of tasks as a table on the screen and as the page docs/bench_tasks.md."""

from __future__ import annotations

import textwrap
from typing import Any

from nki_hf.tools.screen import Screen

__all__ = ["page", "show"]

_ABOUT = (
    "Every task of `nki_hf judge`, with a plain kernel (baseline), the fastest of ours (best), and the least possible "
    "time: useful operations at peak, each input read once, the fixed cost of a launch. One core, the default order; "
    "all times are simulated and no figure here was measured ([how sure they are](timing.md)). `nki_hf bench-tasks -o "
    "docs/bench_tasks.md` makes this page. A program that writes kernels is compared with both columns by `nki_hf "
    "judge FILE.py --task NAME --json -`.",
    "`nkibench_*` are the 14 functions and shapes of AccelOpt's NKIBench, `autocomp_*` those of Autocomp's tasks in "
    "the current language that the other tasks do not have. Its attention and sdattention are `attention` and "
    "`attention_diffusion` at 4,096; its transpose, conv1d, conv2d and multi-head attention have more axes and are "
    "not here. Functions and shapes are theirs, kernels and element types ours: products take bfloat16, the rest is "
    "float32.",
    "`flash_const_max` computes rows beyond its shift again in a loop of run time, which the judge replays; its time is that "
    "of a call that has no such row.",
)


def show(rows: list[dict[str, Any]], screen: Screen) -> None:
    """Print the table, the error bands, and why kernels failed."""
    head = ["task", "size", "chip", "least us", "baseline us (sim)", "best us (sim)", "best kernel", "of the least"]
    screen.table(head, _beside(rows), title="simulated, not measured", left=(0, 2, 6))
    for band in _bands(rows):
        screen.say(band)
    for row in rows:
        if not row["passed"]:
            screen.say(f"{row['task']} {row['which']}: {row['sentence']}")


def _bands(rows: list[dict[str, Any]]) -> list[str]:
    """The error bands of the times, each once; families and chips without measured rows in one sentence."""
    found = sorted({row["band"] for row in rows if row["us"] is not None})
    known = [band for band in found if not band.endswith("no measured rows")]
    rest = ["No row of any other family and chip above was ever measured."] if len(known) < len(found) else []
    return [*known, *rest]


def _beside(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Cells of a line per task, size and chip."""
    cases: dict[tuple[str, int, str], dict[str, dict[str, Any]]] = {}
    for found in rows:
        if found["us"] is not None:
            cases.setdefault((found["task"], found["size"], found["chip"]), {})[found["which"]] = found
    lines: list[tuple[str, ...]] = []
    for (task, size, chip), both in cases.items():
        any_of = next(iter(both.values()))
        us = [f"{both[which]['us']:,.1f}" if which in both else "" for which in ("baseline", "best")]
        best = both.get("best")
        cells = (best["kernel"], f"{best['score']:.0%}") if best else ("none yet", "")
        lines.append((task, f"{size:,}", chip, f"{any_of['least_us']:,.1f}", us[0], us[1], *cells))
    return lines


def page(rows: list[dict[str, Any]], chips: list[str]) -> str:
    """The page docs/bench_tasks.md."""
    failed = [f"* {row['task']}, {row['which']}: {row['sentence']}" for row in rows if not row["passed"]]
    lines = [
        "# A bench of tasks",
        "",
        *(line for text in _ABOUT for line in (*textwrap.wrap(text, 125), "")),
        f"Kernels: `nki_hf/tasks/kernels`, the ladder, and those that dispatch picks (flash_*). Chips: {', '.join(chips)}.",
        "",
        "| task | size | chip | least us | baseline us (sim) | best us (sim) | best kernel | of the least |",
        "|---|---:|---|---:|---:|---:|---|---:|",
        *(f"| {' | '.join(cells)} |" for cells in _beside(rows)),
        "",
        *(f"* {band}" for band in _bands(rows)),
        *(["", "Failed:", "", *failed] if failed else []),
    ]
    return "\n".join(lines) + "\n"
