"""Tiles: the on-chip buffers of an event stream that share a memory, and which instructions use them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nki_hf.chips import Chip
from nki_hf.sim.stream.access_table import AccessTable, Ints
from nki_hf.sim.stream.memory import taken_bytes

__all__ = ["Tiles"]


@dataclass(frozen=True, slots=True)
class Tiles:
    """Every on-chip buffer without an explicit address, in order of its first instruction, as columns.

    Attributes:
      pools: the memories they take room in: `(core, space, capacity in bytes per partition)`.
      pool: position in `pools` of each tile.
      nbytes: bytes per partition that it takes.
      first: the event that touches it first in program order.
      last: the event that touches it last in program order.
      uses: how many events touch it.
      touches: events -> the tiles that an instruction uses, what it writes before what it reads.
    """

    pools: list[tuple[int, str, int]]
    pool: list[int]
    nbytes: list[int]
    first: list[int]
    last: list[int]
    uses: list[int]
    touches: list[list[int]]

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
        bounds = np.searchsorted(event, np.arange(len(table.head) + 1)).tolist()
        flat = tile.tolist()
        return cls(
            pools=[(core, space, capacity[space]) for core, space in pools],
            pool=pool,
            nbytes=[size[model] for model in models],
            first=first.tolist(),
            last=last.tolist(),
            uses=np.bincount(tile, minlength=len(taken)).tolist(),
            touches=[flat[begin:end] for begin, end in pairwise(bounds)],
        )

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
