"""Capacity: how much of SBUF and PSUM a run takes, who holds it, and how much room is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nki_hf.chips import Chip
from nki_hf.sim.stream.events import Event
from nki_hf.sim.stream.memory import occupancies

__all__ = ["report"]


def report(events: Sequence[Event], chip: Chip, *, largest: int = 5) -> list[dict[str, Any]]:
    """One row per core and memory: high-water mark, capacity, share, and the largest tiles alive there with their lines."""
    return [
        {
            "core": item.core,
            "space": item.space,
            "high_water_bytes": item.high_water,
            "capacity_bytes": item.capacity,
            "share": item.high_water / item.capacity,
            "at_event": item.at,
            "holders": [
                {"name": life.buffer.name, "bytes": life.nbytes, "file": life.buffer.file, "line": life.buffer.line}
                for life in item.holders[:largest]
            ],
        }
        for item in occupancies(events, chip)
    ]
