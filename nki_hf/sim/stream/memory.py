"""Memory: how long each tile lives on chip, where it lies, and whether everything fits; judged from the event stream.

Rules.

* A tile lives from the first instruction that touches it to the last one, in program order. A tile that no instruction
  touches takes no memory. (The compiler may reorder independent instructions, which can only lengthen lifetimes: a kernel
  that overflows here overflows there, the opposite is not promised. Hence the reserve that kernels keep.)
* An SBUF tile takes its bytes per partition in every partition, however many it uses, rounded up to 4 bytes.
* A PSUM tile takes whole banks (nki/migration/index.rst: "The allocation for PSUM tensors must start at the beginning of
  each bank").
* Tiles with an explicit `address=(partition, byte)` lie there and may share bytes, on purpose or not. That is a fault only
  if a tile is read where another tile wrote last: on the chip it would read the other tile's bytes. Adding to a tile and
  leaving some of its elements alone read it too; a read through run-time indices may read all of it.
* A tile without an address needs one piece: larger than every gap between the addressed tiles of its lifetime is a fault.
* Capacity is the documented size: `sbuf_partition_bytes`, `psum_partition_bytes` in chips/.

Other tiles are placed first fit in order of first use, outside the bytes of addressed tiles that live at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nki_hf.chips import Chip
from nki_hf.sim.stream.events import Buffer, Event

__all__ = ["Lifetime", "Occupancy", "lifetimes", "occupancies", "placement", "taken_bytes"]

_ALIGN = 4


@dataclass(frozen=True, slots=True, eq=False)
class Lifetime:
    """One on-chip tile from its first to its last access.

    Attributes:
      buffer: the tile.
      first, last: event indices, both inclusive.
      nbytes: bytes per partition that it takes (see the module for the rounding).
    """

    buffer: Buffer
    first: int
    last: int
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Occupancy:
    """How much of one core's SBUF or PSUM the tiles take over a run.

    Attributes:
      core: program id.
      space: `sbuf` or `psum`.
      capacity: documented bytes per partition.
      high_water: the largest number of bytes per partition alive at once; explicit addresses that share bytes count once.
      at: event index at which the high-water mark is first reached.
      holders: the tiles alive there, largest first.
      timeline: `(event index, bytes)` at each change.
    """

    core: int
    space: str
    capacity: int
    high_water: int
    at: int
    holders: tuple[Lifetime, ...]
    timeline: tuple[tuple[int, int], ...]


def taken_bytes(buffer: Buffer, chip: Chip) -> int:
    """Bytes per partition that a tile takes, rounded as the module says."""
    step = int(chip.psum_bank_bytes) if buffer.space == "psum" else _ALIGN
    return -(-buffer.bytes_per_partition // step) * step


def lifetimes(events: Sequence[Event], chip: Chip) -> list[Lifetime]:
    """The on-chip tiles of a run, in order of first access."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    buffers: dict[int, Buffer] = {}
    for index, event in enumerate(events):
        for region in (*event.reads, *event.writes):
            buffer = region.buffer
            number = buffer.number
            if number in last:
                last[number] = index
            elif number not in buffers:
                buffers[number] = buffer
                if buffer.space == "sbuf" or buffer.space == "psum":
                    first[number] = last[number] = index
    taken: dict[tuple[str, tuple[int, ...], int], int] = {}
    found = []
    for number, start in first.items():
        buffer = buffers[number]
        key = buffer.space, buffer.shape, buffer.dtype.itemsize
        if key not in taken:
            taken[key] = taken_bytes(buffer, chip)
        found.append(Lifetime(buffer, start, last[number], taken[key]))
    return found


def occupancies(events: Sequence[Event], chip: Chip, lives: list[Lifetime] | None = None) -> list[Occupancy]:
    """One `Occupancy` per core and on-chip memory that the run uses; `lives` if they are known already."""
    groups: dict[tuple[int, str], list[Lifetime]] = defaultdict(list)
    for life in lifetimes(events, chip) if lives is None else lives:
        groups[life.buffer.core or 0, life.buffer.space].append(life)
    capacity = {"sbuf": int(chip.sbuf_partition_bytes), "psum": int(chip.psum_partition_bytes)}
    return [_occupancy(core, space, capacity[space], lives) for (core, space), lives in sorted(groups.items())]


def _occupancy(core: int, space: str, capacity: int, lives: list[Lifetime]) -> Occupancy:
    ends = sorted(range(len(lives)), key=lambda i: lives[i].last)
    alive: dict[int, Lifetime] = {}
    addressed: dict[int, Lifetime] = {}
    free_bytes = covered = position = 0
    high_water, at, timeline = 0, 0, []
    holders: tuple[Lifetime, ...] = ()
    for i, life in enumerate(lives):
        ended = 0
        while lives[ends[position]].last < life.first:
            gone = ends[position]
            ended += 0 if gone in addressed else lives[gone].nbytes
            addressed.pop(gone, None)
            del alive[gone]
            position += 1
        free_bytes -= ended
        alive[i] = life
        if life.buffer.address is None:
            free_bytes += life.nbytes
        else:
            addressed[i] = life
        covered = _union(addressed.values()) if addressed else 0
        total = free_bytes + covered
        timeline.append((life.first, total))
        if total > high_water:
            high_water, at, holders = total, life.first, tuple(alive.values())
    if lives:
        timeline.append((max(life.last for life in lives) + 1, 0))
    ordered = tuple(sorted(holders, key=lambda life: -life.nbytes))
    return Occupancy(core, space, capacity, high_water, at, ordered, tuple(timeline))


def _union(lives: Iterable[Lifetime]) -> int:
    """Bytes covered by the address ranges of some addressed tiles."""
    total, end = 0, 0
    for start, stop in sorted(_range(life) for life in lives):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total


def _range(life: Lifetime) -> tuple[int, int]:
    assert life.buffer.address is not None  # noqa: S101  (callers pass addressed tiles)
    return life.buffer.address[1], life.buffer.address[1] + life.nbytes


def placement(events: Sequence[Event], chip: Chip) -> dict[int, tuple[int, int]]:
    """`(partition, byte)` of every on-chip tile, by buffer number; tiles may lie beyond the capacity if they do not fit."""
    places: dict[int, tuple[int, int]] = {}
    active: dict[tuple[int, str], list[tuple[int, int, int]]] = defaultdict(list)  # (last, start, stop), sorted by start
    lives = lifetimes(events, chip)
    fixed: dict[tuple[int, str], list[Lifetime]] = defaultdict(list)
    for life in lives:
        if life.buffer.address is not None:
            fixed[life.buffer.core or 0, life.buffer.space].append(life)
            places[life.buffer.number] = life.buffer.address
    for life in lives:
        if life.buffer.address is not None:
            continue
        key = (life.buffer.core or 0, life.buffer.space)
        taken = active[key] = [item for item in active[key] if item[0] >= life.first]
        blocked = taken
        if key in fixed:
            together = [(f.last, *_range(f)) for f in fixed[key] if f.first <= life.last and f.last >= life.first]
            blocked = sorted(taken + together, key=lambda item: item[1])
        start = position = 0
        for _, low, high in blocked:
            if low - start >= life.nbytes:
                break
            start = max(start, high)
        while position < len(taken) and taken[position][1] < start:
            position += 1
        taken.insert(position, (life.last, start, start + life.nbytes))
        places[life.buffer.number] = (0, start)
    return places
