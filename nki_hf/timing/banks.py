"""How many banks of PSUM a window's schedule is given: the number with which it ends first.

A list scheduler that may take more memory ahead can end later. But nobody has to take it: a schedule that uses fewer banks
is a schedule for more. So every number of banks that is a power of two, and enough in program order, is tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nki_hf.sim.beside import in_two
from nki_hf.timing.lookahead import Lookahead
from nki_hf.timing.times import Times
from nki_hf.timing.window_order import run_in_window, run_in_window_below
from nki_hf.timing.workload import Workload

__all__ = ["WORTH_A_PROCESS", "best_in_window", "fewer_banks"]

WORTH_A_PROCESS = 4_000
"""Instructions from which half of the schedules take longer than to fork."""
_Found = tuple[float, int, Times]


def best_in_window(ahead: Lookahead, known: Mapping[int | None, Times]) -> tuple[Times, int | None]:
    """The schedule that ends first, of several the one with most banks first, then with fewest.

    Args:
      ahead: the workload and its window.
      known: times by number of banks, None for all, that were found before.

    Returns:
      The times, and the number of banks if they are fewer than all.
    """
    counts: list[int | None] = [None, *fewer_banks(ahead.work)]
    found: list[_Found] = []

    def best(places: Sequence[int]) -> _Found:
        """When the best of some ends, which it is, and its times; whatever cannot end before one that was found is left."""
        for place in places:
            times = known.get(counts[place])
            if times is None and not found:
                times = run_in_window(ahead, counts[place])
            elif times is None:
                times = run_in_window_below(ahead, _first(found)[0], counts[place])
            if times is not None:
                found.append((float(times.done.max(initial=0.0)), place, times))
        return _first(found)

    def theirs() -> bytes:
        _, place, times = best(half)
        return bytes([place]) + times.packed()

    half = range(len(counts) - 1, 0, -2)  # first what has many banks and ends soon, which is the limit of what has few
    rest = [place for place in range(len(counts)) if place not in half]
    if not half:
        return best(rest)[2], None
    chosen, data = in_two(lambda: best(rest), theirs, worth=len(ahead.work.kind) >= WORTH_A_PROCESS)
    times = Times.unpacked(data[1:])
    chosen = _first([chosen, (float(times.done.max()), data[0], times)])
    return chosen[2], counts[chosen[1]]


def _first(found: Sequence[_Found]) -> _Found:
    return min(found, key=lambda item: item[:2])


def fewer_banks(work: Workload) -> list[int]:
    """Powers of two that are fewer banks of PSUM than there are and hold what lives at once in program order; none where the
    kernel pins every instruction that uses PSUM, since nothing is taken ahead then.
    """
    tiles, bank = work.tiles, int(work.chip.psum_bank_bytes)
    pools = {number for number, (_, space, _) in enumerate(tiles.pools) if space == "psum"}
    used = [number in pools for number in tiles.pool]
    pinned = work.no_reorder
    if not pools or all(pinned[i] for i, touched in enumerate(tiles.touches) if any(used[tile] for tile in touched)):
        return []
    live = max(int(tiles.live(number)[1].max(initial=0)) for number in pools)
    most = max(tiles.pools[number][2] for number in pools)
    return [1 << n for n in range(most.bit_length()) if live <= (1 << n) * bank < most]
