"""The order of work of `flash_prefill`: plain Python over sizes, run while the kernel is traced; no instruction is issued here.

Written in the subset of Python that every NKI front end reads, like the kernel that calls it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["divided", "scheduled"]

TILE = 128
BLOCK = 512

Item = dict[str, Any]
Span = tuple[int, int, int, int]


def divided(units: int, tiles: int, row_split: int, program: int, programs: int) -> list[tuple[int, int, int]]:
    """What one core computes: `(unit, first query tile, past the last one)`, where a unit is one (batch, kv head).

    Whole units are dealt out evenly; of an odd one out the first core takes the query tiles before `row_split`.
    """
    share = units // programs
    work = []
    for unit in range(program * share, (program + 1) * share):
        work.append((unit, 0, tiles))
    for unit in range(programs * share, units):
        if program == 0:
            work.append((unit, 0, row_split))
        else:
            work.append((unit, row_split, tiles))
    return work


def scheduled(
    work: list[tuple[int, int, int]],
    spans: tuple[Span, ...],
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    q_rows: int,
    q_heads: int,
    section: int,
) -> tuple[list[Item], list[Item], list[Item]]:
    """Query blocks (tiles and heads that share a load), key sections (what is resident together), and steps in order.

    Args:
      work: as `divided` gives it.
      spans: per query tile, the keys it visits and those that all of its rows see (see `prefill_plan.Span`).
      q_shape, k_shape: the kernel's layouts.
      q_rows, q_heads, section: rows and heads of a block, keys of a section.
    """
    seqlen_q, seqlen_kv, heads_kv = q_shape[3], k_shape[3], k_shape[1]
    group, tiles = q_shape[1] // heads_kv, q_rows // TILE
    resident = section >= seqlen_kv
    blocks: list[Item] = []
    sections: list[Item] = []
    steps: list[Item] = []
    for unit, begin, end in work:
        if resident:
            sections.append(_section(spans, unit, begin, end, 0, seqlen_kv))
        for tile_begin in range(begin, end, tiles):
            tile_end = min(tile_begin + tiles, end)
            for head_begin in range(0, group, q_heads):
                head = unit % heads_kv * group + head_begin
                block = {
                    "batch": unit // heads_kv, "head": head, "heads": min(q_heads, group - head_begin), "tile": tile_begin,
                    "tiles": tile_end - tile_begin, "number": len(blocks),
                }  # fmt: skip
                blocks.append(block)
                if resident:
                    _add_steps(steps, block, len(sections) - 1, spans, seqlen_q, 0, seqlen_kv)
                else:
                    for key in range(0, seqlen_kv, section):
                        stop = min(key + section, seqlen_kv)
                        sections.append(_section(spans, unit, tile_begin, tile_end, key, stop))
                        _add_steps(steps, block, len(sections) - 1, spans, seqlen_q, key, stop)
    for i in range(len(steps)):
        for what in ("section", "block"):
            steps[i]["opens_" + what] = i == 0 or steps[i - 1][what] != steps[i][what]
            steps[i]["closes_" + what] = i == len(steps) - 1 or steps[i + 1][what] != steps[i][what]
    return blocks, sections, steps


def _section(spans: tuple[Span, ...], unit: int, tile_begin: int, tile_end: int, key_begin: int, key_end: int) -> Item:
    """The part of keys `[key_begin, key_end)` that the query tiles visit."""
    first, last = key_end, key_begin
    for tile in range(tile_begin, tile_end):
        if spans[tile][0] < spans[tile][1]:
            first, last = min(first, max(spans[tile][0], key_begin)), max(last, min(spans[tile][1], key_end))
    return {"unit": unit, "first": first, "last": last}


def _add_steps(
    steps: list[Item], block: Item, section: int, spans: tuple[Span, ...], seqlen_q: int, key_begin: int, key_end: int
) -> None:
    """Steps of one query block over one section: by query tile, then keys, then head.

    A query tile without keys has one step of no width per head, so that its rows are written as well.
    """
    for t in range(block["tiles"]):
        tile = block["tile"] + t
        first, last, full_first, full_last = spans[tile]
        cells = []
        if first == last and key_begin == 0:
            cells = [(first, first)]
        for cell in range(max(first, key_begin) // BLOCK * BLOCK, min(last, key_end), BLOCK):
            cells.append((max(cell, first), min(cell + BLOCK, last)))
        for key, stop in cells:
            for g in range(block["heads"]):
                steps.append({
                    "block": block["number"], "section": section, "t": t, "g": g, "slot": g * block["tiles"] + t,
                    "row": tile * TILE, "rows": min(TILE, seqlen_q - tile * TILE), "key": key, "width": stop - key,
                    "edge": key < full_first or stop > full_last, "first": key == first, "last": stop == last,
                })  # fmt: skip
