"""Times: what a scheduler finds for each event, and the resources that both schedulers share."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

import numpy as np

__all__ = ["BUSY", "DEPENDENCY", "DMA", "MEMORY", "PORT", "REASONS", "START", "TABLE", "Floats", "Pool", "Times"]

START, BUSY, DEPENDENCY, DMA, PORT, MEMORY, TABLE = range(7)
REASONS = ("start", "engine", "semaphore", "dma", "port", "memory", "table")
"""Why an instruction did not start earlier: nothing before it, its engine was busy, it waited for another engine's
result, for a DMA, for a shared port, for on-chip memory to be free again, or for an activation table."""


Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
_COLUMNS = ("start", "free", "done", "moves", "cause", "reason")


@dataclass(frozen=True, slots=True)
class Times:
    """Per event, in ns from the kernel's first possible instruction.

    Attributes:
      start: the instruction starts (DMA: it is triggered).
      free: its engine (DMA: its queue) can start the next one.
      done: its result can be used.
      moves: DMA only: its first byte leaves; equal to `start` elsewhere.
      reason: what bound the start, a position in `REASONS`.
      cause: the event that did, -1 if none.
    """

    start: Floats
    free: Floats
    done: Floats
    moves: Floats
    reason: np.ndarray[tuple[int], np.dtype[np.int8]]
    cause: np.ndarray[tuple[int], np.dtype[np.int64]]

    def packed(self) -> bytes:
        """All of it, for another process."""
        return b"".join(getattr(self, name).tobytes() for name in _COLUMNS)

    @classmethod
    def unpacked(cls, data: bytes) -> Times:
        """What `packed` gave."""
        types = [np.dtype(np.int8 if name == "reason" else np.int64 if name == "cause" else np.float64) for name in _COLUMNS]
        count, columns, begin = len(data) // sum(kind.itemsize for kind in types), {}, 0
        for name, kind in zip(_COLUMNS, types, strict=True):
            columns[name] = np.frombuffer(data, kind, count, begin)
            begin += count * kind.itemsize
        return cls(**columns)


_GONE = 256
"""Slots that have been used up before a pool's list is cut."""


class Pool:
    """One on-chip memory of one core: which bytes become free when. Takes the bytes that were freed first.

    Attributes:
      capacity, room: bytes of all of it, and those that nobody took.
    """

    __slots__ = ("_first", "_slots", "capacity", "room")

    def __init__(self, capacity: int) -> None:
        self.capacity = self.room = capacity
        # The room, from `_first` on: (time at which it is free, bytes, event that freed it), sorted; what is given back is
        # nearly always free later than the rest.
        self._slots = [(0.0, capacity, -1)]
        self._first = 0

    def take(self, nbytes: int) -> tuple[float, int]:
        """Take `nbytes`, which must be there; returns when the last of them is free and the event that freed it."""
        slots, first = self._slots, self._first
        self.room -= nbytes
        time, size, freed_by = slots[first]
        while size < nbytes:
            nbytes -= size
            first += 1
            time, size, freed_by = slots[first]
        if size > nbytes:
            slots[first] = time, size - nbytes, freed_by
        else:
            first += 1
            if first > _GONE:
                del slots[:first]
                first = 0
        self._first = first
        return time, freed_by

    def give(self, nbytes: int, time: float, event: int) -> None:
        """Return `nbytes` that `event` was the last to use, at `time`."""
        self.room += nbytes
        slots, item = self._slots, (time, nbytes, event)
        if slots and slots[-1] < item:
            slots.append(item)
        else:
            insort(slots, item, self._first)
