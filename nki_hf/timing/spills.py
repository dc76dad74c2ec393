"""What a compiler does with tiles that do not fit: the event stream with spills and reloads put in.

PSUM. Where the live tiles exceed it, the one whose next use is furthest away goes. What one matmul made whose operands are
still there is made again before that use (law `psum-recompute`): the Tensor engine is nearly free in kernels that fill PSUM,
and the engines that could copy are not. Then every tile from that line of the kernel is made when it is needed, first and
again, and holds nothing while others of them are made. Anything else is copied to SBUF by Vector and read from there; without
the law all is.

SBUF (law `sbuf-holding`). A tile holds its memory from its first to its last instruction, through any loop in between; where
memory is short the tile that was touched longest ago is stored to HBM through DMA, each time, and loaded again, whole, before
its next use. Without the law a tile holds nothing between a last read and a write that covers it, the tile whose next use is
furthest away goes, as for an allocator that sees through loops, and is not stored again if HBM still has its value.

Where the tiles of one instruction do not fit together, what it makes takes the place of an operand whose value ends there.

Whole tiles move: a kernel that wants to spill less makes its tiles smaller.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nki_hf.chips import Chip
from nki_hf.sim.stream.events import Buffer, Event, Region
from nki_hf.sim.stream.live_ranges import covers, in_place
from nki_hf.sim.stream.memory import taken_bytes
from nki_hf.sim.tensors.strides import row_major

__all__ = ["NO_SPILLS", "Spills", "spilled"]

_NEVER = 1 << 60


@dataclass(frozen=True, slots=True)
class Spills:
    """What was spilled.

    Attributes:
      psum_copies, psum_bytes: tiles moved from PSUM to SBUF.
      recomputed: matmuls that run again because PSUM could not hold what they had made.
      stores, loads: DMA transfers added.
      stored_bytes, loaded_bytes: their bytes, over all partitions.
      peak_bytes: most bytes per partition live at once before spilling, by space.
    """

    psum_copies: int
    psum_bytes: int
    stores: int
    stored_bytes: int
    loads: int
    loaded_bytes: int
    peak_bytes: dict[str, int]
    recomputed: int = 0

    def __bool__(self) -> bool:
        return bool(self.psum_copies or self.recomputed or self.stores or self.loads)


NO_SPILLS = Spills(0, 0, 0, 0, 0, 0, {})


def spilled(events: Sequence[Event], chip: Chip) -> tuple[list[Event], Spills]:
    """The stream as it would run on `chip`, and what was added; the same events if everything fits.

    Raises:
      MemoryError: one instruction's own tiles do not fit, or only tiles under accumulation are left in PSUM.
    """
    psum = _Spiller(events, chip, "psum", int(chip.psum_partition_bytes))
    after_psum = psum.run()
    if psum.recomputed:
        psum = _Spiller(events, chip, "psum", int(chip.psum_partition_bytes), dropped=psum.sites)
        after_psum = psum.run()
    peak = _held_peak(after_psum, chip)
    if chip.sbuf_spill_held and peak <= chip.sbuf_partition_bytes:
        return after_psum, Spills(
            psum_copies=psum.stores,
            psum_bytes=psum.stored_bytes,
            stores=0,
            stored_bytes=0,
            loads=0,
            loaded_bytes=0,
            peak_bytes={"psum": psum.peak, "sbuf": peak},
            recomputed=psum.recomputed,
        )
    sbuf = _Spiller(after_psum, chip, "sbuf", int(chip.sbuf_partition_bytes), number=psum.number)
    after = sbuf.run()
    return after, Spills(
        psum_copies=psum.stores,
        psum_bytes=psum.stored_bytes,
        stores=sbuf.stores,
        stored_bytes=sbuf.stored_bytes,
        loads=sbuf.loads,
        loaded_bytes=sbuf.loaded_bytes,
        peak_bytes={"psum": psum.peak, "sbuf": sbuf.peak},
        recomputed=psum.recomputed,
    )


def _held_peak(events: Sequence[Event], chip: Chip) -> int:
    """Most bytes per partition of SBUF in use at once on a core, if a tile lives from its first to its last instruction."""
    first: dict[int, tuple[int, int, int]] = {}  # by buffer number: event, bytes, core
    last: dict[int, int] = {}
    for index, event in enumerate(events):
        for regions in (event.reads, event.writes):
            for region in regions:
                buffer = region.buffer
                if buffer.space == "sbuf" and buffer.address is None:
                    if buffer.number not in last:
                        first[buffer.number] = index, taken_bytes(buffer, chip), event.core
                    last[buffer.number] = index
    changes = [(begin, nbytes, core) for begin, nbytes, core in first.values()]
    changes += [(end + 1, -first[number][1], first[number][2]) for number, end in last.items()]
    return _most(changes)


def _most(changes: list[tuple[int, int, int]]) -> int:
    """The most that `(event, change, core)` add up to on one core."""
    live, most = Counter[int](), 0
    for _, change, core in sorted(changes):
        live[core] += change
        most = max(most, live[core])
    return most


@dataclass(slots=True)
class _Use:
    """One instruction's use of one tile: `kind` is read, write (part of it), overwrite (all of it, reading none) or update
    (both reads and writes it).
    """

    index: int
    kind: str


class _Tile:
    """A tile under way: where its value is now (`resident`: on chip; `stored`: HBM has it too)."""

    __slots__ = ("buffer", "core", "home", "made", "maker", "nbytes", "now", "positions", "resident", "stored", "uses")

    def __init__(self, buffer: Buffer, nbytes: int, core: int) -> None:
        self.buffer, self.nbytes, self.core = buffer, nbytes, core
        self.uses: list[_Use] = []
        self.positions: list[int] = []
        self.now = buffer  # the buffer that accesses go to: the tile itself or its latest reincarnation
        self.home: Buffer | None = None  # its place in HBM, or in SBUF for a PSUM tile
        self.maker: Event | None = None  # the matmul that makes a dropped PSUM tile
        self.made = False  # it has been made before
        self.resident = self.stored = False

    def next_need(self, index: int, held: bool = False) -> int:
        """First use after `index` that needs the value; `_NEVER` if none does or, unless `held`, it is overwritten first."""
        position = bisect_right(self.positions, index)
        if position == len(self.uses) or (self.uses[position].kind == "overwrite" and not held):
            return _NEVER
        return self.uses[position].index

    def latest(self, index: int) -> int:
        """Its last use up to `index`."""
        return self.positions[bisect_right(self.positions, index) - 1]


class _Spiller:
    def __init__(
        self,
        events: Sequence[Event],
        chip: Chip,
        space: str,
        capacity: int,
        dropped: frozenset[tuple[str, int]] = frozenset(),
        number: int = 0,
    ) -> None:
        self.events, self.chip, self.space, self.capacity = events, chip, space, capacity
        self.out: list[Event] = []
        self.places: dict[int, int] = {}  # of each event, in the new stream
        self.stores = self.stored_bytes = self.loads = self.loaded_bytes = self.peak = self.recomputed = 0
        self.used: Counter[int] = Counter()  # bytes, by core: each has a memory of its own
        self.held = space == "sbuf" and bool(chip.sbuf_spill_held)
        self.recompute = space == "psum" and bool(chip.psum_recompute)
        self.written: dict[int, list[int]] = {}  # where each buffer is written
        self.dropped = dropped  # lines of the kernel whose tiles are made again rather than kept
        self.sites: frozenset[tuple[str, int]] = frozenset()  # lines of which a tile was dropped
        self.touched_at: dict[tuple[str, int], list[int]] = {}  # where the tiles of each line are used
        # Places that other events name.
        self.named = {i for e in events for i in e.attrs.get("depends_on", ())} if self.recompute else set[int]()
        self.number = number or 1 + max((r.buffer.number for e in events for r in (*e.reads, *e.writes)), default=0)
        self.tiles: dict[int, _Tile] = {}
        self.resident: dict[int, dict[int, _Tile]] = {}  # by core and buffer number
        for index, event in enumerate(events):
            for region in event.reads:
                if region.buffer.space == space and region.buffer.address is None:
                    self._note(event, region, index, writes=False)
            for region in event.writes:
                if region.buffer.space == space and region.buffer.address is None:
                    self._note(event, region, index, writes=True)
            for region in event.writes if self.recompute else ():
                self.written.setdefault(region.buffer.number, []).append(index)

    def run(self) -> list[Event]:
        """The stream with this space's spills."""
        self.peak = self._peak(split=True)
        if self._peak(split=False) <= self.capacity:
            return list(self.events)
        for index, event in enumerate(self.events):
            if self.dropped and self._postponed(event, index):
                continue
            touched = self._touched(event)
            pinned = {id(tile) for tile in touched}
            for tile in touched:
                if not tile.resident:
                    self._bring(tile, event, index, pinned)
            self._emit(event)
            for region in event.writes:
                written = self.tiles.get(region.buffer.number)
                if written is not None:
                    written.stored, written.made = False, True
            for tile in touched:
                if tile.next_need(index, self.held) == _NEVER:
                    self._leave(tile)
                elif self.dropped:
                    self._drop(tile, index)
        return self.out

    def _note(self, event: Event, region: Region, index: int, *, writes: bool) -> None:
        buffer = region.buffer
        if self.dropped:
            self.touched_at.setdefault((buffer.file, buffer.line), []).append(index)
        tile = self.tiles.get(buffer.number)
        if tile is None:
            tile = self.tiles[buffer.number] = _Tile(buffer, taken_bytes(buffer, self.chip), event.core)
        if tile.positions and tile.positions[-1] == index:
            if writes and tile.uses[-1].kind == "read":
                tile.uses[-1].kind = "update"
            return
        kind = "write" if writes else "read"
        if writes and covers(event, region):
            kind = "overwrite"
        tile.uses.append(_Use(index, kind))
        tile.positions.append(index)

    def _peak(self, split: bool) -> int:
        """Most bytes live at once on a core by the rule of the module; without `split` a tile lives from first to last use."""
        changes: list[tuple[int, int, int]] = []
        for tile in self.tiles.values():
            begin: int | None = None
            for use in tile.uses:
                begin = use.index if begin is None else begin
                if tile.next_need(use.index, self.held) == _NEVER if split else use is tile.uses[-1]:
                    changes += [(begin, tile.nbytes, tile.core), (use.index + 1, -tile.nbytes, tile.core)]
                    begin = None
        return _most(changes)

    def _touched(self, event: Event) -> list[_Tile]:
        found: dict[int, _Tile] = {}
        for region in (*event.reads, *event.writes):
            tile = self.tiles.get(region.buffer.number)
            if tile is not None and not (self.space == "psum" and tile.home is not None):
                found[region.buffer.number] = tile
        return list(found.values())

    def _bring(self, tile: _Tile, event: Event, index: int, pinned: set[int]) -> None:
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
        if tile.maker is not None and use.kind != "overwrite":
            tile.now = self._fresh(tile.buffer, self.space, "again")
            (made,) = tile.maker.writes
            attrs = {**tile.maker.attrs, "spill": True} if tile.made else tile.maker.attrs  # made late is not added
            self.out.append(_like(tile.maker, len(self.out), tile.maker.reads, (_in(made, tile.now),), attrs))
            self.recomputed += tile.made
            tile.made, tile.maker = True, None
        elif tile.home is not None and use.kind != "overwrite":
            tile.now = self._fresh(tile.buffer, self.space, "reload")
            self._dma(event, tile.home, tile.now)
            self.loads += 1
            self.loaded_bytes += tile.buffer.bytes_per_partition * tile.buffer.shape[0]
            tile.stored = not self.held
        elif use.index != tile.positions[0]:
            tile.now = self._fresh(tile.buffer, self.space, "again")

    def _taken_over(self, tile: _Tile, event: Event, index: int) -> bool:
        """Where an instruction's own tiles do not fit together, what it makes takes the place of an operand that ends there."""
        own = [
            self.tiles[number] for number in {r.buffer.number for r in (*event.reads, *event.writes)} if number in self.tiles
        ]
        write = next((region for region in event.writes if region.buffer is tile.buffer), None)
        if write is None or sum(item.nbytes for item in own) <= self.capacity:
            return False
        for read in event.reads:
            other = self.tiles.get(read.buffer.number)
            if other is None or other is tile or not other.resident or other.nbytes != tile.nbytes:
                continue
            if other.next_need(index) == _NEVER and in_place(event, read, write):
                tile.now, tile.resident, other.resident = other.now, True, False
                del self.resident[tile.core][other.buffer.number]
                self.resident[tile.core][tile.buffer.number] = tile
                return True
        return False

    def _leave(self, tile: _Tile) -> None:
        """Its value is not needed again: its memory is free."""
        if tile.resident:
            tile.resident = False
            self.used[tile.core] -= tile.nbytes
            del self.resident[tile.core][tile.buffer.number]

    def _postponed(self, event: Event, index: int) -> bool:
        """True if the event makes a tile of a dropped line, which it will do where the tile is needed."""
        tile = self.tiles.get(event.writes[0].buffer.number) if event.opcode == "nc_matmul" else None
        if tile is None or tile.resident or (tile.buffer.file, tile.buffer.line) not in self.dropped:
            return False
        tile.maker = self._maker(tile, index) if tile.next_need(index) != _NEVER else None
        return tile.maker is not None

    def _drop(self, tile: _Tile, index: int) -> None:
        """Let a tile go that can be made again, if others of its line are used before it is."""
        site = tile.buffer.file, tile.buffer.line
        if site in self.dropped and tile.resident:
            others = self.touched_at[site]
            if others[bisect_right(others, index)] < tile.next_need(index):
                tile.maker = self._maker(tile, index)
                if tile.maker is not None:
                    self._leave(tile)

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
        if self.recompute:
            tile.maker = self._maker(tile, index)
            if tile.maker is not None:
                self.sites |= {(tile.buffer.file, tile.buffer.line)}
        if tile.maker is None and not tile.stored:
            self.stores += 1
            self.stored_bytes += tile.buffer.bytes_per_partition * tile.buffer.shape[0]
            if self.space == "psum":
                tile.home = self._fresh(tile.buffer, "sbuf", "spill")
                self._copy(event, tile.now, tile.home)
                tile.now = tile.home
            else:
                if tile.home is None:
                    tile.home = self._fresh(tile.buffer, "private_hbm", "spill")
                self._dma(event, tile.now, tile.home)
                tile.stored = True
        self._leave(tile)

    def _movable(self, tile: _Tile, index: int) -> bool:
        """A PSUM tile may go once nothing accumulates into it any more."""
        if self.space != "psum":
            return True
        later = tile.uses[bisect_right(tile.positions, index) :]
        return all(use.kind == "read" for use in later)

    def _maker(self, tile: _Tile, index: int) -> Event | None:
        """The one matmul that made the tile's value, if it would make the same before the next use; None otherwise."""
        before = tile.uses[: bisect_right(tile.positions, index)]
        writes = [use for use in before if use.kind != "read"]
        if not writes or writes[-1].kind != "overwrite":
            return None
        made = self.events[writes[-1].index]
        if made.opcode != "nc_matmul" or len(made.writes) != 1 or "depends_on" in made.attrs or made.index in self.named:
            return None
        need = tile.next_need(index)
        for region in made.reads:
            places = self.written.get(region.buffer.number, [])
            if region.buffer.space == "psum" or bisect_right(places, need) != bisect_right(places, writes[-1].index):
                return None
        return made

    def _fresh(self, buffer: Buffer, space: str, why: str) -> Buffer:
        self.number += 1
        return Buffer(
            self.number,
            space,
            f"{buffer.name} ({why})",
            buffer.shape,
            buffer.dtype,
            buffer.core,
            "scratch",
            None,
            buffer.file,
            buffer.line,
        )

    def _copy(self, event: Event, source: Buffer, target: Buffer) -> None:
        self._move(replace(event, engine="vector", queue="vector", opcode="tensor_copy"), source, target)

    def _dma(self, event: Event, source: Buffer, target: Buffer) -> None:
        self._move(replace(event, engine="dma", queue="sync", opcode="dma_copy"), source, target)

    def _move(self, like: Event, source: Buffer, target: Buffer) -> None:
        self.out.append(_like(like, len(self.out), (_whole(source),), (_whole(target),), {"spill": True}))

    def _emit(self, event: Event) -> None:
        self.places[event.index] = len(self.out)
        attrs = event.attrs
        if "depends_on" in attrs:  # it names events by their place in the stream
            attrs = {**attrs, "depends_on": tuple(self.places[index] for index in attrs["depends_on"])}
        reads, writes = tuple(map(self._redirect, event.reads)), tuple(map(self._redirect, event.writes))
        if attrs is event.attrs and event.index == len(self.out) and reads == event.reads and writes == event.writes:
            self.out.append(event)
        else:
            self.out.append(_like(event, len(self.out), reads, writes, attrs))

    def _redirect(self, region: Region) -> Region:
        tile = self.tiles.get(region.buffer.number)
        return region if tile is None or tile.now is region.buffer else _in(region, tile.now)


def _like(event: Event, index: int, reads: tuple[Region, ...], writes: tuple[Region, ...], attrs: Mapping[str, Any]) -> Event:
    """`dataclasses.replace` in a fifth of its time: nearly every instruction of a long stream is made again."""
    return Event(index, event.core, event.engine, event.queue, event.opcode, reads, writes, event.file, event.line, attrs)


def _in(region: Region, buffer: Buffer) -> Region:
    """The same part of another buffer."""
    return Region(buffer, region.dtype, region.offset, region.shape, region.strides, region.indirect, region.reached)


def _whole(buffer: Buffer) -> Region:
    return Region(buffer, buffer.dtype, 0, buffer.shape, row_major(buffer.shape))
