"""Conflicts of queues that may reorder, found for all accesses of a stream at once, as columns of numbers.

An access conflicts with the last write to each footprint that it overlaps, unless a later write has covered that footprint,
and, if it writes, with the reads of that footprint since it was last covered. So what overlaps or covers what is asked once
per pair of footprints, and the rest are searches among sorted positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nki_hf.sim.stream.access_table import AccessTable, Ints
from nki_hf.sim.stream.footprint import Footprint, overlap

__all__ = ["RAW", "WAR", "WAW", "Found", "conflicts_in_columns"]

RAW, WAW, WAR = 0, 1, 3

_MOST = 64
"""Footprints that hang together, up to which all pairs of them are compared."""

_Bools = np.ndarray[Any, np.dtype[np.bool_]]


class Found(NamedTuple):
    """Pairs of accesses that conflict: positions of the later and of the earlier one, and the kind, all int64[pairs]."""

    consumers: Ints
    producers: Ints
    kinds: Ints


class _Bytes:
    """Distinct footprints as columns, see `Footprint`; `solid` where all bytes between the first and the last are touched."""

    def __init__(self, footprints: list[Footprint]) -> None:
        self.footprints = footprints
        columns = np.array([(f.lo, f.hi, f.p0, f.p1, f.dense, f.dense and f.certain) for f in footprints], np.int64).T
        self.lo, self.hi, self.p0, self.p1, self.dense, self.solid = columns

    def overlap(self, a: Ints, b: Ints) -> _Bools:
        """True for each pair that shares a byte, or is the same footprint."""
        box = (self.lo[a] < self.hi[b]) & (self.lo[b] < self.hi[a]) & (self.p0[a] < self.p1[b]) & (self.p0[b] < self.p1[a])
        unsure = np.flatnonzero(box & (a != b) & (self.dense[a] + self.dense[b] < 2))
        box[unsure] = self._asked(overlap, a[unsure], b[unsure])
        return np.asarray(box | (a == b))

    def covers(self, a: Ints, b: Ints) -> _Bools:
        """True for each pair of which a write to `a` leaves nothing of what was in `b`."""
        box = (self.lo[a] <= self.lo[b]) & (self.hi[b] <= self.hi[a]) & (self.p0[a] <= self.p0[b]) & (self.p1[b] <= self.p1[a])
        unsure = np.flatnonzero(box & (a != b) & (self.solid[a] == 0))
        box[unsure] = self._asked(Footprint.covers, a[unsure], b[unsure])
        return np.asarray(box | (a == b))

    def _asked(self, ask: Callable[[Footprint, Footprint], bool], a: Ints, b: Ints) -> _Bools:
        """The answer for each pair, asked once per distinct one."""
        count = len(self.footprints)
        pairs, place = np.unique(a * count + b, return_inverse=True)
        answers = [ask(self.footprints[pair // count], self.footprints[pair % count]) for pair in pairs.tolist()]
        return np.array(answers, np.bool_)[place.reshape(-1)]


class _Uses(NamedTuple):
    """The distinct pairs of a memory and a footprint in it; those whose bytes hang together stand side by side.

    Attributes:
      of: number of each access, int64[accesses].
      footprint: footprint of each, int64[uses].
      first, together: of each, the first of those that it hangs together with, and how many they are, int64[uses].
    """

    of: Ints
    footprint: Ints
    first: Ints
    together: Ints


class _Relation:
    """Pairs `(left, right)` of uses, sorted by `left`."""

    def __init__(self, uses: _Uses, left: Ints, right: Ints) -> None:
        self.uses, self.right, self.count = uses, right, np.bincount(left, minlength=len(uses.first))
        self.first = np.cumsum(self.count) - self.count

    def of(self, accesses: Ints) -> tuple[Ints, Ints]:
        """Each access with every use that its own is related to."""
        mine = self.uses.of[accesses]
        rows, places = _ranges(self.first[mine], self.count[mine])
        return accesses[rows], self.right[places]


def conflicts_in_columns(table: AccessTable, memory: Ints, footprint: Ints, footprints: list[Footprint]) -> tuple[Found, Ints]:
    """The conflicts, and the positions of the accesses that were left out because too many footprints hang together.

    Args:
      table: the accesses.
      memory: the memory of each, int64[accesses].
      footprint: position of each in `footprints`, int64[accesses].
      footprints: distinct patterns of bytes.
    """
    writes, reads = np.flatnonzero(table.writes), np.flatnonzero(~table.writes)
    if not len(writes):
        return Found(*[writes] * 3), writes
    patterns = _Bytes(footprints)
    uses = _uses(memory, footprint, patterns)
    step, begins = len(table.event) + 1, table.starts[table.event]  # of each access the first one of its event
    written, read = (np.bincount(uses.of[which], minlength=len(uses.first)) > 0 for which in (writes, reads))
    left, right = _overlapping(uses, written, patterns)

    cover = np.flatnonzero(written[left])
    cover = cover[patterns.covers(uses.footprint[left[cover]], uses.footprint[right[cover]])]
    at, use = _Relation(uses, left[cover], right[cover]).of(writes)
    keys = use * step + at
    order = np.argsort(keys)
    covered, at, itself = keys[order], at[order], (uses.of[at] == use)[order]  # by use, then by position

    def last_cover(access: Ints, use: Ints) -> tuple[Ints, _Bools]:
        """Where in `covered` a use was covered last before an access's event, and whether it was."""
        found = np.searchsorted(covered, use * step + begins[access]) - 1
        return found, (found >= 0) & (covered[found] >= use * step)

    kept = written[right]
    access, use = _Relation(uses, left[kept], right[kept]).of(np.arange(len(table.event)))
    last, known = last_cover(access, use)
    known &= itself[last]  # else another write has covered it since
    after_write = access[known], at[last[known]], np.where(table.writes[access[known]], WAW, RAW)

    read_keys = np.sort(uses.of[reads] * step + reads)
    kept = written[left] & read[right]
    access, use = _Relation(uses, left[kept], right[kept]).of(writes)
    last, known = last_cover(access, use)
    first = np.searchsorted(read_keys, use * step + np.where(known, at[last] + 1, 0))
    rows, places = _ranges(first, np.searchsorted(read_keys, use * step + begins[access]) - first)
    after_read = access[rows], read_keys[places] % step, np.full(len(rows), WAR)

    found = Found(*(np.concatenate(columns) for columns in zip(after_write, after_read, strict=True)))
    return found, np.flatnonzero((uses.together > _MOST)[uses.of])


