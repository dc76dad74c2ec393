"""What timeline.js draws: a schedule's lanes and memory as plain values, the long columns packed."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

from nki_hf.observers.instruction_kinds import WORDS
from nki_hf.observers.lanes import Columns, binned, lanes
from nki_hf.observers.short_path import short_path
from nki_hf.timing.schedule import Schedule
from nki_hf.timing.times import REASONS

__all__ = ["timeline_data"]

_LARGEST = 1_500_000
"""Bytes of packed columns from which the page holds bins in place of instructions."""
_MOMENTS = 4096
"""Parts of the time in which memory is given by its least and its most."""


def timeline_data(scheduled: Schedule, title: str, *, largest: int = _LARGEST) -> dict[str, Any]:
    """A schedule for the picture.

    Args:
      scheduled: the schedule.
      title: the kernel, its size.
      largest: bytes that the packed columns may take; longer ones are binned, so that nothing is left out.
    """
    found = lanes(scheduled)
    packed = _packed(found.columns)
    exact = len(packed) <= largest
    if not exact:
        found = binned(found, scheduled.total_ns)
        packed = _packed(found.columns)
    return {
        "title": title,
        "chip": scheduled.chip.name,
        "total": scheduled.total_ns / found.tick_ns,
        "launch": min(float(scheduled.chip.kernel_fixed_ns), scheduled.total_ns) / found.tick_ns,
        "tick": found.tick_ns,
        "exact": exact,
        "instructions": len(scheduled.events),
        "count": len(found.columns.lane),
        "words": WORDS,
        "reasons": REASONS,
        "lanes": [{"core": lane.core, "engine": lane.engine, "name": lane.name} for lane in found.lanes],
        "cores": len({lane.core for lane in found.lanes}),
        "kinds": [[name, WORDS.index(word), short_path(file) if file else "", line] for name, word, file, line in found.kinds],
        "columns": base64.b64encode(packed).decode(),
        "memory": [
            _memory(scheduled, core, space, line, found.tick_ns) for (core, space), line in sorted(scheduled.occupied().items())
        ],
    }


def _packed(columns: Columns) -> bytes:
    """Nine columns of little-endian int32 one after the other, compressed by zlib; the order is that of timeline.js."""
    own = np.arange(len(columns.cause))
    behind = np.where(columns.cause < 0, 0, own - columns.cause)  # 0: no cause
    parts = (
        np.diff(columns.lane, prepend=0),
        columns.kind,
        np.diff(columns.start, prepend=0),
        columns.length,
        columns.reason,
        behind,
        columns.path,
        np.diff(columns.iteration, prepend=0),
        columns.use,
    )
    return zlib.compress(np.concatenate(parts).astype("<i4").tobytes(), 6)


def _memory(scheduled: Schedule, core: int, space: str, line: list[tuple[float, int]], tick: float) -> dict[str, Any]:
    """Bytes per partition over time: at each change, or, of many changes, least and most of equal parts of the time."""
    times = np.array([time for time, _ in line] or [0.0])
    level = np.array([level for _, level in line] or [0])
    low = high = level
    if len(times) > _MOMENTS:
        edges = np.linspace(times[0], max(scheduled.total_ns, times[-1]), _MOMENTS + 1)
        first = np.searchsorted(times, edges[:-1])
        before = level[np.maximum(first - 1, 0)]
        inside = np.minimum(first, len(level) - 1)
        empty = np.append(first[1:], len(level)) == first
        high = np.where(empty, before, np.maximum(before, np.maximum.reduceat(level, inside)))
        low = np.where(empty, before, np.minimum(before, np.minimum.reduceat(level, inside)))
        times = edges[:-1]
    capacity = scheduled.chip.sbuf_partition_bytes if space == "sbuf" else scheduled.chip.psum_partition_bytes
    return {
        "core": core,
        "space": space,
        "capacity": int(capacity),
        "time": np.rint(times / tick).astype(int).tolist(),
        "low": low.tolist(),
        "high": high.tolist(),
    }
