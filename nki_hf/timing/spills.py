"""What a compiler does with tiles that do not fit: the event stream with spills and reloads put in.

PSUM. Where the live tiles exceed it, the one whose next use is furthest away goes. What one matmul made whose operands are
still there is made again before that use (law `psum-recompute`): the Tensor engine is nearly free in kernels that fill PSUM,
and the engines that could copy are not. Then every tile from that line of the kernel is made when it is needed, first and
again, and holds nothing while others of them are made. Anything else is copied to SBUF by Vector and read from there; without
the law all is.

SBUF (law `sbuf-holding`). A tile holds its memory from its first to its last instruction, through any loop in between; where
memory is short the tile that was touched longest ago is stored to HBM through DMA, each time, and loaded again, whole, before
its next use. Without the law a tile holds nothing between a last read and a write that covers it, the tile whose next use is
furthest away goes, as for an allocator that sees through loops, and is not stored again if HBM still has its value.

Where the tiles of one instruction do not fit together, what it makes takes the place of an operand whose value ends there.

Whole tiles move: a kernel that wants to spill less makes its tiles smaller.

spiller.py goes through the stream, next_use.py says when a tile is needed again, rematerialization.py what is made again,
spill_code.py writes the new stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nki_hf.chips import Chip
from nki_hf.sim.stream.events import Event
from nki_hf.sim.stream.memory import taken_bytes
from nki_hf.timing.next_use import most_live
from nki_hf.timing.spiller import Spiller

__all__ = ["NO_SPILLS", "Spills", "spilled"]


@dataclass(frozen=True, slots=True)
class Spills:
    """What was spilled.

    Attributes:
      psum_copies, psum_bytes: tiles moved from PSUM to SBUF.
      recomputed: matmuls that run again because PSUM could not hold what they had made.
      stores, loads: DMA transfers added.
      stored_bytes, loaded_bytes: their bytes, over all partitions.
      peak_bytes: most bytes per partition live at once before spilling, by space.
    """

    psum_copies: int
    psum_bytes: int
    stores: int
    stored_bytes: int
    loads: int
    loaded_bytes: int
    peak_bytes: dict[str, int]
    recomputed: int = 0

    def __bool__(self) -> bool:
        return bool(self.psum_copies or self.recomputed or self.stores or self.loads)


NO_SPILLS = Spills(0, 0, 0, 0, 0, 0, {})


def spilled(events: Sequence[Event], chip: Chip) -> tuple[list[Event], Spills]:
    """The stream as it would run on `chip`, and what was added; the same events if everything fits.

    Raises:
      MemoryError: one instruction's own tiles do not fit, or only tiles under accumulation are left in PSUM.
    """
    psum = Spiller(events, chip, "psum", int(chip.psum_partition_bytes))
    after_psum = psum.run()
    if psum.remade is not None and psum.remade.count:
        psum = Spiller(events, chip, "psum", int(chip.psum_partition_bytes), dropped=psum.remade.sites)
        after_psum = psum.run()
    recomputed = 0 if psum.remade is None else psum.remade.count
    peak = _held_peak(after_psum, chip)
    if chip.sbuf_spill_held and peak <= chip.sbuf_partition_bytes:
        return after_psum, Spills(
            psum_copies=psum.stores,
            psum_bytes=psum.stored_bytes,
            stores=0,
            stored_bytes=0,
            loads=0,
            loaded_bytes=0,
            peak_bytes={"psum": psum.peak_bytes, "sbuf": peak},
            recomputed=recomputed,
        )
    sbuf = Spiller(after_psum, chip, "sbuf", int(chip.sbuf_partition_bytes), number=psum.code.number)
    after = sbuf.run()
    return after, Spills(
        psum_copies=psum.stores,
        psum_bytes=psum.stored_bytes,
        stores=sbuf.stores,
        stored_bytes=sbuf.stored_bytes,
        loads=sbuf.loads,
        loaded_bytes=sbuf.loaded_bytes,
        peak_bytes={"psum": psum.peak_bytes, "sbuf": sbuf.peak_bytes},
        recomputed=recomputed,
    )


def _held_peak(events: Sequence[Event], chip: Chip) -> int:
    """Most bytes per partition of SBUF in use at once on a core, if a tile lives from its first to its last instruction."""
    first: dict[int, tuple[int, int, int]] = {}  # by buffer number: event, bytes, core
    last: dict[int, int] = {}
    for index, event in enumerate(events):
        for regions in (event.reads, event.writes):
            for region in regions:
                buffer = region.buffer
                if buffer.space == "sbuf" and buffer.address is None:
                    if buffer.number not in last:
                        first[buffer.number] = index, taken_bytes(buffer, chip), event.core
                    last[buffer.number] = index
    changes = [(begin, nbytes, core) for begin, nbytes, core in first.values()]
    changes += [(end + 1, -first[number][1], first[number][2]) for number, end in last.items()]
    return most_live(changes)
