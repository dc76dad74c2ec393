"""The order of work of `flash_decode`: plain Python over sizes, run while the kernel is traced; no instruction is issued here.

Written in the subset of Python that every NKI front end reads, like the kernel that calls it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["STAGES", "divided", "steps_of"]

TILE = 128
BANK = 512
STAGES = 4
"""Steps from the turn of keys to the product with values."""
Item = dict[str, Any]


def divided(units: int, chunks: int, program: int, programs: int, exchange: bool) -> list[Item]:
    """What one core computes: units of (batch, kv head), and of each its chunks, by number.

    Whole units are dealt out evenly; the whole chunks of those that are left over are dealt to the cores in turn (`shared`),
    and the tail, which is chunk `chunks - 1`, is the second core's: however few are live, each core has half, and which core
    has one does not depend on `chunks`. With one chunk there is nothing to deal, and without `exchange` between the cores
    nothing to merge: the first core takes it.
    """
    share = units // programs
    every, mine = [], []
    for chunk in range(chunks):
        every.append(chunk)
        taker = chunk % programs
        if chunk == chunks - 1:
            taker = programs - 1
        if taker == program:
            mine.append(chunk)
    segments = []
    for unit in range(program * share, (program + 1) * share):
        segments.append({"unit": unit, "shared": False, "chunks": every})
    for unit in range(programs * share, units):
        if chunks > 1 and exchange:
            segments.append({"unit": unit, "shared": True, "chunks": mine})
        elif program == 0:
            segments.append({"unit": unit, "shared": False, "chunks": every})
    return segments


def steps_of(
    segments: list[Item], heads_kv: int, per_partition: int, rows: int, block_rows: int
) -> tuple[list[Item], list[Item], list[Item]]:
    """Steps in order, the loads of chunks, and the row blocks, one for each unit and block of up to 128 rows.

    Args:
      segments: as `divided` gives it.
      per_partition: key tiles of a chunk.
      rows, block_rows: query rows of a kv head, and of one block of them.
    """
    steps = []
    loads: list[Item] = []
    blocks: list[Item] = []
    tiles = max(1, min(per_partition, BANK // block_rows))
    for s in range(len(segments)):
        segment = segments[s]
        unit = segment["unit"]
        first_block = len(blocks)
        for row in range(0, rows, block_rows):
            block = {
                "unit": unit, "batch": unit // heads_kv, "segment": s, "place": len(blocks), "row": row,
                "rows": min(block_rows, rows - row), "shared": segment["shared"], "accumulator": None, "maximum": None,
            }  # fmt: skip
            blocks.append(block)
        numbers = segment["chunks"]
        for place in range(len(numbers)):
            chunk = numbers[place]
            load = {"unit": unit, "batch": unit // heads_kv, "chunk": chunk, "k": None, "v": None, "starts": None}
            for tile in range(0, per_partition, tiles):
                turned: Item = {"k": None}
                for b in range(first_block, len(blocks)):
                    step = {
                        "batch": unit // heads_kv, "load": load, "block": b, "chunk": chunk, "tile": tile,
                        "tiles": min(tiles, per_partition - tile), "turned": turned, "turns": b == first_block,
                        "opens": tile == 0 and b == first_block, "number": len(loads),
                        "closes": tile + tiles >= per_partition and b == len(blocks) - 1,
                        "first": place == 0 and tile == 0,
                        "last": place == len(numbers) - 1 and tile + tiles >= per_partition,
                        "scores": None, "probs": None, "correction": None, "output": None, "pieces": None,
                    }  # fmt: skip
                    steps.append(step)
            loads.append(load)
    return steps, loads, blocks
