"""Times: what a scheduler finds for each event, and the resources that both schedulers share."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace

import numpy as np

__all__ = ["BUSY", "DEPENDENCY", "DMA", "MEMORY", "PORT", "REASONS", "START", "TABLE", "Floats", "Pool", "Times"]

START, BUSY, DEPENDENCY, DMA, PORT, MEMORY, TABLE = range(7)
REASONS = ("start", "engine", "semaphore", "dma", "port", "memory", "table")
"""Why an instruction did not start earlier: nothing before it, its engine was busy, it waited for another engine's
result, for a DMA, for a shared port, for on-chip memory to be free again, or for an activation table."""


Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


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


@dataclass(slots=True)
class Pool:
    """One on-chip memory of one core: which bytes become free when. Takes the bytes that were freed first.

    Attributes:
      slots: heap of `(time at which they are free, bytes, event that freed them)`.
      room: bytes in `slots`.
      capacity: bytes of all of it.
    """

    slots: list[tuple[float, int, int]]
    room: int
    capacity: int

    @classmethod
    def of(cls, capacity: int) -> Pool:
        """A pool that is all free."""
        return cls([(0.0, capacity, -1)], capacity, capacity)

    def take(self, nbytes: int) -> tuple[float, int]:
        """Take `nbytes`, which must be there; returns when the last of them is free and the event that freed it."""
        time, freed_by, slots = 0.0, -1, self.slots
        self.room -= nbytes
        while nbytes > 0:
            time, size, freed_by = slots[0]
            if size > nbytes:
                heapreplace(slots, (time, size - nbytes, freed_by))
                break
            heappop(slots)
            nbytes -= size
        return time, freed_by

    def give(self, nbytes: int, time: float, event: int) -> None:
        """Return `nbytes` that `event` was the last to use, at `time`."""
        self.room += nbytes
        heappush(self.slots, (time, nbytes, event))
