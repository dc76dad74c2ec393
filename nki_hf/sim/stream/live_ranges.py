"""Live ranges: the least memory that any allocator could do with, for kernels whose tiles do not fit from first to last use.

* A tile holds nothing between the last read of a value and a write that covers the tile.
* What an instruction makes may take the place of an operand that is not needed again, if the instruction works element by
  element: public kernels name one tile as `data` and `dst` of such instructions.

Evidence that a compiler does so: `cross_entropy_forward` of aws-neuron/nki-library (April 2026) subtracts from a tile of
65,535 bfloat16 per partition into another one; both together are more than SBUF has, and tests with these sizes are among
those that its authors run before each commit on trn2 (test_deepseek_v3_fast, test_qwen3_8b_fast).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from nki_hf.chips import Chip
from nki_hf.sim.stream.events import Event, Region
from nki_hf.sim.stream.memory import taken_bytes

__all__ = ["covers", "in_place", "keeps", "least_bytes"]

_ELEMENTWISE = frozenset(
    {
        "activation",
        "activation_reduce",
        "exponential",
        "reciprocal",
        "scalar_tensor_tensor",
        "tensor_copy",
        "tensor_scalar",
        "tensor_scalar_reduce",
        "tensor_tensor",
    }
)


def covers(event: Event, region: Region) -> bool:
    """True if the event writes all of the region's tile and keeps nothing of what was there."""
    whole = region.buffer
    return (
        not region.indirect
        and region.partitions == whole.shape[0]
        and region.contiguous_bytes >= whole.bytes_per_partition
        and not keeps(event)
    )


def keeps(event: Event) -> bool:
    """True if what the event writes follows from what was there."""
    return bool((event.opcode == "nc_matmul" and event.attrs.get("accumulate")) or event.attrs.get("keeps"))


def in_place(event: Event, read: Region, write: Region) -> bool:
    """True if the event could write its result over what it reads there: element by element, in the same order."""
    return (
        event.opcode in _ELEMENTWISE
        and read.buffer.space == write.buffer.space
        and read.dtype.itemsize >= write.dtype.itemsize
        and read.partitions == write.partitions
        and read.shape == write.shape
        and not read.indirect
        and not write.indirect
        and covers(event, write)
        and read.buffer.shape[0] == read.partitions
        and read.contiguous_bytes >= read.buffer.bytes_per_partition
    )


def least_bytes(events: Sequence[Event], chip: Chip) -> dict[tuple[int, str], int]:
    """Bytes per partition, by core and memory, that the live values of tiles without an address take at least.

    Addressed tiles are left out: they hold what they hold.
    """
    needs: dict[int, list[tuple[int, bool]]] = {}  # of each tile: event, and whether it makes the value anew
    tiles = {}
    for index, event in enumerate(events):
        touched: dict[int, bool] = {}
        for region in event.reads:
            touched[region.buffer.number] = False
            tiles[region.buffer.number] = region.buffer
        for region in event.writes:
            touched.setdefault(region.buffer.number, covers(event, region))
            tiles[region.buffer.number] = region.buffer
        for number, anew in touched.items():
            if tiles[number].on_chip and tiles[number].address is None:
                needs.setdefault(number, []).append((index, anew))
    changes: dict[tuple[int, str], Counter[int]] = {}
    begins: dict[int, dict[int, int]] = {}  # by event: the tiles whose value begins there, and their bytes
    ends: dict[int, dict[int, int]] = {}
    for number, uses in needs.items():
        buffer, nbytes = tiles[number], taken_bytes(tiles[number], chip)
        counted = changes.setdefault((buffer.core or 0, buffer.space), Counter())
        for first, last in _ranges(uses):
            counted[first] += nbytes
            counted[last + 1] -= nbytes
            begins.setdefault(first, {})[number] = nbytes
            ends.setdefault(last, {})[number] = nbytes
    return {key: _peak(key, counted, events, begins, ends) for key, counted in changes.items()}


def _ranges(uses: list[tuple[int, bool]]) -> Iterator[tuple[int, int]]:
    """First and last event of each value of a tile."""
    first = last = uses[0][0]
    for index, anew in uses[1:]:
        if anew:
            yield first, last
            first = index
        last = index
    yield first, last


def _peak(
    key: tuple[int, str],
    changes: Counter[int],
    events: Sequence[Event],
    begins: dict[int, dict[int, int]],
    ends: dict[int, dict[int, int]],
) -> int:
    live = peak = 0
    for index in sorted(changes):
        live += changes[index]
        if live > peak:
            peak = max(peak, live - _shared(key, events[index], begins.get(index, {}), ends.get(index, {})))
    return peak


def _shared(key: tuple[int, str], event: Event, begins: dict[int, int], ends: dict[int, int]) -> int:
    """Bytes that new tiles may take over from operands whose value ends with the event."""
    saved, taken = 0, set()
    for write in event.writes:
        if write.buffer.number not in begins or write.buffer.space != key[1]:
            continue
        for read in event.reads:
            number = read.buffer.number
            if number in ends and number not in taken and number != write.buffer.number and in_place(event, read, write):
                saved += min(ends[number], begins[write.buffer.number])
                taken.add(number)
                break
    return saved
