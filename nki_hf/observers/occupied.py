"""Occupied: bytes of on-chip memory in use over time, the one definition behind the trace's counters and high-water marks.

A buffer takes its bytes from the start of its first instruction, in time, to the end of its last one.
"""

from __future__ import annotations

from collections.abc import Sequence

from nki_hf.observers.workload import Workload

__all__ = ["occupied"]


def occupied(
    work: Workload, start: Sequence[float], last_use: Sequence[float]
) -> dict[tuple[int, str], list[tuple[float, int]]]:
    """Bytes per partition in use, `(ns, bytes)` at each change, by `(core, space)`.

    Args:
      work: the events and their buffers.
      start: when each event starts, in ns.
      last_use: when each event has finished with its operands' memory, in ns.
    """
    begin = [float("inf")] * len(work.allocations)
    end = [0.0] * len(work.allocations)
    for places, first, last in zip(work.touches, start, last_use, strict=True):
        for place in places:
            begin[place] = min(begin[place], first)
            end[place] = max(end[place], last)
    changes: list[dict[float, int]] = [{} for _ in work.pools]
    for place, item in enumerate(work.allocations):
        at = changes[item.pool]
        at[begin[place]] = at.get(begin[place], 0) + item.nbytes
        at[end[place]] = at.get(end[place], 0) - item.nbytes
    found: dict[tuple[int, str], list[tuple[float, int]]] = {}
    for (core, space, _), at in zip(work.pools, changes, strict=True):
        level, line = 0, []
        for time in sorted(at):
            level += at[time]
            line.append((time, level))
        found[core, space] = line
    return found
