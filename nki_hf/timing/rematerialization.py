"""Rematerialization: PSUM tiles that one matmul made are made again where they are needed, rather than kept."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from nki_hf.sim.stream.events import Buffer, Event
from nki_hf.timing.next_use import NEVER, Tile

__all__ = ["Rematerialization"]


class Rematerialization:
    """Which tiles can be made again, and which of those a stream makes only where they are needed.

    Attributes:
      dropped: lines of the kernel whose tiles are made again rather than kept.
      sites: lines of which a tile was evicted that can be made again.
      count: matmuls that run again.
    """

    def __init__(self, events: Sequence[Event], dropped: frozenset[tuple[str, int]]) -> None:
        self.dropped = dropped
        self.sites: frozenset[tuple[str, int]] = frozenset()
        self.count = 0
        self._events = events
        self._named = {i for e in events for i in e.attrs.get("depends_on", ())}  # places that other events name
        self._touched: dict[tuple[str, int], list[int]] = {}  # where the tiles of each dropped line are used
        self._written: dict[int, list[int]] = {}  # where each buffer is written
        for index, event in enumerate(events):
            for region in event.writes:
                self._written.setdefault(region.buffer.number, []).append(index)

    def note(self, buffer: Buffer, index: int) -> None:
        """The event at `index` uses a tile."""
        if self.dropped:
            self._touched.setdefault((buffer.file, buffer.line), []).append(index)

    def postponed(self, event: Event, index: int, tile: Tile | None) -> bool:
        """True if the event makes `tile`, of a dropped line, which it will do where the tile is needed."""
        if event.opcode != "nc_matmul" or tile is None or tile.resident:
            return False
        if (tile.buffer.file, tile.buffer.line) not in self.dropped:
            return False
        tile.maker = self.maker(tile, index) if tile.next_need(index) != NEVER else None
        return tile.maker is not None

    def goes(self, tile: Tile, index: int) -> bool:
        """True if a tile of a dropped line need not stay: it can be made again, and others of its line come before it."""
        site = tile.buffer.file, tile.buffer.line
        if site not in self.dropped or not tile.resident:
            return False
        others = self._touched[site]
        if others[bisect_right(others, index)] >= tile.next_need(index):
            return False
        tile.maker = self.maker(tile, index)
        return tile.maker is not None

    def evicts(self, tile: Tile, index: int) -> None:
        """A tile goes because memory is short: note its maker, and its line if it has one."""
        tile.maker = self.maker(tile, index)
        if tile.maker is not None:
            self.sites |= {(tile.buffer.file, tile.buffer.line)}

    def maker(self, tile: Tile, index: int) -> Event | None:
        """The one matmul that made the tile's value, if it would make the same before the next use; None otherwise."""
        before = tile.uses[: bisect_right(tile.positions, index)]
        writes = [use for use in before if use.kind != "read"]
        if not writes or writes[-1].kind != "overwrite":
            return None
        made = self._events[writes[-1].index]
        if made.opcode != "nc_matmul" or len(made.writes) != 1 or "depends_on" in made.attrs or made.index in self._named:
            return None
        need = tile.next_need(index)
        for region in made.reads:
            places = self._written.get(region.buffer.number, [])
            if region.buffer.space == "psum" or bisect_right(places, need) != bisect_right(places, writes[-1].index):
                return None
        return made
