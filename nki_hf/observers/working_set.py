"""Working set: which tiles of a kernel live on chip at once, how large they are, and what they take of SBUF and PSUM."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nki_hf.chips import Chip
from nki_hf.sim.stream.events import Buffer, Event
from nki_hf.sim.stream.memory import Lifetime, occupancies

__all__ = ["WorkingSet", "WorkingTile", "working_sets"]


@dataclass(frozen=True, kw_only=True)
class WorkingTile:
    """Tiles of one size that one kernel line allocates.

    Attributes:
      name: what the kernel calls the first of them: its `name=`, else what that line assigns it to.
      file, line: where they are allocated.
      nbytes: bytes per partition that each takes (a PSUM tile takes whole banks).
      live: how many live when the memory is fullest.
    """

    name: str
    file: str
    line: int
    nbytes: int
    live: int

    @property
    def total(self) -> int:
        """Bytes per partition of all that live."""
        return self.nbytes * self.live


@dataclass(frozen=True, kw_only=True)
class WorkingSet:
    """What lives in one core's memory when it is fullest, in program order and before any spill (rules: sim/stream/memory.py).

    Attributes:
      core, space: whose memory.
      high_water: bytes per partition that live there; tiles placed on top of each other count once.
      capacity: bytes per partition that there are.
      tiles: largest total first.
    """

    core: int
    space: str
    high_water: int
    capacity: int
    tiles: tuple[WorkingTile, ...]

    def __str__(self) -> str:
        largest = ", ".join(
            f"{tile.name} {tile.live} x {tile.nbytes:,} B ({tile.file.rsplit('/', 1)[-1]}:{tile.line})"
            for tile in self.tiles[:3]
        )
        return f"{self.space} of core {self.core} {self.high_water:,} of {self.capacity:,} B per partition, largest {largest}"


def working_sets(events: Sequence[Event], chip: Chip) -> list[WorkingSet]:
    """One per core and on-chip memory that a stream uses; give the kernel's own stream, not one with spills."""
    return [
        WorkingSet(
            core=item.core, space=item.space, high_water=item.high_water, capacity=item.capacity, tiles=_tiles(item.holders)
        )
        for item in occupancies(events, chip)
    ]


def _tiles(holders: Sequence[Lifetime]) -> tuple[WorkingTile, ...]:
    names: dict[tuple[str, int, int], str] = {}
    count: Counter[tuple[str, int, int]] = Counter()
    for life in holders:
        key = life.buffer.file, life.buffer.line, life.nbytes
        names.setdefault(key, _name(life.buffer))
        count[key] += 1
    found = [WorkingTile(name=names[k], file=k[0], line=k[1], nbytes=k[2], live=live) for k, live in count.items()]
    return tuple(sorted(found, key=lambda tile: -tile.total))


def _name(buffer: Buffer) -> str:
    assigned = re.match(r"\s*(\w+)\s*=", linecache.getline(buffer.file, buffer.line))
    return assigned[1] if assigned and buffer.name == f"{buffer.space}{buffer.number}" else buffer.name
