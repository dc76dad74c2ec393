"""Measured rows beside the model's answers: run, kept and summed up."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from nki_hf.chips import Chip, get_chip
from nki_hf.chips.laws import LAWS, without
from nki_hf.chips.measurements import MEASUREMENTS, SIMULATED, Measurement, simulated_rows
from nki_hf.sim.stream.events import Event
from nki_hf.timing.schedule import DEFAULT_WINDOW, Schedule, schedule
from nki_hf.tools.subjects import events_of

__all__ = ["DEFAULT_ORDER", "Row", "effects", "misranked", "run", "scheduled_us", "store", "stored", "summary"]

_CLOSE = 0.03
"""Measurements closer than this do not count in the rank order."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement beside the model's answer.

    Attributes:
      measurement: the published row.
      us, program_us: the model's latency in the default order and in program order.
      without: its latency without each law that changes it, where that was asked for.
    """

    measurement: Measurement
    us: float
    program_us: float | None = None
    without: dict[str, float] | None = None

    @property
    def error(self) -> float:
        """(simulated - measured) / measured, in the default order."""
        return self.us / self.measurement.us - 1


def order_name(window: int | None) -> str:
    """`program` or `window(n)`."""
    return "program" if window is None else f"window({window})"


DEFAULT_ORDER = order_name(DEFAULT_WINDOW)


def run(
    measurements: Sequence[Measurement] = MEASUREMENTS, *, program: bool = False, laws: bool = False, progress: Any = None
) -> list[Row]:
    """A row per measurement whose kernel is part of this package, in the given order; other laws' and orders' on request."""
    rows = []
    for item in measurements:
        if item.public:
            continue
        chip = get_chip(item.chip)
        events = events_of(item.subject, item.size, chip)
        as_written = scheduled_us(events, chip, None) if program else None
        scheduled = schedule(events, chip)
        others = effects(events, scheduled) if laws else None
        rows.append(Row(measurement=item, us=scheduled.total_ns / 1e3, program_us=as_written, without=others))
        if progress is not None:
            progress(rows[-1])
    return rows


def effects(events: Sequence[Event], scheduled: Schedule) -> dict[str, float]:
    """The latency without each law that matters to these events, whose schedule with all laws is `scheduled`."""
    chip, found = scheduled.chip, {}
    for name in LAWS:
        other = without(chip, name)
        if name == "psum-recompute":
            matters = bool(scheduled.spills.recomputed or scheduled.spills.psum_copies)
        elif name == "sbuf-holding":
            matters = bool(scheduled.spills.stores)
        elif name == "stack-allocator":
            matters = scheduled.stack
        elif name == "sustained-clock":
            matters = scheduled.throttled
        else:
            matters = scheduled.work.costs_on(other) != scheduled.work.cost_of_kind
        if matters:
            found[name] = scheduled_us(events, other, stack=scheduled.stack)
    return found


def scheduled_us(events: Sequence[Event], chip: Chip, window: int | None = DEFAULT_WINDOW, *, stack: bool = False) -> float:
    """Simulated microseconds of a stream."""
    return schedule(events, chip, window=window, stack=stack).total_ns / 1e3


def stored(measurements: Sequence[Measurement] = MEASUREMENTS) -> list[Row]:
    """The rows as last written, those of public kernels included."""
    known = simulated_rows()
    return [
        Row(measurement=m, us=known[m.key]["us"], program_us=known[m.key]["program_us"], without=known[m.key]["without"])
        for m in measurements
        if m.key in known
    ]


def store(rows: Sequence[Row]) -> None:
    """Write what the model gives for these rows beside what is kept of others, in the order of the measurements."""
    new = {
        row.measurement.key: {
            "us": round(row.us, 2),
            "program_us": round(row.program_us or 0.0, 2),
            "without": {name: round(us, 2) for name, us in (row.without or {}).items()},
        }
        for row in rows
    }
    kept = {**simulated_rows(), **new}
    body = {m.key: kept[m.key] for m in MEASUREMENTS if m.key in kept}
    SIMULATED.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    simulated_rows.cache_clear()


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Median and worst absolute error of some rows, and the pairs of one length that the model ranks wrongly."""
    worst = max(rows, key=lambda row: abs(row.error))
    sizes = [abs(row.error) for row in rows]
    return {
        "rows": len(rows),
        "mean": statistics.mean(sizes),
        "median": statistics.median(sizes),
        "worst": worst.error,
        "worst_row": f"{worst.measurement.subject} {worst.measurement.size}",
        "misranked": misranked(rows),
    }


def misranked(rows: Sequence[Row]) -> list[str]:
    """Pairs of the ladder whose order at one length differs, measurements closer than 3 % ignored."""
    wrong = []
    for a, b in combinations([row for row in rows if row.measurement.subject.startswith("v")], 2):
        left, right = a.measurement, b.measurement
        if left.size != right.size or abs(left.us - right.us) <= _CLOSE * max(left.us, right.us):
            continue
        if (left.us < right.us) != (a.us < b.us):
            wrong.append(f"{left.subject} and {right.subject} at {left.size}")
    return wrong
