"""Grants: on-chip memory, given to the first instruction in time that touches a tile.

Every other instruction that touches the tile waits for that memory too. A tile may be opened ahead of its turn only if all
tiles before it in program order still fit beside what was taken ahead (a banker's rule, so nothing can deadlock).
"""

from __future__ import annotations

from collections.abc import Iterator

from nki_hf.timing.times import Pool
from nki_hf.timing.workload import Workload

__all__ = ["UNTAKEN", "Grants"]

UNTAKEN = -2
"""In place of who freed a tile's memory: nobody has taken it yet."""

_NONE = 1 << 62
"""More bytes than there are."""


class _Shared(Pool):
    """One memory of one core and its tiles.

    Attributes:
      ranked: its tiles in program order.
      live: bytes in use when each of `ranked` opens in program order.
      spare: bytes that are never in use in program order.
      oldest: position of the first of `ranked` that is not taken yet.
      ahead: bytes held by tiles behind that one.
      blocked: instructions that wait, and the tile that did not fit.
      least: room from which on one of them could be served; 0 if the tile of one was taken by another instruction.
    """

    __slots__ = ("ahead", "blocked", "least", "live", "oldest", "ranked", "spare")

    def __init__(self, capacity: int, ranked: list[int], live: list[int]) -> None:
        super().__init__(capacity)
        self.ranked, self.live, self.spare = ranked, live, capacity - max(live)
        self.oldest = self.ahead = 0
        self.blocked: list[tuple[int, int]] = []
        self.least = _NONE


class Grants:
    """The memory of all tiles, as far as instructions were placed; of PSUM so many banks, None = all.

    Attributes:
      freed_by: per tile, the event that used its memory before it; -1 if none did, `UNTAKEN` before it is opened.
      freed_at: when that event had finished with it.
      left: uses of each tile that are still to come.
      until: when the latest use so far has finished.
      woken: pools whose blocked instructions should be asked again.
    """

    def __init__(self, work: Workload, banks: int | None = None) -> None:
        tiles = work.tiles
        count = len(tiles.pool)
        self.nbytes, self.touches = tiles.nbytes, tiles.touches
        self.freed_by, self.freed_at = [UNTAKEN] * count, [0.0] * count
        self.left, self.until = tiles.uses.copy(), [0.0] * count
        self.woken: list[_Shared] = []
        self._held = [0] * count  # bytes, while taken
        self._rank = [0] * count  # position in its pool's `ranked`
        self._waited = [False] * count  # True if an instruction is blocked that needs it
        pools = []
        for number, (_, name, size) in enumerate(tiles.pools):
            capacity = size if banks is None or name != "psum" else banks * int(work.chip.psum_bank_bytes)
            ranked, live = (column.tolist() for column in tiles.live(number))
            pools.append(_Shared(capacity, ranked, live))
            for rank, tile in enumerate(ranked):
                self._rank[tile] = rank
                if live[rank] > capacity:
                    raise MemoryError(
                        f"{name} overflows at event {tiles.first[tile]}: {live[rank]} B live of {capacity} B per partition."
                    )
        self._pool = [pools[number] for number in tiles.pool]

    def open(self, event: int) -> bool:
        """Take the memory of every tile that `event` touches and nobody took before; False if it must wait."""
        freed_by = self.freed_by
        wanted = [tile for tile in self.touches[event] if freed_by[tile] == UNTAKEN]
        if len(wanted) > 1:
            wanted.sort()  # program order
            if not self._fit_together(wanted, event):
                return False
        elif not self._fits(wanted[0]):
            self._block(event, wanted[0])
            return False
        for tile in wanted:
            pool, nbytes = self._pool[tile], self.nbytes[tile]
            self.freed_at[tile], freed_by[tile] = pool.take(nbytes)
            self._held[tile] = nbytes
            if self._waited[tile]:
                pool.least = 0
            if self._rank[tile] == pool.oldest:
                self._advance(pool)
            else:
                pool.ahead += nbytes
        return True

    def close(self, tile: int, event: int) -> None:
        """Give back the memory of a tile that `event` was the last to use."""
        pool, nbytes = self._pool[tile], self.nbytes[tile]
        pool.give(nbytes, self.until[tile], event)
        if self._rank[tile] >= pool.oldest:
            pool.ahead -= nbytes
        self._held[tile] = 0
        if pool.blocked and pool not in self.woken:
            self.woken.append(pool)

    def retry(self) -> Iterator[int]:
        """The instructions that waited for memory of the woken pools and may get it now, in program order."""
        woken, self.woken = self.woken, []
        waiting: list[tuple[int, int]] = []
        for pool in woken:
            if pool.room >= pool.least:
                waiting += pool.blocked
                pool.blocked, pool.least = [], _NONE
        waiting.sort()
        for _, tile in waiting:
            self._waited[tile] = False
        freed_by, pools, sizes, ranks, waited = self.freed_by, self._pool, self.nbytes, self._rank, self._waited
        refused: dict[_Shared, tuple[int, int]] = {}  # bytes and rank of a tile that did not fit, since anything was taken
        for event, tile in waiting:
            if freed_by[tile] == UNTAKEN:
                pool, nbytes, rank = pools[tile], sizes[tile], ranks[tile]
                least = refused.get(pool)
                # A tile as large as one that does not fit, and no earlier, does not fit either.
                known = least is not None and nbytes >= least[0] and rank >= least[1]
                if known or not self._fits(tile):
                    if not known:
                        refused[pool] = nbytes, rank
                    pool.blocked.append((event, tile))
                    pool.least = min(pool.least, nbytes)
                    waited[tile] = True
                    continue
            refused.clear()
            yield event

    def _block(self, event: int, tile: int) -> None:
        pool = self._pool[tile]
        pool.blocked.append((event, tile))
        pool.least = min(pool.least, self.nbytes[tile])
        self._waited[tile] = True

    def _advance(self, pool: _Shared) -> None:
        """Find the oldest tile that is not taken: the one before it has been."""
        ranked, freed_by, oldest = pool.ranked, self.freed_by, pool.oldest + 1
        while oldest < len(ranked) and freed_by[ranked[oldest]] != UNTAKEN:
            pool.ahead -= self._held[ranked[oldest]]
            oldest += 1
        pool.oldest = oldest
        if pool.blocked and pool not in self.woken:
            self.woken.append(pool)

    def _fit_together(self, wanted: list[int], event: int) -> bool:
        """True if all of them fit; if not, the event waits for the first that does not fit beside those before it."""
        fits, count = True, 0
        while fits and count < len(wanted):
            tile = wanted[count]
            fits = self._fits(tile)
            if fits:
                self._reserve(tile, self.nbytes[tile])
                count += 1
        for tile in wanted[:count]:
            self._reserve(tile, 0)
        if not fits:
            self._block(event, wanted[count])
        return fits

    def _reserve(self, tile: int, nbytes: int) -> None:
        """Hold `nbytes` for a tile in place of what is held for it."""
        pool, more = self._pool[tile], nbytes - self._held[tile]
        pool.room -= more
        pool.ahead += more
        self._held[tile] = nbytes

    def _fits(self, tile: int) -> bool:
        """True if there is room for `tile` and everything before it in program order still fits once it is taken."""
        pool, nbytes = self._pool[tile], self.nbytes[tile]
        if pool.room < nbytes:
            return False
        ahead = pool.ahead + nbytes
        if ahead <= pool.spare:
            return True
        ranked, live, held, room = pool.ranked, pool.live, self._held, pool.capacity - ahead
        for position in range(pool.oldest, self._rank[tile]):
            room += held[ranked[position]]
            if live[position] > room:
                return False
        return True
