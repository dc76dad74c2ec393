"""The order of work of `flash_const_max`: plain Python over sizes, run while the kernel is traced; no instruction is issued
here.

Words:
    segment   query tiles of one (batch, kv head) that one core computes, for all query heads of the group
    block     up to `block_tiles` column tiles of 128 queries that are multiplied together: consecutive query tiles of one
              head, or, where a head has fewer, the same query tiles of several heads of the group (tile by tile, then head)
    cell      one key tile (128 keys) of a block: its columns, and which of its query tiles are at an edge of the mask
    step      up to `group` cells of a block that share PSUM
    exp       the probabilities of one step, from its scores in PSUM, or of up to `copied` consecutive ones of a block, from
              copies of theirs in SBUF
    run       consecutive cells of a step or an exp that one instruction covers, as they lie in PSUM or SBUF
    pack      consecutive blocks of the same query tiles of neighbouring heads, loaded and written with one transfer
    ledger    consecutive segments whose row statistics lie side by side: `head of the group * query tiles + query tile` of a
              segment is a column of it, its slot

What is loaded, and when, is in `load_order.py`. Both are written in the subset of Python that every NKI front end reads, like
the kernel that calls them.
"""

from __future__ import annotations

from typing import Any

__all__ = ["blocks_of", "divided", "ledgers_of", "steps_of"]

TILE = 128
PACK = 2048
"""Columns of a pack at most: 4 KiB of 16-bit queries per partition."""
BANK = 512
"""float32 columns of a PSUM bank."""
LEDGER = 512
"""Slots of a ledger, unless one segment has more: switching the Scalar engine's table to the logarithm costs about a step."""

Item = dict[str, Any]
Span = tuple[int, int, int, int]


def divided(units: int, tiles: int, row_split: int, program: int, programs: int) -> list[Item]:
    """The segments of one core: whole (batch, kv head) units dealt out evenly; of an odd one out the first core takes the
    query tiles before `row_split`, the second the others.
    """
    share = units // programs
    segments = []
    for unit in range(program * share, (program + 1) * share):
        segments.append({"unit": unit, "begin": 0, "end": tiles})
    for unit in range(programs * share, units):
        begin, end = 0, row_split
        if program > 0:
            begin, end = row_split, tiles
        if begin < end:
            segments.append({"unit": unit, "begin": begin, "end": end})
    return segments


def ledgers_of(segments: list[Item], group_size: int) -> list[Item]:
    """The ledgers of all segments; each segment learns its ledger and its first slot there."""
    ledgers: list[Item] = []
    slots = LEDGER
    for s in range(len(segments)):
        segment = segments[s]
        size = (segment["end"] - segment["begin"]) * group_size
        if slots + size > LEDGER:
            ledgers.append({"first": s, "slots": 0, "last": s})
            slots = 0
        ledger = ledgers[-1]
        segment["ledger"] = len(ledgers) - 1
        segment["slot"] = slots
        segment["tiles"] = segment["end"] - segment["begin"]
        slots = slots + size
        ledger["slots"] = slots
        ledger["last"] = s
    return ledgers