def _uses(memory: Ints, footprint: Ints, patterns: _Bytes) -> _Uses:
    """Footprints of a memory hang together if their ranges of bytes overlap, or those of others between them do."""
    count = len(patterns.footprints)
    by_start = np.argsort(patterns.lo, kind="stable")
    rank = np.empty(count, np.int64)
    rank[by_start] = np.arange(count)
    keys, of = np.unique(memory * count + rank[footprint], return_inverse=True)
    memories, mine = keys // count, by_start[keys % count]
    base = np.cumsum(np.diff(memories, prepend=memories[0]) != 0) * (int(patterns.hi.max()) + 1)
    apart = (base + patterns.lo[mine])[1:] >= np.maximum.accumulate(base + patterns.hi[mine])[:-1]
    group = np.cumsum(np.concatenate([[0], apart]))
    begins = np.flatnonzero(np.concatenate([[True], apart]))
    return _Uses(of.reshape(-1), mine, begins[group], np.bincount(group)[group])


def _overlapping(uses: _Uses, written: _Bools, patterns: _Bytes) -> tuple[Ints, Ints]:
    """Pairs of uses that share bytes, at least one of them written, sorted by the first of the pair."""
    begins = np.flatnonzero(uses.first == np.arange(len(uses.first)))
    some = np.repeat(np.logical_or.reduceat(written, begins), uses.together[begins])
    mine = np.flatnonzero(some & (uses.together <= _MOST))
    rows, right = _ranges(uses.first[mine], uses.together[mine])
    left = mine[rows]
    kept = np.flatnonzero(written[left] | written[right])
    left, right = left[kept], right[kept]
    kept = np.flatnonzero(patterns.overlap(uses.footprint[left], uses.footprint[right]))
    return left[kept], right[kept]


def _ranges(first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """`first[i], first[i] + 1, ...`, `count[i]` of them, and the `i` of each."""
    rows = np.repeat(np.arange(len(count)), count)
    return rows, np.arange(len(rows)) + np.repeat(first - (np.cumsum(count) - count), count)
