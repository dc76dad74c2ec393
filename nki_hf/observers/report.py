"""A schedule as one self-contained HTML page: figures, tables, timeline and roofline; opens offline."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from nki_hf.errors import BackendUnavailable
from nki_hf.observers.timeline import draw_roofline, draw_timeline
from nki_hf.observers.timing import WAITS, Roofline, critical_path, engine_times, gains, roofline, traffic
from nki_hf.observers.working_set import working_sets
from nki_hf.sim.stream.events import Event
from nki_hf.timing.schedule import Schedule

__all__ = ["LONGER", "facts", "html"]

LONGER = (
    "A negative gain is no mistake of the sum: given less work, the modelled compiler takes instructions in another order, "
    "which may end later. Program order never does."
)

_LARGEST_PICTURE = 20_000
"""Up to this many instructions the timeline shows the whole kernel; of longer ones, the first tenth."""

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{{ title }} (simulated)</title><style>
body{font:14px/1.45 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:.6em 0}th,td{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:right}
th:first-child,td:first-child{text-align:left}svg{max-width:100%;height:auto}.note{color:#666}</style></head><body>
<h1>{{ title }}</h1>
<p><b>{{ "{:,.1f}".format(facts.total_us) }} µs, simulated</b> on {{ facts.chip }}, {{ facts.order }} order.
{{ "{:,}".format(facts.instructions) }} instructions. {{ facts.achieved }}.{% if facts.spills %} {{ facts.spills }}{% endif %}
{% if facts.throttled %} The Tensor engine is dense enough to be clocked down.{% endif %}</p>
<p class="note">A cycle-approximate model, not a measurement; how sure it is: docs/timing.md.</p>
<h2>Engines, % of the time</h2>
<table><tr><th>core: engine</th><th>instructions</th><th>active</th>
{% for wait in waits %}<th>waits for {{ wait }}</th>{% endfor %}<th>idle</th><th>µs gained if free</th></tr>
{% for row in facts.engines %}<tr><td>{{ row.core }}: {{ row.engine }}</td><td>{{ "{:,}".format(row.instructions) }}</td>
<td>{{ "{:.1%}".format(row.active) }}</td>{% for wait in waits %}<td>{{ "{:.1%}".format(row.waiting[wait]) }}</td>{% endfor %}
<td>{{ "{:.1%}".format(row.idle) }}</td><td>{{ "{:,.1f}".format(row.gain_us) }}</td></tr>{% endfor %}</table>
{% if longer %}<p class="note">{{ longer }}</p>{% endif %}
<h2>DMA</h2>
<table><tr><th>core</th><th>transfers</th><th>MiB</th><th>GB/s</th><th>of GB/s</th><th>engines busy</th>
<th>µs gained if free</th></tr>
{% for row in facts.dma %}<tr><td>{{ row.core }}</td><td>{{ "{:,}".format(row.transfers) }}</td>
<td>{{ "{:,.2f}".format(row.mib) }}</td><td>{{ "{:,.1f}".format(row.gb_per_s) }}</td>
<td>{{ "{:,.0f}".format(row.peak_gb_per_s) }}</td>
<td>{{ "{:.1%}".format(row.active) }}</td><td>{{ "{:,.1f}".format(row.gain_us) }}</td></tr>{% endfor %}</table>
{% if facts.working_set %}<h2>Working set where each memory is fullest, before spills</h2>
<table><tr><th>core: memory</th><th>tile</th><th>source</th><th>B per partition</th><th>live at once</th><th>total B</th>
<th>of capacity</th></tr>{% for row in facts.working_set %}{% for tile in row.tiles %}
<tr><td>{{ row.core }}: {{ row.space }}</td><td>{{ tile.name }}</td><td>{{ tile.source }}</td>
<td>{{ "{:,}".format(tile.bytes) }}</td><td>{{ "{:,}".format(tile.live) }}</td><td>{{ "{:,}".format(tile.total_bytes) }}</td>
<td>{{ "{:.1%}".format(tile.total_bytes / row.capacity_bytes) }}</td></tr>{% endfor %}
<tr><td>{{ row.core }}: {{ row.space }}</td><td>all</td><td></td><td></td><td></td>
<td>{{ "{:,}".format(row.high_water_bytes) }} of {{ "{:,}".format(row.capacity_bytes) }}</td>
<td>{{ "{:.1%}".format(row.high_water_bytes / row.capacity_bytes) }}</td></tr>{% endfor %}</table>{% endif %}
<h2>On-chip memory as scheduled, most bytes per partition at once</h2>
<table><tr><th>core: memory</th><th>KiB</th></tr>{% for row in facts.memory %}<tr><td>{{ row.core }}: {{ row.space }}</td>
<td>{{ "{:,.1f}".format(row.kib) }}</td></tr>{% endfor %}</table>
<h2>Critical path by kernel line</h2>
<table><tr><th>instruction</th><th>source</th><th>times</th><th>µs</th><th>share</th></tr>
{% for row in facts.path[:25] %}<tr><td>{{ row.engine }} {{ row.opcode }}</td><td>{{ row.source }}</td>
<td>{{ "{:,}".format(row.count) }}</td><td>{{ "{:,.1f}".format(row.us) }}</td><td>{{ "{:.1%}".format(row.share) }}</td></tr>
{% endfor %}</table>
<h2>Timeline</h2>{{ timeline | safe }}<h2>Roofline</h2>{{ roof | safe }}</body></html>"""


