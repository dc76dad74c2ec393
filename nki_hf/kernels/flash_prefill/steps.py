"""The order of work of `flash_prefill`: plain Python over sizes, run while the kernel is traced; no instruction is issued here.

Written in the subset of Python that every NKI front end reads, like the kernel that calls it: one plain name per loop, one
target per assignment, keys written out. What the stages of the kernel hand to each other lies in five dictionaries, because
the parser of NKI 0.3 to 0.6 follows dictionaries with string keys further than objects inside objects; `KEYS` names the keys.
"""

from __future__ import annotations

from typing import Any

__all__ = ["KEYS", "divided", "order_of_work"]

TILE = 128
BLOCK = 512

KEYS = {
    "env": {
        "q": "argument", "k": "argument", "v": "argument", "lo": "argument", "hi": "argument", "bias": "argument",
        "spans": "argument", "q_offset": "argument", "window": "argument", "ahead": "argument", "softcap": "argument",
        "out": "output in HBM", "lse": "output in HBM", "row_shift": "output in HBM, or None",
        "row_sum": "output in HBM, or None", "out_rest": "output in HBM, or None", "scale": "softmax_scale",
        "slope": "what multiplies the scores that the softmax sees",
        "scaled": "True if softmax_scale is applied before the maximum", "additive": "True if the bias is added",
        "has_ranges": "True if the chip selects by range", "sink": "sinks on every partition [TILE, num_heads_q], or None",
        "negative_sink": "their negatives, or None",
    },
    "section": {
        "unit": "(batch, kv head) as one number", "first": "first resident key", "last": "past the last one",
        "begins": "first key of each chunk", "k": "per chunk its key tiles, one per piece of head_dim",
        "v": "per chunk its value tile",
    },
    "block": {
        "batch": "index", "head": "first query head", "heads": "query heads", "tile": "first query tile",
        "tiles": "query tiles", "number": "place in the list of blocks", "q": "query tiles, one per piece of head_dim",
        "bounds": "per query tile its lower and upper bounds [rows, 1], or None",
        "out": "per query tile the output of all heads, or None", "rest": "per query tile what out lost, or None",
        "accumulator": "per slot the output so far, or None", "shift": "per slot minus the scaled maximum so far, or None",
        "total": "per slot the row sum so far, or None", "shifts": "the final ones, one column per slot",
        "totals": "the final ones, one column per slot",
    },
    "step": {
        "block": "number of its block", "section": "number of its section", "t": "query tile in the block",
        "g": "head in the block", "slot": "place of its running state", "row": "first query row", "rows": "query rows",
        "key": "first key", "width": "keys", "edge": "True if some row does not see all keys",
        "first": "True for the first step of these rows", "last": "True for their last",
        "opens_section": "True for the first step of a section", "closes_section": "True for its last",
        "opens_block": "True for the first step of a block", "closes_block": "True for its last",
    },
    "work": {
        "scores": "[rows, width] float32", "bias": "[rows, width], or None", "before": "shift before this step [rows, 1]",
        "shift": "shift after it [rows, 1]", "correction": "exp(shift - before) [rows, 1]", "total": "row sums [rows, 1]",
        "probabilities": "[rows, width], rows made even", "turned": "[TILE, key tiles, rows], rows made even",
    },
}  # fmt: skip
"""The dictionaries of the kernel, by name: their keys and what they hold."""

Item = dict[str, Any]
Span = tuple[int, int, int, int]


def divided(units: int, tiles: int, row_split: int, program: int, programs: int) -> list[tuple[int, int, int]]:
    """What one core computes: `(unit, first query tile, past the last one)`, where a unit is one (batch, kv head).

    Whole units are dealt out evenly; of an odd one out the first core takes the query tiles before `row_split`.
    """
    share = units // programs
    tasks = []
    for unit in range(program * share, (program + 1) * share):
        tasks.append((unit, 0, tiles))
    for unit in range(programs * share, units):
        if program == 0:
            tasks.append((unit, 0, row_split))
        else:
            tasks.append((unit, row_split, tiles))
    return tasks


