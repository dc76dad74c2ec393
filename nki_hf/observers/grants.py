"""Grants: on-chip memory, given to the first instruction in time that touches a tile.

Every other instruction that touches the tile waits for that memory too. A tile may be opened ahead of its turn only if all
tiles before it in program order still fit beside what was taken ahead (a banker's rule, so nothing can deadlock).
"""

from __future__ import annotations

from collections.abc import Iterator

from nki_hf.observers.times import Pool
from nki_hf.observers.workload import Workload

__all__ = ["UNTAKEN", "Grants"]

UNTAKEN = -2
"""In place of who freed a tile's memory: nobody has taken it yet."""


class Grants:
    """The memory of all tiles, as far as instructions were placed.

    Attributes:
      freed_by: per tile, the event that used its memory before it; -1 if none did, `UNTAKEN` before it is opened.
      freed_at: when that event had finished with it.
      left: uses of each tile that are still to come.
      until: when the latest use so far has finished.
      woken: pools whose blocked instructions should be asked again.
    """

    def __init__(self, work: Workload) -> None:
        tiles = work.tiles
        self.pool, self.nbytes, self.touches = tiles.pool, tiles.nbytes, tiles.touches
        count = len(tiles.pool)
        self.freed_by, self.freed_at = [UNTAKEN] * count, [0.0] * count
        self.left, self.until = tiles.uses.copy(), [0.0] * count
        self.woken: list[int] = []
        self._pools = [Pool.of(capacity) for _, _, capacity in tiles.pools]
        self._free = [pool.capacity for pool in self._pools]  # bytes that no tile holds
        self._held = [0] * count  # bytes, while taken
        self._ahead = [0] * len(self._pools)  # bytes held by tiles behind the oldest one that is not taken yet
        # Instructions that wait, and the tile that did not fit, by its pool.
        self._blocked: list[list[tuple[int, int]]] = [[] for _ in self._pools]
        # Per pool: its tiles in program order, each one's rank, and what is live when it opens in program order.
        self._ranked: list[list[int]] = []
        self._rank = [0] * count
        self._oldest = [0] * len(self._pools)
        self._live: list[list[int]] = []
        for pool, (_, name, capacity) in enumerate(tiles.pools):
            ranked, live = (column.tolist() for column in tiles.live(pool))
            self._ranked.append(ranked)
            self._live.append(live)
            for rank, tile in enumerate(ranked):
                self._rank[tile] = rank
                if live[rank] > capacity:
                    raise MemoryError(
                        f"{name} overflows at event {tiles.first[tile]}: {live[rank]} B live of {capacity} B per partition."
                    )
        self._peak = [max(live) for live in self._live]

    def open(self, event: int) -> bool:
        """Take the memory of every tile that `event` touches and nobody took before; False if it must wait."""
        freed_by = self.freed_by
        wanted = [tile for tile in self.touches[event] if freed_by[tile] == UNTAKEN]
        if len(wanted) > 1:
            wanted.sort()  # program order
        for count, tile in enumerate(wanted):
            pool, nbytes = self.pool[tile], self.nbytes[tile]
            if not self._fits(tile):
                for other in wanted[:count]:
                    self._held[other] = 0
                    self._ahead[self.pool[other]] -= self.nbytes[other]
                    self._free[self.pool[other]] += self.nbytes[other]
                self._blocked[pool].append((event, tile))
                return False
            self._held[tile] = nbytes
            self._ahead[pool] += nbytes
            self._free[pool] -= nbytes
        for tile in wanted:
            pool = self.pool[tile]
            self.freed_at[tile], freed_by[tile] = self._pools[pool].take(self.nbytes[tile])
            ranked, oldest = self._ranked[pool], self._oldest[pool]
            if ranked[oldest] == tile:
                while oldest < len(ranked) and freed_by[ranked[oldest]] != UNTAKEN:
                    self._ahead[pool] -= self._held[ranked[oldest]]
                    oldest += 1
                self._oldest[pool] = oldest
                if self._blocked[pool]:
                    self._wake(pool)
        return True

    def close(self, tile: int, event: int) -> None:
        """Give back the memory of a tile that `event` was the last to use."""
        pool, nbytes = self.pool[tile], self.nbytes[tile]
        self._pools[pool].give(nbytes, self.until[tile], event)
        if self._rank[tile] >= self._oldest[pool]:
            self._ahead[pool] -= nbytes
        self._held[tile] = 0
        self._free[pool] += nbytes
        if self._blocked[pool]:
            self._wake(pool)

    def retry(self) -> Iterator[int]:
        """The instructions that waited for memory of the woken pools and may get it now, in program order."""
        woken, self.woken = self.woken, []
        waiting: list[tuple[int, int]] = []
        for pool in woken:
            waiting += self._blocked[pool]
            self._blocked[pool] = []
        waiting.sort()
        for event, tile in waiting:
            if self.freed_by[tile] != UNTAKEN or self._fits(tile):
                yield event
            else:
                self._blocked[self.pool[tile]].append((event, tile))

    def _wake(self, pool: int) -> None:
        if pool not in self.woken:
            self.woken.append(pool)

    def _fits(self, tile: int) -> bool:
        """True if there is room for `tile` and everything before it in program order still fits once it is taken."""
        pool, nbytes = self.pool[tile], self.nbytes[tile]
        if self._free[pool] < nbytes:
            return False
        ahead, capacity = self._ahead[pool] + nbytes, self._pools[pool].capacity
        if self._peak[pool] + ahead <= capacity:
            return True
        ranked, live, held = self._ranked[pool], self._live[pool], self._held
        for position in range(self._oldest[pool], self._rank[tile]):
            ahead -= held[ranked[position]]
            if live[position] + ahead > capacity:
                return False
        return True
