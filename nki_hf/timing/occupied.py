"""Occupied: bytes of on-chip memory in use over time, the one definition behind the trace's counters and high-water marks.

A buffer takes its bytes from the start of its first instruction, in time, to the end of its last one.
"""

from __future__ import annotations

from collections.abc import Sequence

from nki_hf.timing.workload import Workload

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
    tiles = work.tiles
    begin = [float("inf")] * len(tiles.pool)
    end = [0.0] * len(tiles.pool)
    for touched, first, last in zip(tiles.touches, start, last_use, strict=True):
        for tile in touched:
            begin[tile] = min(begin[tile], first)
            end[tile] = max(end[tile], last)
    changes: list[dict[float, int]] = [{} for _ in tiles.pools]
    for tile, pool in enumerate(tiles.pool):
        at = changes[pool]
        at[begin[tile]] = at.get(begin[tile], 0) + tiles.nbytes[tile]
        at[end[tile]] = at.get(end[tile], 0) - tiles.nbytes[tile]
    found: dict[tuple[int, str], list[tuple[float, int]]] = {}
    for (core, space, _), at in zip(tiles.pools, changes, strict=True):
        level, line = 0, []
        for time in sorted(at):
            level += at[time]
            line.append((time, level))
        found[core, space] = line
    return found