def order_of_work(
    tasks: list[tuple[int, int, int]],
    spans: tuple[Span, ...],
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    q_rows: int,
    q_heads: int,
    section: int,
) -> tuple[list[Item], list[Item], list[Item]]:
    """Query blocks (tiles and heads that share a load), key sections (what is resident together), and steps in order.

    Args:
      tasks: as `divided` gives it.
      spans: per query tile, the keys it visits and those that all of its rows see (see `plan.Span`).
      q_shape, k_shape: the kernel's layouts.
      q_rows, q_heads, section: rows and heads of a block, keys of a section.
    """
    seqlen_q, seqlen_kv, heads_kv = q_shape[3], k_shape[3], k_shape[1]
    group, tiles = q_shape[1] // heads_kv, q_rows // TILE
    resident = section >= seqlen_kv
    blocks = []
    sections = []
    steps = []
    number = 0
    for i in range(len(tasks)):
        unit, begin, end = tasks[i]
        if resident:
            sections.append(_section(spans, unit, begin, end, 0, seqlen_kv))
        for tile_begin in range(begin, end, tiles):
            tile_end = min(tile_begin + tiles, end)
            for head_begin in range(0, group, q_heads):
                head = unit % heads_kv * group + head_begin
                block = {
                    "batch": unit // heads_kv,
                    "head": head,
                    "heads": min(q_heads, group - head_begin),
                    "tile": tile_begin,
                    "tiles": tile_end - tile_begin,
                    "number": number,
                }
                blocks.append(block)
                number += 1
                if resident:
                    added = _steps(block, len(sections) - 1, spans, seqlen_q, 0, seqlen_kv)
                    for j in range(len(added)):
                        steps.append(added[j])
                else:
                    for key in range(0, seqlen_kv, section):
                        stop = min(key + section, seqlen_kv)
                        sections.append(_section(spans, unit, tile_begin, tile_end, key, stop))
                        added = _steps(block, len(sections) - 1, spans, seqlen_q, key, stop)
                        for j in range(len(added)):
                            steps.append(added[j])
    for i in range(len(steps)):
        step = steps[i]
        step["opens_section"] = i == 0 or steps[i - 1]["section"] != step["section"]
        step["opens_block"] = i == 0 or steps[i - 1]["block"] != step["block"]
        step["closes_section"] = i == len(steps) - 1 or steps[i + 1]["section"] != step["section"]
        step["closes_block"] = i == len(steps) - 1 or steps[i + 1]["block"] != step["block"]
    return blocks, sections, steps


def _section(spans: tuple[Span, ...], unit: int, tile_begin: int, tile_end: int, key_begin: int, key_end: int) -> Item:
    """The part of keys `[key_begin, key_end)` that the query tiles visit."""
    first, last = key_end, key_begin
    for tile in range(tile_begin, tile_end):
        visited_first, visited_last, _, _ = spans[tile]
        if visited_first < visited_last:
            first = min(first, max(visited_first, key_begin))
            last = max(last, min(visited_last, key_end))
    return {"unit": unit, "first": first, "last": last}


def _steps(block: Item, section: int, spans: tuple[Span, ...], seqlen_q: int, key_begin: int, key_end: int) -> list[Item]:
    """Steps of one query block over one section: by query tile, then keys, then head.

    A query tile without keys has one step of no width per head, so that its rows are written as well.
    """
    steps = []
    for t in range(block["tiles"]):
        tile = block["tile"] + t
        first, last, full_first, full_last = spans[tile]
        cells = []
        if first == last and key_begin == 0:
            cells.append((first, first))
        for cell in range(max(first, key_begin) // BLOCK * BLOCK, min(last, key_end), BLOCK):
            cells.append((max(cell, first), min(cell + BLOCK, last)))
        for i in range(len(cells)):
            key, stop = cells[i]
            for g in range(block["heads"]):
                step = {
                    "block": block["number"],
                    "section": section,
                    "t": t,
                    "g": g,
                    "slot": g * block["tiles"] + t,
                    "row": tile * TILE,
                    "rows": min(TILE, seqlen_q - tile * TILE),
                    "key": key,
                    "width": stop - key,
                    "edge": key < full_first or stop > full_last,
                    "first": key == first,
                    "last": stop == last,
                }
                steps.append(step)
    return steps
