"""Spiller: goes through an event stream with the memory that one space has, and lets tiles go where it is short.

The rules are in spills.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

from nki_hf.chips import Chip
from nki_hf.sim.stream.events import Event, Region
from nki_hf.sim.stream.live_ranges import covers, in_place
from nki_hf.sim.stream.memory import taken_bytes
from nki_hf.timing.next_use import NEVER, Tile, Use, peak
from nki_hf.timing.rematerialization import Rematerialization
from nki_hf.timing.spill_code import SpillCode

__all__ = ["Spiller"]


class Spiller:
    """One pass over a stream.

    Attributes:
      stores, stored_bytes, loads, loaded_bytes, peak_bytes: as in `spills.Spills`.
      remade: what is made again; None where that is not done.
      code: the new stream.
    """

    def __init__(
        self,
        events: Sequence[Event],
        chip: Chip,
        space: str,
        capacity: int,
        dropped: frozenset[tuple[str, int]] = frozenset(),
        number: int = 0,
    ) -> None:
        """A pass over `events`.

        Args:
          events, chip: the stream and what it runs on.
          space, capacity: the memory, `psum` or `sbuf`, and its bytes per partition.
          dropped: see `Rematerialization`.
          number: of the newest buffer; 0 = the largest of `events`.
        """
        self.events, self.chip, self.space, self.capacity = events, chip, space, capacity
        self.stores = self.stored_bytes = self.loads = self.loaded_bytes = self.peak_bytes = 0
        self.held = space == "sbuf" and bool(chip.sbuf_spill_held)
        self.remade = Rematerialization(events, dropped) if space == "psum" and chip.psum_recompute else None
        self.used: Counter[int] = Counter()  # bytes, by core: each has a memory of its own
        self.tiles: dict[int, Tile] = {}
        self.resident: dict[int, dict[int, Tile]] = {}  # by core and buffer number
        number = number or 1 + max((r.buffer.number for e in events for r in (*e.reads, *e.writes)), default=0)
        self.code = SpillCode(number, self.tiles)
        for index, event in enumerate(events):
            for region in event.reads:
                if region.buffer.space == space and region.buffer.address is None:
                    self._note(event, region, index, writes=False)
            for region in event.writes:
                if region.buffer.space == space and region.buffer.address is None:
                    self._note(event, region, index, writes=True)

    def run(self) -> list[Event]:
        """The stream with this space's spills."""
        self.peak_bytes = peak(self.tiles.values(), held=self.held, split=True)
        if peak(self.tiles.values(), held=self.held, split=False) <= self.capacity:
            return list(self.events)
        remade = self.remade if self.remade is not None and self.remade.dropped else None
        for index, event in enumerate(self.events):
            if remade is not None and event.writes and remade.postponed(event, index, self._tile(event.writes[0])):
                continue
            touched = self._touched(event)
            pinned = {id(tile) for tile in touched}
            for tile in touched:
                if not tile.resident:
                    self._bring(tile, event, index, pinned)
            self.code.emit(event)
            for region in event.writes:
                written = self._tile(region)
                if written is not None:
                    written.stored, written.made = False, True
            for tile in touched:
                if tile.next_need(index, self.held) == NEVER or (remade is not None and remade.goes(tile, index)):
                    self._leave(tile)
        return self.code.out

    def _tile(self, region: Region) -> Tile | None:
        return self.tiles.get(region.buffer.number)

    def _note(self, event: Event, region: Region, index: int, *, writes: bool) -> None:
        buffer = region.buffer
        if self.remade is not None:
            self.remade.note(buffer, index)
        tile = self.tiles.get(buffer.number)
        if tile is None:
            tile = self.tiles[buffer.number] = Tile(buffer, taken_bytes(buffer, self.chip), event.core)
        if tile.positions and tile.positions[-1] == index:
            if writes and tile.uses[-1].kind == "read":
                tile.uses[-1].kind = "update"
            return
        kind = "write" if writes else "read"
        if writes and covers(event, region):
            kind = "overwrite"
        tile.uses.append(Use(index, kind))
        tile.positions.append(index)

    def _touched(self, event: Event) -> list[Tile]:
        found: dict[int, Tile] = {}
        for region in (*event.reads, *event.writes):
            tile = self._tile(region)
            if tile is not None and not (self.space == "psum" and tile.home is not None):
                found[region.buffer.number] = tile
        return list(found.values())

    def _bring(self, tile: Tile, event: Event, index: int, pinned: set[int]) -> None:
        """Make the tile resident: room first, then its value if it has one."""
        if tile.nbytes > self.capacity:
            raise MemoryError(
                f"{self.space} overflows at event {index} ({event.opcode}, {event.file}:{event.line}): tile {tile.buffer.name} "
                f"alone takes {tile.nbytes:,} B of {self.capacity:,} B per partition; make it smaller."
            )
        if self._taken_over(tile, event, index):
            return
        while self.used[tile.core] + tile.nbytes > self.capacity:
            self._evict(event, index, pinned)
        self.used[tile.core] += tile.nbytes
        tile.resident = True
        self.resident.setdefault(tile.core, {})[tile.buffer.number] = tile
        use = tile.uses[bisect_right(tile.positions, index - 1)]
        if self.remade is not None and tile.maker is not None and use.kind != "overwrite":
            self.code.remake(tile, tile.maker)
            self.remade.count += tile.made
            tile.made, tile.maker = True, None
        elif tile.home is not None and use.kind != "overwrite":
            tile.now = self.code.fresh(tile.buffer, self.space, "reload")
            self.code.dma(event, tile.home, tile.now)
            self.loads += 1
            self.loaded_bytes += tile.buffer.bytes_per_partition * tile.buffer.shape[0]
            tile.stored = not self.held
        elif use.index != tile.positions[0]:
            tile.now = self.code.fresh(tile.buffer, self.space, "again")

    def _taken_over(self, tile: Tile, event: Event, index: int) -> bool:
        """Where an instruction's own tiles do not fit together, what it makes takes the place of an operand that ends there."""
        own = [
            self.tiles[number] for number in {r.buffer.number for r in (*event.reads, *event.writes)} if number in self.tiles
        ]
        write = next((region for region in event.writes if region.buffer is tile.buffer), None)
        if write is None or sum(item.nbytes for item in own) <= self.capacity:
            return False
        for read in event.reads:
            other = self._tile(read)
            if other is None or other is tile or not other.resident or other.nbytes != tile.nbytes:
                continue
            if other.next_need(index) == NEVER and in_place(event, read, write):
                tile.now, tile.resident, other.resident = other.now, True, False
                del self.resident[tile.core][other.buffer.number]
                self.resident[tile.core][tile.buffer.number] = tile
                return True
        return False

    def _leave(self, tile: Tile) -> None:
        """Its value is not needed again, or comes from elsewhere: its memory is free."""
        if tile.resident:
            tile.resident = False
            self.used[tile.core] -= tile.nbytes
            del self.resident[tile.core][tile.buffer.number]

    def _evict(self, event: Event, index: int, pinned: set[int]) -> None:
        resident = self.resident.get(event.core, {}).values()
        candidates = [tile for tile in resident if id(tile) not in pinned and self._movable(tile, index)]
        if not candidates:
            raise MemoryError(
                f"{self.space} overflows at event {index} ({event.opcode}, {event.file}:{event.line}): "
                f"{self.used[event.core]:,} B of {self.capacity:,} B per partition are used by tiles that cannot go now."
            )
        if self.held:
            tile = min(candidates, key=lambda item: item.latest(index))
        else:
            tile = max(candidates, key=lambda item: (item.next_need(index), item.nbytes))
        if self.remade is not None:
            self.remade.evicts(tile, index)
        if tile.maker is None and not tile.stored:
            self.stores += 1
            self.stored_bytes += tile.buffer.bytes_per_partition * tile.buffer.shape[0]
            if self.space == "psum":
                tile.home = self.code.fresh(tile.buffer, "sbuf", "spill")
                self.code.copy(event, tile.now, tile.home)
                tile.now = tile.home
            else:
                if tile.home is None:
                    tile.home = self.code.fresh(tile.buffer, "private_hbm", "spill")
                self.code.dma(event, tile.now, tile.home)
                tile.stored = True
        self._leave(tile)

    def _movable(self, tile: Tile, index: int) -> bool:
        """A PSUM tile may go once nothing accumulates into it any more."""
        if self.space != "psum":
            return True
        later = tile.uses[bisect_right(tile.positions, index) :]
        return all(use.kind == "read" for use in later)
