"""The benchmark's chart: rate, spread, accuracy, simulated times per chip and the share of attention in a layer."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from nki_hf.chips.measurements import error_range
from nki_hf.tools.charting import SERIES, Theme, style
from nki_hf.tools.error_bands import family_of
from nki_hf.tools.model_bench.accuracy import MAX_RMS_RATIO
from nki_hf.tools.model_bench.record import BenchResult, Row

__all__ = ["SIZE", "colour_of", "draw"]

SIZE = (12.0, 8.0)
"""Inches."""

_COLOURS = {"eager": SERIES[1], "sdpa": SERIES[0], "nki": SERIES[2]}


def colour_of(attn: str) -> str:
    """One colour for one attention, in every chart."""
    return _COLOURS.get(attn, SERIES[3])


def draw(result: BenchResult, figure: Any, theme: Theme) -> None:
    """Draw all panels that the record has something for."""
    rows = [row for row in result.rows if row.timing is not None]
    top, bottom, foot = figure.add_gridspec(3, 1, height_ratios=(5, 5, 1.1))
    upper, lower = top.subgridspec(1, 3).subplots(), bottom.subgridspec(1, 2).subplots()
    where = "wall clock of this CPU" if result.header.get("device") == "cpu" else f"measured on {result.header.get('device')}"
    _rates(upper[0], theme, rows, where)
    _spread(upper[1], theme, rows, where)
    _accuracy(upper[2], theme, rows)
    _simulated(lower[0], theme, result)
    _shares(lower[1], theme, result)
    _footer(figure.add_subplot(foot), theme, result)
    title = f"{'PASS' if result.passed else 'FAIL'}   {result.header.get('model', '')}"
    figure.suptitle(title, color=theme.text, fontsize=12, x=0.01, ha="left")


def _rates(axes: Any, theme: Theme, rows: Sequence[Row], where: str) -> None:
    names = [row.attn for row in rows]
    values = [row.prompts_per_s or 0.0 for row in rows]
    bars = axes.bar(names, values, color=[colour_of(name) for name in names], width=0.6)
    axes.bar_label(bars, [f"{value:.3g}" for value in values], color=theme.text, fontsize=9, padding=2)
    axes.margins(y=0.15)
    style(axes, theme, title="rate of the whole model", y=f"prompts/s ({where})")


def _spread(axes: Any, theme: Theme, rows: Sequence[Row], where: str) -> None:
    for number, row in enumerate(rows):
        if row.timing is None:
            continue
        times = row.timing.iterations_s
        axes.plot([number] * 2, [min(times), max(times)], color=colour_of(row.attn), linewidth=6, alpha=0.35)
        axes.plot([number] * len(times), times, "o", color=colour_of(row.attn), markersize=4)
        axes.plot([number - 0.2, number + 0.2], [row.timing.median_s] * 2, color=theme.text, linewidth=1.5)
    axes.set_xticks(range(len(rows)), [row.attn for row in rows])
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_ylim(0, 1.12 * max((row.timing.max_s for row in rows if row.timing), default=1.0))
    style(axes, theme, title="latency: each call, line = median", y=f"s per forward pass ({where})")


def _accuracy(axes: Any, theme: Theme, rows: Sequence[Row]) -> None:
    found = [(row.attn, row.accuracy.rms_ratio) for row in rows if row.accuracy is not None]
    drawn = [(name, value) for name, value in found if value == value and value < 1e3]
    bars = axes.bar([n for n, _ in drawn], [v for _, v in drawn], color=[colour_of(n) for n, _ in drawn], width=0.6)
    axes.bar_label(bars, [f"{value:.3f}" for _, value in drawn], color=theme.text, fontsize=9, padding=2)
    axes.axhline(MAX_RMS_RATIO, color=SERIES[4], linestyle="--", linewidth=1.2)
    axes.text(
        0.99,
        MAX_RMS_RATIO,
        " most that passes ",
        color=theme.text,
        fontsize=8,
        ha="right",
        va="bottom",
        transform=axes.get_yaxis_transform(),
    )
    axes.set_ylim(0, max(1.8, *(1.2 * value for _, value in drawn)) if drawn else 1.8)
    style(axes, theme, title="accuracy: error over that of eager", y="RMS error / eager's, same dtype")


def _simulated(axes: Any, theme: Theme, result: BenchResult) -> None:
    title = "attention on Trainium, SIMULATED, with error band"
    if not result.modelled:
        _nothing(axes, theme, title, "no nki row went through a kernel")
        return
    entry = max(result.modelled, key=lambda one: one.layers)
    for place, row in enumerate(entry.rows):
        for side, kind, colour in ((-0.2, "nki", colour_of("nki")), (0.2, "eager_like", colour_of("eager"))):
            ms = row[f"{kind}_model_ms_simulated"]
            band = error_range(family_of(row["kernel"] if kind == "nki" else "v3"), row["chip"])
            whiskers = None if band is None else [[ms - ms / (1 + band[1])], [ms / (1 + band[0]) - ms]]
            axes.bar(
                place + side,
                ms,
                width=0.36,
                color=colour,
                hatch="//",
                edgecolor=theme.back,
                linewidth=0,
                yerr=whiskers,
                ecolor=theme.text,
                capsize=3,
                label={"nki": "nki", "eager_like": "eager-like (ladder v3)"}[kind] if place == 0 else None,
            )
            axes.text(
                place + side,
                ms * 1.25,
                f"{ms:,.3g}" + ("" if band else " ?"),
                ha="center",
                va="bottom",
                color=theme.text,
                fontsize=8,
            )
    axes.set_yscale("log")
    axes.margins(y=0.25)
    axes.set_xticks(range(len(entry.rows)), [f"{row['chip']}, {_cores(row['cores'])}" for row in entry.rows])
    axes.legend(fontsize=8, loc="upper right")
    style(axes, theme, title=f"{title} (?: not known)", y=f"ms, attention of {entry.layers_in_words} (simulated)")


def _shares(axes: Any, theme: Theme, result: BenchResult) -> None:
    title = "share of attention in a layer, SIMULATED, at most"
    rows = [row for entry in result.modelled for row in entry.rows if "nki_share_simulated" in row]
    if not rows:
        _nothing(axes, theme, title, "the layer's matrix products are not known")
        return
    rows = rows[: len(result.modelled[0].rows)]
    for place, row in enumerate(rows):
        for side, kind in ((-0.2, "nki"), (0.2, "eager_like")):
            share = 100 * row[f"{kind}_share_simulated"]
            band = error_range(family_of(row["kernel"] if kind == "nki" else "v3"), row["chip"])
            colour = colour_of("nki" if kind == "nki" else "eager")
            axes.bar(place + side, share, width=0.36, color=colour, hatch="//", edgecolor=theme.back, linewidth=0)
            axes.bar(place + side, 100 - share, width=0.36, bottom=share, color=theme.grid)
            ends = [share] if band is None else [_erring(share, error) for error in band[:2]]
            axes.plot([place + side] * len(ends), ends, color=theme.text, linewidth=1.4)
            axes.text(
                place + side,
                max(ends) + 1,
                f"{share:.0f} %" + ("" if band else " ?"),
                ha="center",
                va="bottom",
                color=theme.text,
                fontsize=8,
            )
    axes.set_xticks(range(len(rows)), [f"{row['chip']}, {_cores(row['cores'])}" for row in rows])
    axes.set_ylim(0, 108)
    style(axes, theme, title=title, y="% of the layer (simulated); grey: the rest")


def _erring(share: float, error: float) -> float:
    """The share in % if the simulated attention is off by `error` and the rest is not."""
    attention = share / (1 + error)
    return 100 * attention / (attention + 100 - share)


def _nothing(axes: Any, theme: Theme, title: str, why: str) -> None:
    axes.text(0.5, 0.5, why, ha="center", va="center", color=theme.text, fontsize=9, transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])
    style(axes, theme, title=title)


def _footer(axes: Any, theme: Theme, result: BenchResult) -> None:
    axes.axis("off")
    names = ("machine", "nki_hf", "nki kernels", "input", "calls")
    lines = [f"{name}: {result.header[name]}" for name in names if name in result.header]
    lines += [f"published, not run here: {row.what} {row.prompts_per_s:g} prompts/s on {row.where}" for row in result.published]
    text = "\n".join(line for long in lines for line in textwrap.wrap(long, 190))
    axes.text(0, 1, text, va="top", ha="left", color=theme.text, fontsize=8, transform=axes.transAxes)


def _cores(count: int) -> str:
    return f"{count} core{'s' * (count > 1)}"
