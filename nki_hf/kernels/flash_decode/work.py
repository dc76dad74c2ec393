"""The order of work of `flash_decode`: plain Python over sizes, run while the kernel is traced; no instruction is issued here.

Written in the subset of Python that every NKI front end reads, like the kernel that calls it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["PAIR", "PAIRS", "STAGES", "VALUES", "divided", "steps_of", "tiles_of"]

TILE = 128
BANK = 512
STAGES = 4
"""Steps from the turn of keys to the product with values."""
VALUES = 2
"""Buffers of values besides those that are loaded ahead: with more, zeroing them holds Scalar up at the start."""
PAIR = 32
"""Most rows whose maxima and sums are turned together, and where the sums begin: engines start at such partitions."""
PAIRS = 3
"""Tiles of such pairs, used in turn."""
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
    segments: list[Item], heads_kv: int, per_partition: int, rows: int, block_rows: int, chunks: int
) -> tuple[list[Item], list[Item], list[Item]]:
    """Steps in order, the loads of chunks, and the row blocks, one for each unit and block of up to 128 rows.

    A step has up to one PSUM bank of scores: part of a chunk, a chunk, or two whole chunks, whose maxima, sums and outputs are
    then taken together. The tail is a step of its own. So which chunks share a step does not depend on how many there are.

    Args:
      segments: as `divided` gives it.
      per_partition: key tiles of a chunk.
      rows, block_rows: query rows of a kv head, and of one block of them.
      chunks: number of chunks; the last is the tail.
    """
    steps = []
    loads: list[Item] = []
    blocks: list[Item] = []
    tiles, together = tiles_of(per_partition, block_rows)
    for s in range(len(segments)):
        segment = segments[s]
        unit = segment["unit"]
        first_block = len(blocks)
        for row in range(0, rows, block_rows):
            block = {
                "unit": unit,
                "batch": unit // heads_kv,
                "segment": s,
                "place": len(blocks),
                "row": row,
                "rows": min(block_rows, rows - row),
                "shared": segment["shared"],
                "accumulator": None,
                "maximum": None,
                "sum": None,
            }
            blocks.append(block)
        numbers = segment["chunks"]
        place = 0
        while place < len(numbers):
            count = 1
            if together == 2 and place + 1 < len(numbers):
                if numbers[place + 1] != chunks - 1:
                    count = 2
            first_load = len(loads)
            for n in range(count):
                load = {
                    "unit": unit,
                    "batch": unit // heads_kv,
                    "chunk": numbers[place + n],
                    "k": None,
                    "v": None,
                    "starts": None,
                }
                loads.append(load)
            for tile in range(0, per_partition, tiles):
                turned: Item = {"k": None}
                parts: list[Item] = []
                for n in range(count):
                    parts.append({"load": loads[first_load + n], "tile": tile, "tiles": min(tiles, per_partition - tile)})
                for b in range(first_block, len(blocks)):
                    step = {
                        "batch": unit // heads_kv, "parts": parts, "block": b, "tiles": count * parts[0]["tiles"],
                        "turned": turned, "turns": b == first_block, "number": first_load, "loads": count,
                        "closes": tile + tiles >= per_partition and b == len(blocks) - 1,
                        "first": place == 0 and tile == 0,
                        "last": place + count == len(numbers) and tile + tiles >= per_partition,
                        "scores": None, "probs": None, "correction": None, "output": None, "pieces": None, "total": None,
                    }  # fmt: skip
                    steps.append(step)
            place = place + count
    return steps, loads, blocks


def tiles_of(per_partition: int, block_rows: int) -> tuple[int, int]:
    """Key tiles of a chunk that a step has, and how many chunks: what fits one PSUM bank."""
    tiles = max(1, min(per_partition, BANK // block_rows))
    if 2 * per_partition * block_rows <= BANK:
        return tiles, 2
    return tiles, 1
