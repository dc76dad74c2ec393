"""When a tile of on-chip memory is used next, and where its value is meanwhile: what an allocator that spills goes by."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from nki_hf.sim.stream.events import Buffer, Event

__all__ = ["NEVER", "Tile", "Use", "most_live", "peak"]

NEVER = 1 << 60
"""The place of a next use that there is none of."""


@dataclass(slots=True)
class Use:
    """One instruction's use of one tile: `kind` is read, write (part of it), overwrite (all of it, reading none) or update
    (both reads and writes it).
    """

    index: int
    kind: str


class Tile:
    """A tile under way: where its value is now (`resident`: on chip; `stored`: HBM has it too)."""

    __slots__ = ("buffer", "core", "home", "made", "maker", "nbytes", "now", "positions", "resident", "stored", "uses")

    def __init__(self, buffer: Buffer, nbytes: int, core: int) -> None:
        self.buffer, self.nbytes, self.core = buffer, nbytes, core
        self.uses: list[Use] = []
        self.positions: list[int] = []
        self.now = buffer  # the buffer that accesses go to: the tile itself or its latest reincarnation
        self.home: Buffer | None = None  # its place in HBM, or in SBUF for a PSUM tile
        self.maker: Event | None = None  # the matmul that makes a dropped PSUM tile
        self.made = False  # it has been made before
        self.resident = self.stored = False

    def next_need(self, index: int, held: bool = False) -> int:
        """First use after `index` that needs the value; `NEVER` if none does or, unless `held`, it is overwritten first."""
        position = bisect_right(self.positions, index)
        if position == len(self.uses) or (self.uses[position].kind == "overwrite" and not held):
            return NEVER
        return self.uses[position].index

    def latest(self, index: int) -> int:
        """Its last use up to `index`."""
        return self.positions[bisect_right(self.positions, index) - 1]


def peak(tiles: Iterable[Tile], *, held: bool, split: bool) -> int:
    """Most bytes per partition live at once on a core.

    Args:
      tiles: of one memory, with all of their uses.
      held: a tile keeps its memory where its value is overwritten, see `Tile.next_need`.
      split: a tile holds nothing between a value's last use and the next value; without it, it lives from first to last use.
    """
    changes: list[tuple[int, int, int]] = []
    for tile in tiles:
        begin: int | None = None
        for use in tile.uses:
            begin = use.index if begin is None else begin
            if tile.next_need(use.index, held) == NEVER if split else use is tile.uses[-1]:
                changes += [(begin, tile.nbytes, tile.core), (use.index + 1, -tile.nbytes, tile.core)]
                begin = None
    return most_live(changes)


def most_live(changes: list[tuple[int, int, int]]) -> int:
    """The most that `(event, change, core)` add up to on one core."""
    live, most = Counter[int](), 0
    for _, change, core in sorted(changes):
        live[core] += change
        most = max(most, live[core])
    return most
