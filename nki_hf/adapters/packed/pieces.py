"""Pieces: packed sequences cut into blocks of queries and keys of a few fixed sizes, whatever the sequences' lengths are.

Each kind of piece is one kernel program: a launch takes a fixed number of pieces, and which rows and keys they are is data
(index tensors). So the number of programs does not depend on lengths, and no tile outside of a sequence's own block is visited.

Source of the tile sizes: kernels/spans.py (tiles of 128 rows, key blocks of 512).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nki_hf.problem import Band, chunk_begin

__all__ = ["KINDS", "TILE", "Kind", "Launch", "Pieces", "Segments", "cut"]

Array = np.ndarray[Any, Any]

TILE, BLOCK = 128, 512
_CACHE_KEYS = (512, 2048)
"""Keys of a decode piece; longer caches double from here."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of piece.

    Attributes:
      name: for reports.
      rows, keys: query rows and keys of a piece.
      pieces: how many one launch takes.
      mask: what hides keys: `causal` (row i sees keys 0 to i; static), `keys` (one bool per key) or `bounds` (first and last
        key of each row).
    """

    name: str
    rows: int
    keys: int
    pieces: int
    mask: str

    @property
    def shared(self) -> bool:
        """True if further pieces may hold keys of its rows: then it returns the statistics that join them."""
        return self.rows > 1

    @property
    def tiles(self) -> int:
        """Tiles of 128 rows x 128 keys that a piece visits."""
        rows, keys = -(-self.rows // TILE), -(-self.keys // TILE)
        return rows * (rows + 1) // 2 if self.mask == "causal" else rows * keys


KINDS = {
    kind.name: kind
    for kind in (
        Kind(name="diagonal 128", rows=TILE, keys=TILE, pieces=16, mask="causal"),
        Kind(name="diagonal 256", rows=2 * TILE, keys=2 * TILE, pieces=4, mask="causal"),
        Kind(name="diagonal 512", rows=BLOCK, keys=BLOCK, pieces=4, mask="causal"),
        Kind(name="full 128", rows=TILE, keys=BLOCK, pieces=8, mask="keys"),
        Kind(name="full 512", rows=BLOCK, keys=BLOCK, pieces=4, mask="keys"),
        Kind(name="edge", rows=TILE, keys=BLOCK, pieces=8, mask="bounds"),
    )
}
"""Every kind but those of decode, which differ in the keys of a cache (`_decode`)."""
_DECODED = 16


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Which rows and keys belong together, and what each row sees of its own sequence.

    Attributes:
      cu_q, cu_kv: first row and first key of each sequence and the total, `[num_sequences + 1]`.
      window, ahead: as in `Band`, of positions that are aligned so that the last row of a sequence stands at its last key.
      chunk: length of the chunks of keys that rows see their own of, counted from each sequence's first; None = none.
    """

    cu_q: tuple[int, ...]
    cu_kv: tuple[int, ...]
    window: int | None = None
    ahead: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Launch:
    """The pieces of one launch, as data.

    Attributes:
      kind: of all of them.
      rows: row of the pack of each row of each piece, int64 `[pieces, kind.rows]`; where there is none, another of the same
        sequence, whose result nobody reads. Idle pieces repeat the last one's rows and keys: their gradients are zero times
        what those hold, and NaN of one sequence must not reach another.
      keys: the same of the keys, `[pieces, kind.keys]`.
      lo, hi: int32 `[pieces, kind.rows]` for `bounds`: the keys of the piece that each row sees.
      seen: bool `[pieces, kind.keys]` for `keys`.
    """

    kind: Kind
    rows: Array
    keys: Array
    lo: Array | None = None
    hi: Array | None = None
    seen: Array | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Pieces:
    """A pack in pieces.

    Attributes:
      launches: in the order of their results.
      slots: int64 `[rows, parts]`: where the parts of each row's result lie among all rows of all launches; the number of
        those rows where a row has fewer parts.
      needed: tiles of 128 rows x 128 keys, counted in each sequence from its first row and key, that hold a visible key.
      visited: such tiles of the pieces that were asked for.
      idle: such tiles of the pieces that fill the launches.
    """

    launches: tuple[Launch, ...]
    slots: Array
    needed: int
    visited: int
    idle: int


