"""Storage: the bytes behind one allocation, pooled so that memory in use follows the tiles that are alive."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nki_hf.sim.dtypes import DType
from nki_hf.sim.stream.events import Buffer

__all__ = ["BytePool", "Refill", "Storage", "fill_sentinel"]

INTEGER_SENTINEL = 4
"""Fill of never-written integer memory, as in the SDK's own simulator; floats are filled with NaN."""


_SMALL, _KEPT = 1 << 16, 2 << 20
"""Bytes of a block that is not reused, and of all of them together: masks, bounds and constants, made first and small."""


class BytePool:
    """Blocks of bytes of one core that dead tiles gave back. A recorded program replays in order, so reuse is safe there.

    Attributes:
      nbytes: bytes of all blocks that it made.
    """

    __slots__ = ("_free", "_held", "_kept", "_spare", "nbytes")

    def __init__(self) -> None:
        self.nbytes = 0
        self._kept: list[np.ndarray[Any, Any]] = []
        self._spare = 0
        self._free: dict[int, list[np.ndarray[Any, Any]]] = {}
        self._held: list[np.ndarray[Any, Any]] | None = None

    def take(self, nbytes: int) -> np.ndarray[Any, Any]:
        """A block of exactly `nbytes` bytes with undefined content."""
        blocks = self._free.get(nbytes)
        if blocks:
            return blocks.pop()
        self.nbytes += nbytes
        return np.empty(nbytes, np.uint8)

    def give(self, block: np.ndarray[Any, Any]) -> None:
        """Hand a block back for reuse."""
        if block.nbytes <= min(_SMALL, self._spare):
            self._spare -= block.nbytes
            self._kept.append(block)
        elif self._held is not None:
            self._held.append(block)
        else:
            self._free.setdefault(block.nbytes, []).append(block)

    def keep_small(self) -> None:
        """Do not reuse the first small blocks that are given back: a replay finds in them what it need not compute again."""
        self._spare = _KEPT

    def hold(self) -> None:
        """Reuse nothing that is given back from now on: the next turn of a loop may read it again."""
        if self._held is None:
            self._held = []

    def release(self) -> None:
        """Allow the reuse of what was given back since `hold`."""
        held, self._held = self._held or [], None
        for block in held:
            self.give(block)


class Refill(NamedTuple):
    """An allocation of which another replay may write more or less (see sim/run/refills.py).

    Attributes:
      buffer, data: what it is, and its bytes.
      place, place_in_order: how many actions its core, and all cores, had when it was made.
    """

    buffer: Buffer
    data: np.ndarray[Any, Any]
    place: int
    place_in_order: int


class Storage:
    """Bytes of one buffer, flattened, and which elements have been written.

    Attributes:
      buffer: what the events know of it.
      on_chip: True in SBUF and PSUM.
      data: `uint8[bytes]`, or None when the run has no values.
      in_psum: True in PSUM.
      foreign: `bool[elements]`: which elements of PSUM another engine than Tensor wrote last; None if none.
      tracked: False if every element counts as written (inputs, constants).
      whole: patterns (see `NkiTensor.pattern`) all of whose elements are known to have been written.
      untouched: True until an instruction has it among what it writes.
      seen: True once a computation holds the bytes themselves, so that they must be there.
      version: how often instructions have written to it; `origins`: where parts of it came from (see sim/tensors/origins.py).
      refill: what refills it in a replay, if its first write may cover less of it than now; None if nothing has to.
      lent: during a replay, the caller's array that stands for them: of the buffer's shape, or shorter and followed by zeros.
    """

    __slots__ = (
        "__weakref__", "_all", "_pool", "_written", "buffer", "data", "foreign", "in_psum", "lent", "on_chip", "origins",
        "refill", "seen", "tracked", "untouched", "version", "whole",
    )  # fmt: skip

    def __init__(
        self, buffer: Buffer, data: np.ndarray[Any, Any] | None, *, tracked: bool, pool: BytePool | None = None
    ) -> None:
        self.buffer = buffer
        self.on_chip = buffer.on_chip
        self.in_psum = buffer.space == "psum"
        self.foreign: np.ndarray[Any, Any] | None = None
        self.data = data
        self.tracked = tracked
        self._written: np.ndarray[Any, Any] | None = None  # made when somebody asks: most tiles are written whole
        self._all = False
        self.whole: set[tuple[object, ...]] = set()
        self.seen = False
        self.untouched = True
        self.refill: Refill | None = None
        self.lent: np.ndarray[Any, Any] | None = None
        self.version = 0
        self.origins: list[Any] = []
        self._pool = pool

    def __del__(self) -> None:
        pool = getattr(self, "_pool", None)  # an interrupt may have ended __init__ before it was set
        if pool is not None and self.data is not None:
            pool.give(self.data)

    @property
    def written(self) -> np.ndarray[Any, Any] | None:
        """`bool[elements]` of the buffer's own dtype; None if it is not tracked."""
        if self._written is None and self.tracked:
            self._written = np.full(self.buffer.elements, self._all, np.bool_)
        return self._written

    def all_written(self) -> None:
        """Note that each of its elements was written."""
        self._all = True
        if self._written is not None:
            self._written[...] = True

    def fill_sentinel(self) -> None:
        """Fill with NaN (floats) or the integer sentinel."""
        if self.data is not None:
            fill_sentinel(self.data, self.buffer.dtype)


def fill_sentinel(data: np.ndarray[Any, Any], dtype: DType) -> None:
    """Fill raw bytes with the sentinel of never-written memory of `dtype`."""
    array = data.view(dtype.dtype) if dtype.dtype.itemsize > 1 or dtype.is_float else data
    if dtype.is_float:
        array[...] = np.array(math.nan).astype(dtype.dtype)
    else:
        array[...] = INTEGER_SENTINEL if dtype.family != "bool" else True
