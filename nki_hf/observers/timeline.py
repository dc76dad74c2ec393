"""A schedule as a picture: one bar per instruction and engine over time, for the README and the docs."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np

from nki_hf.errors import BackendUnavailable
from nki_hf.timing.schedule import Schedule

__all__ = ["draw_timeline"]

_COLOURS = {
    "nc_matmul": "#1f77b4",
    "nc_transpose": "#9ecae1",
    "activation": "#d62728",
    "activation_reduce": "#d62728",
    "tensor_reduce": "#2ca02c",
    "tensor_scalar_reduce": "#2ca02c",
    "range_select": "#2ca02c",
    "tensor_copy": "#98df8a",
    "dma_copy": "#7f7f7f",
    "dma_transpose": "#c7c7c7",
}
_OTHERS = ("#bcbd22", "#ff7f0e", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#dbdb8d", "#ffbb78", "#c5b0d5")


def draw_timeline(
    scheduled: Schedule,
    target: Path | IO[bytes],
    *,
    begin_ns: float = 0.0,
    end_ns: float | None = None,
    file_format: str | None = None,
    title: str = "",
) -> None:
    """Draw the engines and DMA queues of `scheduled` between two times.

    Args:
      scheduled: the schedule.
      target: a path (`.png`, `.svg`) or an open file (then give `file_format`).
      begin_ns, end_ns: the part to show; default is all of it.
      title: first line of the heading; the second says that the times are simulated.

    Raises:
      BackendUnavailable: matplotlib is not installed.
    """
    figure, axes = _figure((11, 0.5 * len(scheduled.work.queues) + 1.6))
    end = scheduled.total_ns if end_ns is None else end_ns
    rank = {"tensor": 0, "vector": 1, "scalar": 2, "gpsimd": 3, "sync": 4, "dma": 5}
    rows = sorted(
        range(len(scheduled.work.queues)), key=lambda n: (scheduled.work.queues[n].core, rank[scheduled.work.queues[n].engine])
    )
    labels: list[str] = []
    seen: dict[str, Any] = {}
    colours = dict(_COLOURS)
    for position, number in enumerate(rows):
        queue = scheduled.work.queues[number]
        labels.append(f"{queue.core}: {queue.engine}" if queue.engine != "dma" else f"{queue.core}: dma {queue.name}")
        bars: dict[str, list[tuple[float, float]]] = {}
        for i in np.flatnonzero(scheduled.work.queue_of == number).tolist():
            begin = float(scheduled.moves_ns[i])
            length = scheduled.work.costs[i].payload_ns if queue.engine == "dma" else float(scheduled.free_ns[i]) - begin
            if begin < end and begin + length > begin_ns:
                bars.setdefault(scheduled.events[i].opcode, []).append((begin / 1e3, length / 1e3))
        for opcode, spans in bars.items():
            if opcode not in colours:
                colours[opcode] = _OTHERS[(len(colours) - len(_COLOURS)) % len(_OTHERS)]
            drawn = axes.broken_barh(spans, (position - 0.4, 0.8), facecolors=colours[opcode], linewidth=0)
            seen.setdefault(opcode, drawn)
    axes.set_yticks(range(len(rows)), labels)
    axes.invert_yaxis()
    axes.set_xlim(begin_ns / 1e3, end / 1e3)
    axes.set_xlabel("µs (simulated)")
    said = f"simulated, {scheduled.chip.name}, {scheduled.order} order, {scheduled.total_ns / 1e3:,.1f} µs"
    axes.set_title(f"{title}\n{said}".strip(), fontsize=10)
    axes.legend(seen.values(), seen.keys(), loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=6, fontsize=7, frameon=False)
    figure.savefig(
        target,
        format=file_format,
        bbox_inches="tight",
        dpi=150,
        metadata={"Title": f"{title}: {said}", **({"Date": None} if _is_svg(target, file_format) else {})},
    )


def _is_svg(target: Path | IO[bytes], file_format: str | None) -> bool:
    return file_format == "svg" or (isinstance(target, Path) and target.suffix == ".svg")


def _figure(size: tuple[float, float]) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BackendUnavailable('pictures need the matplotlib package: pip install "nki_hf[plot]"') from error
    figure = Figure(figsize=size)
    return figure, figure.subplots()
