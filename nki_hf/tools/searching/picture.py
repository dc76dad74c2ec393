"""The picture of a journey: simulated latency against round, the best so far, and the published ladder as lines."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from nki_hf.chips import get_chip
from nki_hf.chips.measurements import simulated_rows
from nki_hf.errors import require
from nki_hf.timing.schedule import schedule
from nki_hf.tools.subjects import events_of

__all__ = ["FORMATS", "ladder_lines", "picture"]

FORMATS = ("png", "svg")
_LADDER = ("v3", "v4", "v5", "v6", "v7", "v8", "v11")
_LADDER_TASKS = ("attention", "attention_unscaled")


def ladder_lines(task: str, size: int, chip: str) -> dict[str, float]:
    """Simulated us of the ladder's rungs at a size; empty for a task that they do not compute."""
    if task not in _LADDER_TASKS or size % 512:
        return {}
    known = simulated_rows()
    found = {}
    for rung in _LADDER:
        row = known.get(f"{rung} {size} {chip}")
        if row is not None:
            found[rung] = float(row["us"])
        elif size <= 4096:
            made = get_chip(chip)
            found[rung] = schedule(events_of(rung, size, made), made).total_ns / 1e3
    return found


def picture(panels: Sequence[Mapping[str, Any]], title: str, kind: str, *, label: str = "round") -> bytes:
    """The picture as bytes.

    Args:
      panels: one per chip and size: `title`, `points` (x and us, None where it failed), `lines` (us by name), and optionally
        `measured` (x and us, measured on a device).
      title: of the whole.
      kind: one of `FORMATS`.
      label: what the points are numbered by.

    Raises:
      BackendUnavailable: matplotlib is not installed.
    """
    require("nki_hf rank --picture", "plot", "matplotlib")
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "nki_hf", "svg.fonttype": "path", "font.size": 9}):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4 * len(panels), 4.2), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, panel in zip(axes, panels, strict=True):
            _panel(axis, panel, label)
        figure.suptitle(title)
        data = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(data, format=kind, dpi=110, metadata=metadata)
    return data.getvalue()


def _panel(axis: Any, panel: Mapping[str, Any], label: str) -> None:
    points = [(x, us) for x, us in panel["points"] if us is not None]
    failed = [x for x, us in panel["points"] if us is None]
    xs, times = [x for x, _ in points], [us for _, us in points]
    best, so_far = float("inf"), []
    for us in times:
        best = min(best, us)
        so_far.append(best)
    axis.plot(xs, times, "o", color="tab:blue", label="simulated")
    axis.step(xs, so_far, where="post", color="tab:blue", linewidth=1, label="best so far (simulated)")
    if panel.get("measured"):
        axis.plot(*zip(*panel["measured"], strict=True), "s", color="tab:red", markerfacecolor="none", label="measured")
    for name, us in panel["lines"].items():
        axis.axhline(us, color="0.6", linewidth=0.8, linestyle="--")
        axis.annotate(
            name,
            (1.0, us),
            xycoords=("axes fraction", "data"),
            xytext=(3, 0),
            textcoords="offset points",
            fontsize=7,
            va="center",
            color="0.3",
        )
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_yscale("log")
    for which in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        which(FuncFormatter(lambda us, _: f"{us:,.0f}"))
    if failed:
        low = axis.get_ylim()[0]
        axis.plot(failed, [low] * len(failed), "x", color="0.5", label="failed", clip_on=False)
    axis.set_title(panel["title"])
    axis.set_xlabel(label)
    axis.set_ylabel("us")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.get("names"):
        axis.set_xticks(range(len(panel["names"])), panel["names"], rotation=30, ha="right", fontsize=7)
    axis.legend(fontsize=7)
