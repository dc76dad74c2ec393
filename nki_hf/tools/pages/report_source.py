"""Source of a kernel on the page of a report: lines with what they take of the critical path and of engines."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from nki_hf.observers.short_path import short_path
from nki_hf.observers.source_lines import SourceFile, source_files
from nki_hf.timing.schedule import Schedule

__all__ = ["source_section"]

_OPEN = 1
"""Source files that are unfolded at first."""


def source_section(scheduled: Schedule, of: str) -> str:
    """The source of a schedule's kernel; `of` is added to the title. Empty where no file is there."""
    files = source_files(scheduled)
    if not files:
        return ""
    most = max((line.path_us for item in files for line in item.lines), default=0.0)
    parts = "".join(_file(item, most, number < _OPEN) for number, item in enumerate(files))
    return (
        f'<section class="source"><h2>Source{of}</h2><p class="quiet small">µs of the critical path by line, and µs that its '
        f"instructions keep engines and queues. A click shows a line's instructions in the timeline.</p>{parts}</section>"
    )


def _file(item: SourceFile, most: float, unfolded: bool) -> str:
    rows = [
        '<div class="head"><span class="n">line</span><span class="us">path µs</span><span class="us busy">busy µs</span>'
        '<span class="t"></span></div>'
    ]
    rows += list(_lines(item, most))
    name = short_path(item.file)
    figures = (us for line in item.lines for us in (line.path_us, sum(line.busy_us.values())))
    wide = max((len(f"{us:,.1f}") for us in figures), default=0)
    return (
        f'<details{" open" if unfolded else ""}><summary><b>{escape(name)}</b> <span class="quiet">'
        f"{item.path_us:,.1f} µs of the critical path</span></summary>"
        f'<div class="code" style="--us:{0.62 * wide:.2f}em">{"".join(rows)}</div></details>'
    )


def _lines(item: SourceFile, most: float) -> Iterator[str]:
    before, name = None, escape(short_path(item.file))
    for line in item.lines:
        if before is not None and line.number != before + 1:
            yield '<div class="cut">⋯</div>'
        before = line.number
        busy = sum(line.busy_us.values())
        heat = line.path_us / most if most else 0.0
        shade = f' style="background:rgba(var(--heat),{0.06 + 0.6 * heat:.3f})"' if line.path_us > 0 else ""
        engines = ", ".join(f"{engine} {us:,.1f} µs" for engine, us in line.busy_us.items())
        told = f' data-line="{name}:{line.number}" title="{line.instructions:,} instructions: {escape(engines)}"'
        yield (
            f'<div{told if line.instructions else ""}><span class="n">{line.number}</span>'
            f'<span class="us"{shade}>{f"{line.path_us:,.1f}" if line.path_us else ""}</span>'
            f'<span class="us busy quiet">{f"{busy:,.1f}" if line.instructions else ""}</span>'
            f'<span class="t">{escape(line.text)}</span></div>'
        )