@dataclass(frozen=True)
class _Piece:
    kind: Kind
    row: int
    rows: int
    key: int
    keys: int
    sequence: tuple[int, int, int, int]
    """First and past the last row and key."""

    @property
    def tiles(self) -> int:
        """Tiles that it visits; a decode kernel leaves out what lies behind the last visible key."""
        return -(-self.keys // TILE) if self.kind.rows == 1 else self.kind.tiles


@functools.lru_cache(maxsize=16)
def cut(segments: Segments) -> Pieces:
    """The pieces of a pack. The layers of a model ask for the same again, so the latest answers are kept."""
    found: list[_Piece] = []
    needed = 0
    total = segments.cu_q[-1]
    lo, hi = np.zeros(total, np.int64), np.zeros(total, np.int64)
    for n in range(len(segments.cu_q) - 1):
        sequence = (segments.cu_q[n], segments.cu_q[n + 1], segments.cu_kv[n], segments.cu_kv[n + 1])
        first, last, _, _ = sequence
        lo[first:last], hi[first:last] = _seen(segments, sequence)
        needed += _tiles(sequence, lo, hi)
        found.extend(_of_sequence(segments, sequence, lo, hi))
    kinds = sorted({piece.kind for piece in found}, key=lambda kind: (kind.keys, kind.rows, kind.name))
    parts = np.zeros(total, np.int64)
    for piece in found:
        parts[piece.row : piece.row + piece.rows] += 1
    slots = np.full((total, int(parts.max(initial=0))), -1, np.int64)
    launches, offset, idle = [], 0, 0
    parts[:] = 0
    for kind in kinds:
        same = [piece for piece in found if piece.kind == kind]
        for begin in range(0, len(same), kind.pieces):
            group = same[begin : begin + kind.pieces]
            launches.append(_launch(kind, group, lo, hi))
            for number, piece in enumerate(group):
                rows = np.arange(piece.row, piece.row + piece.rows)
                slots[rows, parts[rows]] = offset + number * kind.rows + np.arange(piece.rows)
                parts[rows] += 1
            offset += kind.pieces * kind.rows
            idle += (kind.pieces - len(group)) * kind.tiles
    slots[slots < 0] = offset
    visited = sum(piece.tiles for piece in found)
    return Pieces(launches=tuple(launches), slots=slots, needed=needed, visited=visited, idle=idle)


def _seen(segments: Segments, sequence: tuple[int, int, int, int]) -> tuple[Array, Array]:
    """First and past the last visible key of each row of a sequence, as keys of the pack."""
    first, last, key, end = sequence
    position = np.arange(first, last) + (end - last)
    lo, hi = np.full(last - first, key), np.full(last - first, end)
    if segments.chunk is not None:
        lo = chunk_begin(position, lo, segments.chunk)
    lo, hi = Band(window=segments.window, ahead=segments.ahead).cut(position, lo, hi)
    hi = np.maximum(hi, key)
    return np.minimum(lo, hi), hi


def _tiles(sequence: tuple[int, int, int, int], lo: Array, hi: Array) -> int:
    first, last, key, _ = sequence
    count = 0
    for begin in range(first, last, TILE):
        low, high = _union(lo[begin : min(begin + TILE, last)], hi[begin : min(begin + TILE, last)])
        if low < high:
            count += -(-(high - key) // TILE) - (low - key) // TILE
    return count


def _union(lo: Array, hi: Array) -> tuple[int, int]:
    """First and past the last key that any of these rows sees."""
    some = lo < hi
    return (int(lo[some].min()), int(hi[some].max())) if some.any() else (0, 0)


def _of_sequence(segments: Segments, sequence: tuple[int, int, int, int], lo: Array, hi: Array) -> Iterable[_Piece]:
    first, last, _, end = sequence
    alive = np.flatnonzero(lo[first:last] < hi[first:last])
    if not len(alive):
        return
    first, last = first + int(alive[0]), first + int(alive[-1]) + 1
    if last - first == 1:
        yield _decode(sequence, first, int(lo[first]), int(hi[first]))
        return
    for row, size in _runs(first, last):
        stop = min(row + size, last)
        diagonal = row + end - sequence[1]  # the key at which the first row stands
        low, high = _union(lo[row:stop], hi[row:stop])
        if segments.ahead == 1 and (lo[row:stop] <= diagonal).all():
            yield _Piece(KINDS[f"diagonal {size}"], row, stop - row, diagonal, stop - row, sequence)
            yield from _blocks(sequence, row, stop, low, diagonal, lo, hi)
        elif (lo[row:stop] == low).all() and (hi[row:stop] == high).all():
            yield from _blocks(sequence, row, stop, low, high, lo, hi)
        else:
            for tile in range(row, stop, TILE):
                after = min(tile + TILE, stop)
                yield from _blocks(sequence, tile, after, *_union(lo[tile:after], hi[tile:after]), lo, hi)


def _runs(first: int, last: int) -> Iterable[tuple[int, int]]:
    """First row and size of each run of rows: as many of 512 as there are, then what is left in 512, 256 and 128."""
    row = first
    while row < last:
        tiles = -(-(last - row) // TILE)
        size = TILE * (4 if tiles >= 4 else 2 if tiles >= 2 else 1)
        yield row, size
        row += size


def _blocks(
    sequence: tuple[int, int, int, int], row: int, stop: int, key: int, end: int, lo: Array, hi: Array
) -> Iterable[_Piece]:
    """Pieces of rows `[row, stop)` against keys `[key, end)`: full ones where no row's edge lies in a block of keys."""
    for begin in range(key, end, BLOCK):
        after = min(begin + BLOCK, end)
        if stop - row > 2 * TILE and (lo[row:stop] <= begin).all() and (hi[row:stop] >= after).all():
            yield _Piece(KINDS["full 512"], row, stop - row, begin, after - begin, sequence)
            continue
        for tile in range(row, stop, TILE):
            rows = slice(tile, min(tile + TILE, stop))
            some = (lo[rows] < after) & (hi[rows] > begin)
            if some.any():
                whole = (lo[rows] <= begin).all() and (hi[rows] >= after).all()
                kind = KINDS["full 128" if whole else "edge"]
                yield _Piece(kind, tile, rows.stop - tile, begin, after - begin, sequence)


def _decode(sequence: tuple[int, int, int, int], row: int, lo: int, hi: int) -> _Piece:
    keys = _CACHE_KEYS[0]
    while keys < hi - lo:
        keys = max(2 * keys, _CACHE_KEYS[1])
    kind = Kind(name=f"decode {keys}", rows=1, keys=keys, pieces=_DECODED, mask="bounds")
    return _Piece(kind, row, 1, lo, hi - lo, sequence)


def _launch(kind: Kind, group: Sequence[_Piece], lo: Array, hi: Array) -> Launch:
    rows = np.zeros((kind.pieces, kind.rows), np.int64)
    keys = np.zeros((kind.pieces, kind.keys), np.int64)
    low, high = np.zeros((kind.pieces, kind.rows), np.int32), np.zeros((kind.pieces, kind.rows), np.int32)
    seen = np.ones((kind.pieces, kind.keys), np.bool_)
    for number, piece in enumerate(group):
        _, stop, _, end = piece.sequence
        rows[number] = np.minimum(np.arange(piece.row, piece.row + kind.rows), stop - 1)
        keys[number] = np.minimum(np.arange(piece.key, piece.key + kind.keys), end - 1)
        seen[number, piece.keys :] = False
        own = slice(piece.row, piece.row + piece.rows)
        low[number, : piece.rows] = np.clip(lo[own] - piece.key, 0, piece.keys)
        high[number, : piece.rows] = np.clip(hi[own] - piece.key, 0, piece.keys)
    last = len(group) - 1
    rows[last + 1 :], keys[last + 1 :] = rows[last], keys[last]
    seen[last + 1 :] = seen[last]
    if kind.mask == "bounds":
        return Launch(kind=kind, rows=rows, keys=keys, lo=low, hi=high)
    return Launch(kind=kind, rows=rows, keys=keys, seen=seen if kind.mask == "keys" else None)
