"""What all charts share: two themes, colours that colour-blind readers tell apart, and files in both themes."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nki_hf.errors import BackendUnavailable

__all__ = ["DARK", "LIGHT", "SERIES", "Theme", "drawn", "figure", "picture_element", "style"]

SERIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8C8C8C")
"""The palette of Okabe and Ito, blue first; readable on both backgrounds."""


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colours of everything that is no series.

    Attributes:
      name: light or dark.
      back: background.
      text: words and axes.
      grid: lines of the grid.
    """

    name: str
    back: str
    text: str
    grid: str


LIGHT = Theme(name="light", back="#ffffff", text="#1f2328", grid="#d0d7de")
DARK = Theme(name="dark", back="#0d1117", text="#e6edf3", grid="#3d444d")

Draw = Callable[[Any, Theme], None]
"""Draws a whole chart onto an empty figure."""


def figure(theme: Theme, size: tuple[float, float]) -> Any:
    """An empty matplotlib figure of `size` inches.

    Raises:
      BackendUnavailable: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BackendUnavailable('pictures need the matplotlib package: pip install "nki_hf[plot]"') from error
    return Figure(figsize=size, facecolor=theme.back, layout="constrained")


def style(axes: Any, theme: Theme, *, title: str = "", x: str = "", y: str = "", grid: str = "y") -> None:
    """Colours, labels and a quiet grid behind the data; `grid` is x, y or both."""
    axes.set_facecolor(theme.back)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.grid)
    axes.tick_params(colors=theme.text, which="both", labelsize=9)
    axes.set_title(title, color=theme.text, fontsize=10, loc="left")
    axes.set_xlabel(x, color=theme.text, fontsize=9)
    axes.set_ylabel(y, color=theme.text, fontsize=9)
    axes.grid(True, axis=grid, color=theme.grid, linewidth=0.6)
    axes.set_axisbelow(True)
    legend = axes.get_legend()
    if legend is not None:
        legend.get_frame().set_facecolor(theme.back)
        legend.get_frame().set_edgecolor(theme.grid)
        for text in legend.get_texts():
            text.set_color(theme.text)


def drawn(draw: Draw, theme: Theme, size: tuple[float, float], file_format: str, *, description: str = "") -> bytes:
    """The chart as a file: `png` (150 dots per inch) or `svg`, the same bytes each time; `description` is put into a `png`."""
    import matplotlib as mpl

    chart = figure(theme, size)
    draw(chart, theme)
    held = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "nki_hf"}):
        metadata = (
            {"Date": None}
            if file_format == "svg"
            else {"Software": None, **({"Description": description} if description else {})}
        )
        chart.savefig(held, format=file_format, dpi=150, facecolor=theme.back, metadata=metadata)
    return held.getvalue()


def picture_element(draw: Draw, size: tuple[float, float], alt: str) -> str:
    """The chart in both themes for a page, as SVG; the page's theme shows one of them (pages/charts.css)."""
    return "".join(
        f'<img class="chart {theme.name}" alt="{alt}" src="data:image/svg+xml;base64,'
        f'{base64.b64encode(drawn(draw, theme, size, "svg")).decode()}">'
        for theme in (LIGHT, DARK)
    )
