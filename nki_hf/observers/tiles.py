"""Tiles: the on-chip buffers of an event stream that share a memory, and which instructions use them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from nki_hf.chips import Chip
from nki_hf.sim.access_table import AccessTable, Ints
from nki_hf.sim.memory import taken_bytes

__all__ = ["Tiles"]


@dataclass(frozen=True)
class Tiles:
    """Every on-chip buffer without an explicit address, in order of its first instruction, as columns.

    Attributes:
      pools: the memories they take room in: `(core, space, capacity in bytes per partition)`.
      pool: position in `pools` of each tile.
      nbytes: bytes per partition that it takes.
      first: the event that touches it first in program order.
      last: the event that touches it last in program order.
      event, tile: every use, in order of `event`; of one event what it writes before what it reads, int64[uses].
      starts: the first use of each event, int64[events + 1].
      of_buffer: the tile of each `Buffer.number`, -1 if it is none, and -1 once more at the end, int64[numbers + 1].
    """

    pools: list[tuple[int, str, int]]
    pool: list[int]
    nbytes: list[int]
    first: list[int]
    last: list[int]
    event: Ints
    tile: Ints
    starts: Ints
    of_buffer: Ints

    @classmethod
    def of(cls, table: AccessTable, chip: Chip) -> Tiles:
        """The tiles of a stream on `chip`."""
        buffer, event = _touched(table)
        _, first_use = np.unique(buffer, return_index=True)
        first_use.sort()
        taken = buffer[first_use]  # buffers in order of first touch
        number = np.zeros(len(table.buffers), np.int64)
        number[taken] = np.arange(len(taken))
        tile = number[buffer]
        last = np.zeros(len(taken), np.int64)
        last[tile] = event  # ascending, so that the last one stays
        first = event[first_use]
        pools: dict[tuple[int, str], int] = {}
        core_of_head = [head[0] for head in table.heads]
        models = table.model[taken].tolist()
        cores = [core_of_head[head] for head in table.head[first].tolist()]
        size = [taken_bytes(model, chip) for model in table.models]
        capacity = {"sbuf": int(chip.sbuf_partition_bytes), "psum": int(chip.psum_partition_bytes)}
        pool = [
            pools.setdefault((core, table.models[model].space), len(pools)) for core, model in zip(cores, models, strict=True)
        ]
        numbers = np.array([item.number for item in table.buffers], np.int64)
        of_buffer = np.full(int(numbers.max(initial=-1)) + 2, -1, np.int64)
        of_buffer[numbers[taken]] = np.arange(len(taken))
        return cls(
            pools=[(core, space, capacity[space]) for core, space in pools], pool=pool,
            nbytes=[size[model] for model in models], first=first.tolist(), last=last.tolist(), event=event, tile=tile,
            starts=np.searchsorted(event, np.arange(len(table.head) + 1)), of_buffer=of_buffer,
        )  # fmt: skip

    @cached_property
    def _in_order(self) -> tuple[Ints, Ints]:
        """The uses ordered by event and tile: one number for both of each, and its position among the uses."""
        uses = self.event * len(self.pool) + self.tile
        order = np.argsort(uses, kind="stable")
        return uses[order], order

    @cached_property
    def touches(self) -> list[list[int]]:
        """Events -> the tiles that each of them uses, what it writes before what it reads."""
        flat = self.tile.tolist()
        return [flat[begin:end] for begin, end in pairwise(self.starts.tolist())]

    def uses_except(self, events: Ints, tiles: Ints) -> list[tuple[int, ...]]:
        """Events -> the tiles that each of them uses, without the given pairs, which are uses; few are left."""
        uses, order = self._in_order
        left = np.ones(len(uses), np.bool_)
        left[order[np.searchsorted(uses, events * len(self.pool) + tiles)]] = False
        found: list[tuple[int, ...]] = [()] * (len(self.starts) - 1)
        for event, tile in zip(self.event[left].tolist(), self.tile[left].tolist(), strict=True):
            found[event] += (tile,)
        return found

    def live(self, pool: int) -> tuple[Ints, Ints]:
        """The tiles of a pool, and the bytes in use in program order as each of them is opened."""
        tiles = np.flatnonzero(np.array(self.pool, np.int64) == pool)
        nbytes, first, last = (np.array(column, np.int64)[tiles] for column in (self.nbytes, self.first, self.last))
        order = np.argsort(last, kind="stable")
        closed = np.concatenate([[0], np.cumsum(nbytes[order])])
        return tiles, np.cumsum(nbytes) - closed[np.searchsorted(last[order], first)]

    def overflows(self) -> bool:
        """True if, in program order, the tiles between their first and last use exceed a pool somewhere."""
        return any(int(self.live(pool)[1].max(initial=0)) > item[2] for pool, item in enumerate(self.pools))


def _touched(table: AccessTable) -> tuple[Ints, Ints]:
    """Buffers that share a memory, once per event and what it writes first, and the event that touches each."""
    position = np.arange(len(table.event)) - table.starts[table.event]
    reads = table.reads[table.event]
    writes = np.diff(table.starts)[table.event] - reads
    order = np.empty(len(position), np.int64)
    order[table.starts[table.event] + np.where(position < reads, position + writes, position - reads)] = np.arange(
        len(position)
    )
    buffer, event = table.buffer[order], table.event[order]
    pooled = np.array([model.on_chip and model.address is None for model in table.models], np.bool_)[table.model]
    shared = pooled[buffer]
    buffer, event = buffer[shared], event[shared]
    _, once = np.unique(event * len(table.buffers) + buffer, return_index=True)
    once.sort()
    return buffer[once], event[once]
