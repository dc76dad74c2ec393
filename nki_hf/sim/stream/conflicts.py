"""Conflicts: which accesses of an event stream overlap earlier ones in memory, at least one of the two a write.

Queues in program order. Buffers that are accessed in the same order by the same patterns conflict within themselves in the
same way, and a loop that takes fresh tiles makes many such buffers. So each history, the sequence of accesses to one memory,
is worked out once, as positions in the sequence, and the rest is looking up which event stands at which position.

Queues that may reorder: sim/stream/conflict_columns.py, but for memories with very many footprints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from nki_hf.sim.stream.access_history import Access, Memory
from nki_hf.sim.stream.access_table import AccessTable, Ints
from nki_hf.sim.stream.conflict_columns import RAW, WAR, WAW, Found, conflicts_in_columns
from nki_hf.sim.stream.footprint import Footprint, footprint_of

__all__ = ["RAW", "WAR", "WAW", "Conflicts", "Placement", "conflicts_of"]

_FOOTPRINTS: dict[object, Footprint] = {}
"""Footprints that earlier calls have worked out, by everything that they depend on."""

Placement = Mapping[int, tuple[int, int]]
"""`(partition, byte)` of on-chip buffers, by `Buffer.number`."""


class Conflicts(NamedTuple):
    """Pairs of events of which the later one touches bytes of the earlier one, all int64[pairs], in order of `consumers`.

    Attributes:
      producers, consumers: event indices.
      kinds: `RAW`, `WAW` or `WAR`.
      buffers: number of the buffer that the producer accessed.
    """

    producers: Ints
    consumers: Ints
    kinds: Ints
    buffers: Ints


def conflicts_of(
    table: AccessTable, placement: Placement, queue_of: Ints | None, transfers: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> Conflicts:
    """The conflicts of a stream's accesses with what is not covered by later writes.

    Args:
      table: the accesses.
      placement: addresses of on-chip buffers without an explicit one; the others are compared by identity.
      queue_of: number of each event's queue, if queues run in program order: then a read that a queue repeats stands for
        its earlier ones. None keeps every read.
      transfers: True for each queue of DMA transfers, which may complete in any order: every read of theirs is kept.
    """
    memory, footprint, footprints = _memories(table, placement)
    if queue_of is None:
        found, rest = conflicts_in_columns(table, memory, footprint, footprints)
    else:
        found, rest = Found(*[np.zeros(0, np.int64)] * 3), np.arange(len(memory))
    if len(rest):
        more = _by_histories(table, memory, footprint, footprints, rest, queue_of, transfers)
        found = Found(*(np.concatenate(columns) for columns in zip(found, more, strict=True)))
    order = np.argsort(found.consumers, kind="stable")
    producer = found.producers[order]
    numbers = np.array([buffer.number for buffer in table.buffers], np.int64)
    return Conflicts(
        table.event[producer], table.event[found.consumers[order]], found.kinds[order], numbers[table.buffer[producer]]
    )


def _by_histories(
    table: AccessTable,
    memory: Ints,
    footprint: Ints,
    footprints: list[Footprint],
    which: Ints,
    queue_of: Ints | None,
    transfers: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> Found:
    """The conflicts among the accesses `which`, history by history."""
    order = which[np.argsort(memory[which], kind="stable")]
    memory, event = memory[order], table.event[order]
    new_memory = np.concatenate([[True], memory[1:] != memory[:-1]])
    new_event = new_memory.copy()
    new_event[1:] |= event[1:] != event[:-1]
    symbol = 4 * footprint[order] + 2 * table.writes[order] + new_event
    if queue_of is not None:
        symbol = symbol * (int(queue_of.max(initial=0)) + 1) + queue_of[event]
    firsts = np.flatnonzero(new_memory)
    written = np.logical_or.reduceat(table.writes[order], firsts)
    bounds = [*firsts.tolist(), len(memory)]
    histories: dict[bytes, list[int]] = {}  # where each distinct history stands in the sorted accesses
    for i in np.flatnonzero(written).tolist():
        histories.setdefault(symbol[bounds[i] : bounds[i + 1]].tobytes(), []).append(bounds[i])
    consumers, producers, kinds = [], [], []
    for key, begins in histories.items():
        begin = begins[0]
        part = slice(begin, begin + len(key) // symbol.itemsize)
        accesses = order[part]
        found = _within(
            [footprints[k] for k in footprint[accesses].tolist()],
            table.writes[accesses].tolist(),
            new_event[part].tolist(),
            None if queue_of is None else np.where(transfers[queue_of[event[part]]], -1, queue_of[event[part]]).tolist(),
        )
        if len(found):
            base = np.array(begins, np.int64)[:, None]
            consumers.append(order[(base + found[:, 0]).reshape(-1)])
            producers.append(order[(base + found[:, 1]).reshape(-1)])
            kinds.append(np.broadcast_to(found[:, 2], (len(begins), len(found))).reshape(-1))
    if not consumers:
        return Found(*[np.zeros(0, np.int64)] * 3)
    return Found(np.concatenate(consumers), np.concatenate(producers), np.concatenate(kinds))


def _memories(table: AccessTable, placement: Placement) -> tuple[Ints, Ints, list[Footprint]]:
    """Of each access the memory it is compared in (one per core) and its footprint there, and the footprints."""
    spaces: dict[object, int] = {}  # memories whose buffers are compared by address
    memory: Ints = np.arange(len(table.buffers))
    starts: dict[tuple[int, int] | None, int] = {None: 0}
    start: Ints = np.zeros(len(table.buffers), np.int64)
    addressed = [model.on_chip and model.address is not None for model in table.models]
    if placement or any(addressed):
        for place, buffer in enumerate(table.buffers):
            address = buffer.address if buffer.address is not None else placement.get(buffer.number)
            if address is not None and buffer.on_chip:
                space = (buffer.core, buffer.space)
                memory[place] = len(table.buffers) + spaces.setdefault(space, len(spaces))
                start[place] = starts.setdefault(address, len(starts))
    cores = np.array([core for core, _, _, _ in table.heads], np.int64)
    core = cores[table.head][table.event]
    wanted, place_of = np.arange(len(table.forms)), table.form
    if len(starts) > 1:
        wanted, place_of = np.unique(table.form * len(starts) + start[table.buffer], return_inverse=True)
    same: dict[object, int] = {}
    footprints: list[Footprint] = []
    if len(_FOOTPRINTS) > 100_000:
        _FOOTPRINTS.clear()
    number = []
    at = list(starts)
    for form, begins in zip(*(column.tolist() for column in np.divmod(wanted, len(starts))), strict=True):
        region, begin = table.forms[form], at[begins]
        b = region.buffer
        pattern = (region.offset, region.shape, region.strides, region.dtype.itemsize, region.indirect)
        key = (pattern, b.shape, b.dtype.itemsize, b.on_chip, begin)
        known = same.setdefault(key, len(same))
        number.append(known)
        if known == len(footprints):
            footprint = _FOOTPRINTS.get(key)
            if footprint is None:
                footprint = footprint_of(region)
                footprint = _FOOTPRINTS[key] = footprint if begin is None else footprint.moved(*begin)
            footprints.append(footprint)
    return (
        memory[table.buffer] * (int(cores.max(initial=0)) + 1) + core,
        np.array(number, np.int64)[place_of.reshape(-1)],
        footprints,
    )


def _within(
    footprints: list[Footprint], writes: list[bool], new_event: list[bool], queues: list[int] | None
) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """The conflicts within one history that has a write, `(later position, earlier position, kind)`, int64[conflicts, 3].

    `queues` is the queue of each access in whose order it completes, -1 if it has none.
    """
    memory = Memory()
    found: list[tuple[int, int, int]] = []
    last = len(writes) - 1 - writes[::-1].index(True)
    begin = 0
    for end in range(1, len(footprints) + 1):
        if end < len(footprints) and not new_event[end]:
            continue
        if begin > last:
            break
        accesses = []
        for at in range(begin, end):  # one event's: all are compared before any is noted
            footprint = footprints[at]
            if memory.writes is not None:
                kind = WAW if writes[at] else RAW
                found += [(at, item[2], kind) for item in memory.writes.overlapping(footprint)]
            if writes[at] and memory.reads is not None:
                found += [(at, item[2], WAR) for item in memory.reads.overlapping(footprint)]
            accesses.append(Access(footprint, at if queues is None else queues[at], at, 0))
        for access in accesses:
            if writes[access.event]:
                memory.note_write(access)
            else:
                memory.note_read(access, queues is not None and access.queue >= 0)
        begin = end
    # Nothing waits for the reads that are left, and what they wait for depends on their bytes alone.
    needed: dict[int, list[int]] = {}
    for at in range(begin, len(footprints)):
        footprint = footprints[at]
        if id(footprint) not in needed:
            assert memory.writes is not None  # noqa: S101  (the last write is among what was noted)
            needed[id(footprint)] = [item[2] for item in memory.writes.overlapping(footprint)]
        found += [(at, earlier, RAW) for earlier in needed[id(footprint)]]
    return np.array(found, np.int64).reshape(-1, 3)
