"""Accesses to one memory that later instructions may still conflict with: what has been read and written, and is uncovered."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from nki_hf.sim.stream.footprint import Footprint, overlap

__all__ = ["Access", "Accesses", "Memory"]

_SHORT = 12
"""Up to this many accesses are searched one by one."""


class Access(NamedTuple):
    """One access that later instructions may conflict with."""

    footprint: Footprint
    queue: int
    event: int
    buffer: int


class Accesses:
    """Accesses of one kind to one memory that no later write has covered; long lists are sorted by first byte."""

    __slots__ = ("items", "longest", "starts")

    def __init__(self) -> None:
        self.items: list[Access] = []
        self.starts: list[int] | None = None
        self.longest = 0

    def overlapping(self, footprint: Footprint) -> list[Access]:
        """The accesses that touch a byte of `footprint`."""
        return [item for item in self._near(footprint) if item[0] is footprint or overlap(item[0], footprint)]

    def add(self, access: Access) -> None:
        """Remember an access."""
        if self.starts is None:
            self.items.append(access)
            if len(self.items) > _SHORT:
                self._sort()
            return
        start = access[0].lo
        self.longest = max(self.longest, access[0].hi - start)
        position = bisect_right(self.starts, start)
        self.starts.insert(position, start)
        self.items.insert(position, access)

    def replace(self, access: Access) -> bool:
        """Move the same access of the same queue on to a later instruction; False if there is none."""
        footprint, queue = access[0], access[1]
        first = 0 if self.starts is None else bisect_left(self.starts, footprint.lo)
        for position in range(first, len(self.items)):
            item = self.items[position]
            if item[0] is footprint and item[1] == queue:
                self.items[position] = access
                return True
            if self.starts is not None and item[0].lo > footprint.lo:
                break
        return False

    def drop_covered(self, footprint: Footprint) -> None:
        """Forget what a write covers."""
        gone = {id(item) for item in self._near(footprint) if footprint is item[0] or footprint.covers(item[0])}
        if not gone:
            return
        self.items = [item for item in self.items if id(item) not in gone]
        if self.starts is not None:
            self._sort()

    def _near(self, footprint: Footprint) -> list[Access]:
        if self.starts is None:
            return self.items
        first = bisect_left(self.starts, footprint.lo - self.longest)
        return self.items[first : bisect_left(self.starts, footprint.hi, first)]

    def _sort(self) -> None:
        if len(self.items) <= _SHORT:
            self.starts = None
            return
        self.items.sort(key=lambda item: item[0].lo)
        self.starts = [item[0].lo for item in self.items]
        self.longest = max(item[0].hi - item[0].lo for item in self.items)


class Memory:
    """What earlier instructions did to one memory (one buffer, or all that is placed by address); None until then."""

    __slots__ = ("reads", "writes")

    def __init__(self) -> None:
        self.reads: Accesses | None = None
        self.writes: Accesses | None = None

    def note_read(self, access: Access, moves_on: bool = True) -> None:
        """Remember a read; the same read by the same queue only moves on, unless queues may reorder."""
        if self.reads is None:
            self.reads = Accesses()
            self.reads.items.append(access)
        elif not (moves_on and self.reads.replace(access)):
            self.reads.add(access)

    def note_write(self, access: Access) -> None:
        """Remember a write and forget what it covers."""
        footprint = access[0]
        if self.reads is not None:
            self.reads.drop_covered(footprint)
        if self.writes is None:
            self.writes = Accesses()
        else:
            self.writes.drop_covered(footprint)
        self.writes.add(access)