def facts(plan: Schedule, events: Sequence[Event] | None = None, useful_flops: int | None = None) -> dict[str, Any]:
    """Everything that the page says, as plain JSON types; times are simulated.

    Args:
      plan: the schedule.
      events: the kernel's own stream, whose working set is listed; None = that of the plan, spills included.
      useful_flops: operations that were asked for, e.g. on visible keys; None = not known.
    """
    total, saved = plan.total_ns, gains(plan)
    point, spills = roofline(plan), plan.spills
    useful = None if useful_flops is None else useful_flops / total / 1e3
    return {
        "simulated": True, "chip": plan.chip.name, "order": plan.order, "total_us": total / 1e3,
        "instructions": len(plan.events), "throttled": plan.throttled,
        "achieved": _achieved(point, useful),
        "executed_tflops": point.achieved_tflops, "visible_tflops": useful,
        "peak_tflops": point.peak_tflops, "attainable_tflops": point.attainable_tflops,
        "spills": f"{spills.psum_copies:,} PSUM tiles go to SBUF, {spills.recomputed:,} matmuls run again for want of PSUM, "
                  f"{spills.stores:,} stores and {spills.loads:,} loads of "
                  f"spilled tiles go through HBM." if spills else "",
        "engines": [
            {"core": row.core, "engine": row.engine, "instructions": row.instructions, "active": row.active_ns / total,
             "waiting": {name: ns / total for name, ns in row.waiting_ns.items()}, "idle": row.idle_ns / total,
             "gain_us": _gain_us(saved[row.engine])}
            for row in engine_times(plan)
        ],
        "dma": [
            {"core": row.core, "transfers": row.transfers, "mib": row.nbytes / 2**20, "gb_per_s": row.bytes_per_ns,
             "peak_gb_per_s": row.peak_bytes_per_ns, "active": row.active_ns / total, "gain_us": _gain_us(saved["dma"])}
            for row in traffic(plan)
        ],
        "memory": [
            {"core": core, "space": space, "kib": nbytes / 1024} for (core, space), nbytes in plan.high_water_bytes.items()
        ],
        "working_set": [
            {"core": item.core, "space": item.space, "high_water_bytes": item.high_water, "capacity_bytes": item.capacity,
             "tiles": [{"name": tile.name, "source": f"{tile.file}:{tile.line}", "bytes": tile.nbytes, "live": tile.live,
                        "total_bytes": tile.total} for tile in item.tiles]}
            for item in working_sets(plan.events if events is None else events, plan.chip)
        ],
        "path": [
            {"engine": step.engine, "opcode": step.opcode, "source": f"{step.file}:{step.line}" if step.file else "",
             "count": step.count, "us": step.ns / 1e3, "share": step.ns / total}
            for step in critical_path(plan)
        ],
    }  # fmt: skip


def _achieved(point: Roofline, useful: float | None) -> str:
    if not point.flops:
        return "no matmuls"
    visible = "" if useful is None else f"on visible keys {useful:.1f} ({useful / point.peak_tflops:.1%} of peak), "
    return (
        f"{visible}executed, masked parts of score blocks included, {point.achieved_tflops:.1f} of {point.peak_tflops:.1f} "
        f"TFLOP/s ({point.achieved_tflops / point.peak_tflops:.1%} of peak), {point.bound} bound at "
        f"{point.intensity:,.0f} flops per HBM byte"
    )


def _gain_us(saved_ns: float) -> float:
    """Rounded to 0.1 ns, so that the rounding of sums is no gain."""
    return round(saved_ns, 1) / 1e3 + 0.0  # + 0.0: never -0.0


def html(plan: Schedule, title: str, found: dict[str, Any] | None = None) -> str:
    """The page; `found` are its `facts` if they are known already.

    Raises:
      BackendUnavailable: jinja2 or matplotlib is not installed.
    """
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise BackendUnavailable('a report needs the jinja2 package: pip install "nki_hf[plot]"') from error
    timeline, roof = io.BytesIO(), io.BytesIO()
    end = plan.total_ns if len(plan.events) <= _LARGEST_PICTURE else plan.total_ns / 10
    draw_timeline(plan, timeline, end_ns=end, file_format="svg", title=title)
    draw_roofline(plan, roof)
    page = Environment(autoescape=True).from_string(_PAGE)
    found = facts(plan) if found is None else found
    longer = LONGER if any(row["gain_us"] < 0 for row in (*found["engines"], *found["dma"])) else ""
    return page.render(
        title=title, facts=found, waits=WAITS, longer=longer, timeline=_inline(timeline, "timeline"), roof=_inline(roof, "roof")
    )


def _inline(picture: io.BytesIO, prefix: str) -> str:
    """The `<svg>` element; its ids get a prefix, because a page may hold each id once."""
    text = picture.getvalue().decode()
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\1{prefix}-", text[text.index("<svg") :])
