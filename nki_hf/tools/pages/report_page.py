"""The page of `nki_hf report`: one kernel's simulated time, or two side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from nki_hf.observers.instruction_kinds import WORDS, word_of
from nki_hf.observers.short_path import short_path
from nki_hf.observers.timing import WAITS
from nki_hf.timing.schedule import Schedule
from nki_hf.tools.judging.reasons import sentence
from nki_hf.tools.pages.report_source import source_section
from nki_hf.tools.pages.report_tables import source_name, table, tables_sections
from nki_hf.tools.pages.shell import D3_ZOOM, page
from nki_hf.tools.pages.timeline_data import timeline_data

__all__ = ["Side", "report_page"]

_WAIT_WORDS = {
    "semaphore": "another engine's result",
    "dma": "a DMA",
    "port": "a shared port",
    "memory": "on-chip memory",
    "table": "an activation table",
}


@dataclass(frozen=True, kw_only=True)
class Side:
    """One kernel on the page.

    Attributes:
      title: what it is, e.g. `v7 at 4,096 keys`.
      scheduled: its schedule.
      facts: of observers/report.py.
      reasons: of tools/judging/reasons.py; `size`, `score` and `least_us` where they are known.
      file: of a kernel file; empty = a kernel of ours, whose lines are named with their files.
    """

    title: str
    scheduled: Schedule
    facts: Mapping[str, Any]
    reasons: Mapping[str, Any]
    file: str = ""


def report_page(side: Side, against: Side | None = None, *, notes: Sequence[str] = ()) -> str:
    """The page as HTML text.

    Args:
      side: the kernel.
      against: another one to stand beside it.
      notes: sentences for the foot, e.g. the error band and the command that made the page.
    """
    sides = (side,) if against is None else (side, against)
    title = side.title if against is None else f"{side.title} against {against.title}"
    named = against is not None
    parts = [_verdict(side, against), _changes(side), _timeline(sides)]
    columns = [_path(item, named) for item in sides]
    if named:
        parts.append(_floors(sides))
    else:
        columns.insert(0, _floors(sides))
    parts += ['<div class="columns">', *columns, "</div>"]
    parts += [source_section(item.scheduled, _of(item, named)) for item in sides]
    parts += [tables_sections(item.facts, _of(item, named)) for item in sides] + [_foot(notes)]
    return page(
        f"{title} (simulated)",
        "".join(parts),
        heading=f'{escape(title)} <span class="quiet">on {escape(side.scheduled.chip.name)}, simulated</span>',
        styles=("report.css",),
        scripts=(D3_ZOOM, "timeline.js"),
        data={"timelines": [timeline_data(item.scheduled, item.title) for item in sides]},
    )


def _of(side: Side, named: bool) -> str:
    """Whose a section is, for its title."""
    return f" of {escape(side.title)}" if named else ""


def _verdict(side: Side, against: Side | None) -> str:
    found, row = side.facts, side.reasons
    figures = [(f"{row['us']:,.1f} µs", "simulated latency")]
    if against is not None:
        ratio = against.reasons["us"] / row["us"]
        figures.append((f"{ratio:,.2f} x as fast", f"as {against.title}: {against.reasons['us']:,.1f} µs"))
    if row.get("least_us"):
        figures.append((f"{row['least_us']:,.1f} µs", "no kernel can be below on this chip"))
    figures.append((f"{found['instructions']:,}", f"instructions, {found['order']} order"))
    if found["peak_tflops"] and found["executed_tflops"]:  # not of a kernel without matmuls
        useful = found["visible_tflops"] if found["visible_tflops"] is not None else found["executed_tflops"]
        what = "TFLOP/s on what the task asks for" if found["visible_tflops"] is not None else "TFLOP/s executed"
        figures.append((f"{useful / found['peak_tflops']:.1%} of peak", f"{useful:,.1f} of {found['peak_tflops']:,.1f} {what}"))
    said = "".join(f"<div><b>{escape(value)}</b>{escape(what)}</div>" for value, what in figures)
    more = []
    if found["spills"]:
        more.append(found["spills"])
    if found["throttled"]:
        more.append("The Tensor engine is dense enough to be clocked down.")
    if against is not None:
        more.append(f"{against.title}: {_said(against)}")
    text = "".join(f'<p class="quiet">{escape(line)}</p>' for line in more)
    verdict = escape(_said(side))
    return (
        f'<section><p class="verdict" id="verdict">{verdict}</p><div class="figures quiet small">{said}</div>{text}</section>'
    )


def _changes(side: Side) -> str:
    hints = side.reasons["hints"]
    if not hints:
        return ""
    rows = "".join(
        f'<li><span class="gain">{_gain(hint["gain_us"])}</span><span><b>{escape(_place(hint["file"], hint["line"]))}</b> '
        f"{escape(_micro(hint['text']))}</span></li>"
        for hint in hints
    )
    return f'<section><h2>What to change</h2><ul class="hints">{rows}</ul></section>'


def _gain(us: float) -> str:
    return f"up to {us:,.1f} µs" if us else "memory"


def _timeline(sides: Sequence[Side]) -> str:
    words = {WORDS.index(word) for item in sides for word in _words(item)}
    legend = "".join(f'<span><i class="key" style="background:var(--k{n})"></i>{WORDS[n]}</span>' for n in sorted(words))
    waits = "".join(
        f'<span><i class="key" style="background:var(--w-{name})"></i>{escape(_WAIT_WORDS[name])}</span>'
        for name in WAITS
        if any(row["waiting"][name] for item in sides for row in item.facts["engines"])
    )
    buttons = "".join(
        f'<button type="button" data-do="{name}" title="{title}" aria-label="{title}">{text}</button>'
        for name, text, title in (
            ("all", "All", "show all of it (0)"),
            ("one", "One iteration", "show the middle iteration"),
            ("closer", "+", "closer (+)"),
            ("wider", "&minus;", "wider (-)"),
            ("left", "&larr;", "earlier"),
            ("right", "&rarr;", "later"),
        )
    )
    pictures = "".join(
        f"{f'<h3>{escape(item.title)}</h3>' if len(sides) > 1 else ''}"
        f'<div class="timeline"><canvas role="img" aria-label="timeline of {escape(item.title)}; the tables below hold its '
        'figures"></canvas><div class="pad" tabindex="0" aria-label="zoom and pan: + and -, arrow keys, 0 for all"></div>'
        '<div class="tip" hidden></div><p class="failed" hidden>This browser is too old to draw the timeline; the tables hold '
        "the same figures.</p></div>"
        for item in sides
    )
    return (
        f'<section><h2>Timeline</h2><div class="tools">{buttons}'
        '<label><input type="checkbox" class="switch" id="show-path" checked>critical path</label>'
        '<label><input type="checkbox" class="switch" id="show-waits" checked>waits</label><span id="range"></span></div>'
        f'{pictures}<div class="legend">{legend}</div>'
        f'<div class="legend">{"<span>under a lane, it waits for:</span>" + waits if waits else ""}'
        '<span>over a lane: critical path</span></div><p class="quiet small">Drag to move; pinch, double-click or Ctrl + wheel '
        "to zoom. A column of pixels has the colours of all that runs in it, and is the fainter the less of it is used.</p>"
        "</section>"
    )


def _words(side: Side) -> set[str]:
    return {word_of(event) for event in side.scheduled.events}


def _floors(sides: Sequence[Side]) -> str:
    names = list(dict.fromkeys(name for item in sides for name in item.reasons["floors_us"]))
    most = max(item.reasons["us"] for item in sides)
    rows = [("latency", [item.reasons["us"] for item in sides])]
    rows += [(name, [item.reasons["floors_us"].get(name, 0.0) for item in sides]) for name in names]
    rows.append(("launch", [float(item.scheduled.chip.kernel_fixed_ns) / 1e3 for item in sides]))
    least = [item.reasons.get("least_us") or 0.0 for item in sides]
    if any(least):
        rows.append(("chip at best", least))
    limit = (sides[0].reasons["bottleneck"] or {}).get("engine")
    bars = "".join(
        f'<span>{escape(name)}</span><span class="bar{" hot" if name == limit else ""}">'
        + "".join(f'<i style="width:{min(100.0, 100 * us / most):.2f}%"></i>' for us in values)
        + f'</span><span class="value">{" / ".join(f"{us:,.1f}" for us in values)} µs</span>'
        for name, values in rows
    )
    both = f" Above {escape(sides[0].title)}, below {escape(sides[1].title)}." if len(sides) > 1 else ""
    return (
        '<section><h2>Floors</h2><p class="quiet small">What each engine is active: the latency cannot be below the longest '
        f'of them.{both}</p><div class="bars{" two" if len(sides) > 1 else ""}">{bars}</div></section>'
    )


def _path(side: Side, named: bool) -> str:
    rows = [
        [
            f"{row['engine']} {row['opcode']}".strip(),
            source_name(row["source"]),
            f"{row['count']:,}",
            f"{row['us']:,.1f}",
            f"{row['share']:.1%}",
        ]
        for row in side.facts["path"][:8]
    ]
    return (
        f'<section><h2>Critical path{_of(side, named)} by kernel line</h2><div class="wide">'
        f"{table(['instruction', 'line', 'times', 'µs', 'share'], rows)}</div></section>"
    )


def _foot(notes: Sequence[str]) -> str:
    said = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return (
        f'<footer class="quiet small">{said}<p>A cycle-approximate model, not a measurement: docs/timing.md says how sure it '
        "is. The page holds lines of the kernel's source.</p></footer>"
    )


def _place(file: str, line: int) -> str:
    return f"{short_path(file).rsplit('/', 1)[-1]}:{line}"


def _said(side: Side) -> str:
    return _micro(sentence(side.reasons, side.file))


def _micro(text: str) -> str:
    return re.sub(r"(?<=\d) us\b", " µs", text)
