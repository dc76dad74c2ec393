"""Spill code: the event stream under way, with copies, stores, reloads and repeated matmuls put in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nki_hf.sim.stream.events import Buffer, Event, Region
from nki_hf.sim.tensors.strides import row_major
from nki_hf.timing.next_use import Tile

__all__ = ["SpillCode"]


class SpillCode:
    """Writes the new stream.

    Attributes:
      out: the stream so far.
      number: of the newest buffer; those that are added count on from it.
      tiles: by buffer number; accesses to one go to the buffer where its value is now.
    """

    def __init__(self, number: int, tiles: Mapping[int, Tile]) -> None:
        self.out: list[Event] = []
        self.number, self.tiles = number, tiles
        self._places: dict[int, int] = {}  # of each event, in the new stream

    def fresh(self, buffer: Buffer, space: str, why: str) -> Buffer:
        """Another buffer of the same shape."""
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

    def copy(self, event: Event, source: Buffer, target: Buffer) -> None:
        """Vector copies a whole tile, at the line of the event that needs the memory."""
        self._move(replace(event, engine="vector", queue="vector", opcode="tensor_copy"), source, target)

    def dma(self, event: Event, source: Buffer, target: Buffer) -> None:
        """A DMA moves a whole tile, at the line of the event that needs the memory or the value."""
        self._move(replace(event, engine="dma", queue="sync", opcode="dma_copy"), source, target)

    def remake(self, tile: Tile, maker: Event) -> None:
        """The matmul that makes the tile's value, once more or later than it was written."""
        tile.now = self.fresh(tile.buffer, "psum", "again")
        (made,) = maker.writes
        attrs = {**maker.attrs, "spill": True} if tile.made else maker.attrs  # made late is not added
        self.out.append(_like(maker, len(self.out), maker.reads, (_in(made, tile.now),), attrs))

    def emit(self, event: Event) -> None:
        """An event of the kernel, on the buffers where its tiles are now."""
        self._places[event.index] = len(self.out)
        attrs = event.attrs
        if "depends_on" in attrs:  # it names events by their place in the stream
            attrs = {**attrs, "depends_on": tuple(self._places[index] for index in attrs["depends_on"])}
        reads, writes = tuple(map(self._redirect, event.reads)), tuple(map(self._redirect, event.writes))
        if attrs is event.attrs and event.index == len(self.out) and reads == event.reads and writes == event.writes:
            self.out.append(event)
        else:
            self.out.append(_like(event, len(self.out), reads, writes, attrs))

    def _move(self, like: Event, source: Buffer, target: Buffer) -> None:
        self.out.append(_like(like, len(self.out), (_whole(source),), (_whole(target),), {"spill": True}))

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
