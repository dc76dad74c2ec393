"""Reasons: what bounds a schedule, which line costs most, what to change; and the one sentence that says so."""

from __future__ import annotations

import linecache
from collections.abc import Mapping, Sequence
from typing import Any

from nki_hf.observers.gains import gains
from nki_hf.observers.timing import critical_path, floors_ns
from nki_hf.sim.stream.events import Event
from nki_hf.timing.schedule import Schedule
from nki_hf.tools.judging.hints import bounding, hints, proposals
from nki_hf.tools.judging.line_words import line_words

__all__ = ["reasons", "sentence"]


def reasons(scheduled: Schedule, events: Sequence[Event], *, saved_ns: Mapping[str, float] | None = None) -> dict[str, Any]:
    """What bounds a schedule and what to change; times in simulated us, and what `sentence` needs.

    Args:
      scheduled: the schedule.
      events: the kernel's own stream, before any spill.
      saved_ns: what `gains` says of every engine, if it is known.
    """
    total = scheduled.total_ns / 1e3
    floors = {name: ns / 1e3 for name, ns in floors_ns(scheduled).items()}
    path = critical_path(scheduled)
    busiest = max(floors, key=lambda name: floors[name])
    proposed = proposals(scheduled, events)
    if not saved_ns:
        engines = {busiest, *[engine for engine in bounding(scheduled, proposed) if engine is not None]}
        saved_ns = gains(scheduled, *engines) if len(scheduled.events) else {}
    bottleneck = None
    if len(scheduled.events):
        top = next((step for step in path if step.engine == busiest), path[0])
        saved = saved_ns.get(busiest, 0.0) / 1e3
        bottleneck = {
            "engine": busiest,
            "opcode": top.opcode,
            "file": top.file,
            "line": top.line,
            "code": linecache.getline(top.file, top.line).strip()[:160],
            "active": floors[busiest] / total,
            "share": top.ns / scheduled.total_ns,
            "gain_us": max(saved, 0.0),
        }
    return {
        "chip": scheduled.chip.name,
        "us": total,
        "order": scheduled.order,
        "floors_us": {name: round(us, 3) for name, us in floors.items()},
        "bottleneck": bottleneck,
        "path": [
            {
                "engine": s.engine,
                "opcode": s.opcode,
                "file": s.file,
                "line": s.line,
                "us": s.ns / 1e3,
                "share": s.ns / scheduled.total_ns,
            }
            for s in path[:6]
        ],
        "hints": [
            {"rule": h.rule, "file": h.file, "line": h.line, "text": h.text, "gain_us": h.gain_us}
            for h in hints(scheduled, proposed, saved_ns=saved_ns)
        ],
    }


_LIMIT = 0.5
"""Share of the latency from which the engine that is active longest is called its limit."""
_ACTIONS = {
    "idle engine": "moving every second copy to an idle engine",
    "exp and sum apart": "making the row sum in the instruction that makes exp",
    "float32 matmul": "casting the operands to bfloat16",
    "loads inside the loop": "keeping what was loaded in SBUF",
    "short DMA rows": "moving rows of 512 B or more",
    "narrow tiles": "giving each matmul 512 columns",
    "one semaphore": "working on another tile meanwhile",
}
"""What each rule of hints.py asks for, in the words of a sentence."""


def sentence(row: Mapping[str, Any], file: str) -> str:
    """The verdict on a time in one sentence, for every tool and page: what limits it, which line costs most, what to change.

    Args:
      row: what `reasons` found; `size`, `band` and `score` are said where they are known.
      file: the kernel's; empty = every line is named with its own.
    """
    size = f" at size {row['size']:,}" if row.get("size") else ""
    text = f"~ {row['us']:,.1f} us simulated on {row['chip']}{size}"
    if row.get("band"):
        text += f" (error band {row['band']})"
    at = row["bottleneck"]
    if not at:
        return f"{text}: the kernel runs no instruction, all of it is the launch."
    share = f"{at['active']:.0%}"
    word = f"is the limit, {share} active" if at["active"] >= _LIMIT else f"is active longest, {share}"
    text += f": {at['engine']} {word}"
    if at["line"]:
        there = line_words(file, at["file"], at["line"])
        text += f"; {at['opcode']} at {there} costs {at['share'] * row['us']:,.1f} of {row['us']:,.1f} us"
    if at["gain_us"] > 0.005 * row["us"]:
        text += f"; {at['gain_us']:,.1f} us shorter if {at['engine']} took no time"
    action = next((hint for hint in row["hints"] if hint["rule"] in _ACTIONS), None)
    if action:
        there = line_words(file, action["file"], action["line"])
        text += f"; {_ACTIONS[action['rule']]} ({there}) would save up to {action['gain_us']:,.1f} us"
    launch = next((step["us"] for step in row["path"] if step["engine"] == "launch"), 0.0)
    if launch > 0.25 * row["us"]:
        text += f"; {launch:,.1f} us are the launch itself"
    return text + (f"; {row['score']:.0%} of what the chip allows at best." if row.get("score") is not None else ".")