def blocks_of(segments: list[Item], heads_kv: int, group_size: int, block_tiles: int) -> list[Item]:
    """The blocks of all segments, in order: by query tiles, then head."""
    blocks: list[Item] = []
    for s in range(len(segments)):
        segment = segments[s]
        for tile in range(segment["begin"], segment["end"], block_tiles):
            count = min(block_tiles, segment["end"] - tile)
            heads = 1
            for size in range(1, block_tiles // count + 1):
                if group_size % size == 0:
                    heads = size
            for g in range(0, group_size, heads):
                blocks.append(
                    {
                        "segment": s,
                        "batch": segment["unit"] // heads_kv,
                        "head_kv": segment["unit"] % heads_kv,
                        "head": segment["unit"] % heads_kv * group_size + g,
                        "g": g,
                        "heads": heads,
                        "tile": tile,
                        "tiles": count,
                        "number": len(blocks),
                        "columns": count * heads * TILE,
                    }
                )
    _pack(blocks)
    return blocks


def _pack(blocks: list[Item]) -> None:
    """Give each block its pack: the number of its first block, its own place in it, and the heads of all. The first block stays
    alone, so that it starts early.
    """
    first = 0
    for b in range(len(blocks)):
        block, leader = blocks[b], blocks[first]
        place = b - first
        joins = b > 1 and (place + 1) * block["columns"] <= PACK
        for name in ("batch", "tile", "tiles", "heads"):
            joins = joins and block[name] == leader[name]
        if not joins or block["head"] != leader["head"] + place * block["heads"]:
            first, place = b, 0
        block["pack"] = first
        block["place"] = place
        blocks[first]["packed"] = place + 1


def _cells(block: Item, spans: tuple[Span, ...], seqlen_kv: int) -> list[Item]:
    """The key tiles that a block visits, first to last."""
    first, last = seqlen_kv, 0
    for t in range(block["tiles"]):
        span = spans[block["tile"] + t]
        if span[0] < span[1]:
            first, last = min(first, span[0]), max(last, span[1])
    cells = []
    for key in range(first // TILE * TILE, last, TILE):
        stop = min(key + TILE, seqlen_kv)
        seen: list[int] = []
        edges: list[int] = []
        for t in range(block["tiles"]):
            span = spans[block["tile"] + t]
            if stop > span[0] and key < span[1]:
                seen.append(t)
                if key < span[2] or stop > span[3]:
                    edges.append(t)
        if len(seen) > 0:
            cells.append(
                {
                    "key": key,
                    "keys": stop - key,
                    "seen": seen,
                    "edges": edges,
                    "begin": seen[0] * block["heads"] * TILE,
                    "end": (seen[-1] + 1) * block["heads"] * TILE,
                }
            )
    return cells


def steps_of(blocks: list[Item], spans: tuple[Span, ...], seqlen_kv: int, group: int, joined: bool, copied: int) -> list[Item]:
    """The steps of all blocks in order; a block without keys has one step without cells, so that its rows are written too.

    Args:
      blocks: as `blocks_of` gives them.
      spans: per query tile, the keys it visits and those that all of its rows see.
      seqlen_kv: number of keys.
      group: key tiles per step, of 512 columns each; narrower blocks take as many more.
      joined: False if every key tile needs an instruction of its own for exp (a bias per key).
      copied: steps behind each other one whose scores the Vector engine copies to SBUF before exp.
    """
    steps: list[Item] = []
    for b in range(len(blocks)):
        block = blocks[b]
        cells = _cells(block, spans, seqlen_kv)
        size = group * (BANK // block["columns"])
        visited = [False] * block["tiles"]
        for cell in cells:
            for t in cell["seen"]:
                visited[t] = True
        block["visited"] = visited
        for begin in range(0, max(1, len(cells)), size):
            part = cells[begin : begin + size]
            placed = _placed(part)
            is_copied = len(steps) % (copied + 1) > 0
            exp: Item = {"cells": [], "first": len(steps), "columns": 0}
            if is_copied and begin > 0:
                if steps[-1]["copied"]:
                    exp = steps[-1]["exp"]
            base = exp["columns"]
            if BANK % block["columns"] > 0:
                base = -(-base // BANK) * BANK
            for cell in part:
                cell["to"] = base + cell["at"]
            columns = placed[-1]["at"] + _width(placed[-1]) if len(placed) > 0 else 0
            steps.append(
                {
                    "block": b,
                    "cells": part,
                    "placed": placed,
                    "runs": _runs(placed, "at", True),
                    "opens": begin == 0,
                    "closes": begin + size >= len(cells),
                    "copied": is_copied,
                    "exp": exp,
                    "columns": columns,
                    "leads": exp["first"] == len(steps),
                }
            )
            exp["last"] = len(steps) - 1
            exp["cells"] = exp["cells"] + placed
            exp["columns"] = base + columns
            exp["runs"] = _runs(exp["cells"], "to", joined)
    return steps


def _width(cell: Item) -> int:
    width: int = cell["end"] - cell["begin"]
    return width


def _placed(cells: list[Item]) -> list[Item]:
    """The cells of a step as they lie in PSUM, the widest first, so that few banks have gaps; each learns its first column,
    `at`. None crosses a bank.
    """
    placed: list[Item] = []
    at = 0
    for width in range(BANK, 0, -TILE):
        for cell in cells:
            if _width(cell) == width:
                if at % BANK + width > BANK:
                    at = -(-at // BANK) * BANK
                cell["at"] = at
                at = at + width
                placed.append(cell)
    return placed


def _runs(cells: list[Item], place: str, joined: bool) -> list[tuple[int, int]]:
    """`(first, past the last)` of the cells that one instruction covers: they lie side by side, or one in each of consecutive
    banks and are equally wide.
    """
    runs: list[tuple[int, int]] = []
    begin = 0
    for n in range(len(cells)):
        if n + 1 < len(cells) and joined:
            first, cell, after = cells[begin], cells[n], cells[n + 1]
            beside, apart = after[place] == cell[place] + _width(cell), False
            if n > begin:
                apart = cells[begin + 1][place] > first[place] + _width(first)
                beside = beside and not apart
            same = _width(after) == _width(first) and after[place] == cell[place] + BANK and first[place] % BANK == 0
            if after["keys"] == cell["keys"] and (beside or (same and (apart or n == begin))):
                continue
        runs.append((begin, n + 1))
        begin = n + 1
    return runs
