"""The order of work of `flash_const_max`: plain Python over sizes, run while the kernel is traced; no instruction is issued here.

Words:
    segment   query tiles of one (batch, kv head) that one core computes, for all query heads of the group
    block     up to `block_tiles` column tiles of 128 queries that are multiplied together: consecutive query tiles of one
              head, or, where a head has fewer, the same query tiles of several heads of the group (tile by tile, then head)
    cell      one key tile (128 keys) of a block: its columns, and which of its query tiles are at an edge of the mask
    step      up to `group` cells of a block that share PSUM
    run       cells of a step that one exp covers: full key tiles with the same columns
    load      one chunk of k and v, or the queries of a block, with the step before which it is issued

Written in the subset of Python that every NKI front end reads, like the kernel that calls it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["blocks_of", "divided", "loads_of", "steps_of"]

TILE = 128

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
        if program == 0:
            segments.append({"unit": unit, "begin": 0, "end": row_split})
        else:
            segments.append({"unit": unit, "begin": row_split, "end": tiles})
    return segments


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
                blocks.append({
                    "segment": s, "batch": segment["unit"] // heads_kv, "head_kv": segment["unit"] % heads_kv,
                    "head": segment["unit"] % heads_kv * group_size + g, "g": g, "heads": heads, "tile": tile, "tiles": count,
                    "number": len(blocks), "columns": count * heads * TILE,
                })  # fmt: skip
    return blocks


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
        seen, edges = [], []
        for t in range(block["tiles"]):
            span = spans[block["tile"] + t]
            if stop > span[0] and key < span[1]:
                seen.append(t)
                if key < span[2] or stop > span[3]:
                    edges.append(t)
        if len(seen) > 0:
            cells.append({
                "key": key, "keys": stop - key, "seen": seen, "edges": edges, "begin": seen[0] * block["heads"] * TILE,
                "end": (seen[-1] + 1) * block["heads"] * TILE,
            })  # fmt: skip
    return cells


def steps_of(blocks: list[Item], spans: tuple[Span, ...], seqlen_kv: int, group: int, joined: bool) -> list[Item]:
    """The steps of all blocks in order; a block without keys has one step without cells, so that its rows are written too.

    Args:
      blocks: as `blocks_of` gives them.
      spans: per query tile, the keys it visits and those that all of its rows see.
      seqlen_kv: number of keys.
      group: key tiles per step, of 512 columns each; narrower blocks take as many more.
      joined: False if every key tile needs an exp of its own (a bias per key).
    """
    steps: list[Item] = []
    for b in range(len(blocks)):
        block = blocks[b]
        cells = _cells(block, spans, seqlen_kv)
        pitch = TILE
        while pitch < block["columns"]:
            pitch = 2 * pitch
        size = group * 512 // pitch
        visited = [False] * block["tiles"]
        for cell in cells:
            for t in cell["seen"]:
                visited[t] = True
        block["visited"], block["pitch"] = visited, pitch
        for begin in range(0, max(1, len(cells)), size):
            part = cells[begin : begin + size]
            steps.append({
                "block": b, "cells": part, "runs": _runs(part, joined), "opens": begin == 0,
                "closes": begin + size >= len(cells), "number": len(steps),
            })  # fmt: skip
    return steps


def _runs(cells: list[Item], joined: bool) -> list[tuple[int, int]]:
    """`(first, past the last)` of the cells that one exp covers."""
    runs: list[tuple[int, int]] = []
    begin = 0
    for n in range(len(cells)):
        cell = cells[n]
        if n + 1 < len(cells) and joined:
            after = cells[n + 1]
            if after["keys"] == cell["keys"] and after["begin"] == cell["begin"] and after["end"] == cell["end"]:
                continue
        runs.append((begin, n + 1))
        begin = n + 1
    return runs


def loads_of(
    steps: list[Item], blocks: list[Item], seqlen_kv: int, resident: bool, chunk: int, key_bytes: int, room: int, prefetch: int,
    lag: int,
) -> list[list[Item]]:
    """For each step, what is loaded before it: as early as `prefetch` allows and as `room` has place for.

    Args:
      steps, blocks: as `steps_of` and `blocks_of` give them.
      seqlen_kv: number of keys.
      resident: chunks stay for all blocks of a segment; else each block loads its own.
      chunk: keys of a chunk, a multiple of 128. A core starts with shorter ones, so that its first step starts early.
      key_bytes: bytes per partition that 128 keys and their values take.
      room: bytes per partition that chunks may take together.
      prefetch: steps that a load may be ahead of its use.
      lag: steps that a step's output is behind.
    """  # fmt: skip
    wanted: list[Item] = []
    chunks: list[Any] = []
    owner = -1
    for i in range(len(steps)):
        step = steps[i]
        block = blocks[step["block"]]
        if step["opens"]:
            wanted.append({"kind": "q", "block": step["block"], "need": i, "last": i, "bytes": 0})
        mine = block["segment"]
        if not resident:
            mine = step["block"]
        if owner != mine:
            owner = mine
            chunks = [None] * (-(-seqlen_kv // TILE))
        for cell in step["cells"]:
            if chunks[cell["key"] // TILE] == None:  # noqa: E711
                width = chunk
                if len(wanted) < 5:
                    width = min(chunk, 512)
                end = min((cell["key"] // width + 1) * width, _end_of(steps, blocks, i, mine, resident))
                load = {"kind": "kv", "block": step["block"], "need": i, "last": i, "begin": cell["key"], "end": end}
                for key in range(end - 1 - (end - 1 - cell["key"]) % TILE, cell["key"], -TILE):
                    if chunks[key // TILE] != None:  # noqa: E711
                        load["end"] = key
                for key in range(load["begin"], load["end"], TILE):
                    chunks[key // TILE] = load
                load["bytes"] = -(-(load["end"] - load["begin"]) // TILE) * key_bytes
                wanted.append(load)
            used = chunks[cell["key"] // TILE]
            used["last"] = i
            cell["load"] = used
    return _timed(wanted, len(steps), room, prefetch, lag)


def _end_of(steps: list[Item], blocks: list[Item], i: int, mine: int, resident: bool) -> int:
    """Past the last key that the segment (or block) of step `i` visits."""
    if "end" in blocks[steps[i]["block"]]:
        found: int = blocks[steps[i]["block"]]["end"]
        return found
    last = 0
    for n in range(i, len(steps)):
        block = blocks[steps[n]["block"]]
        number = block["segment"]
        if not resident:
            number = steps[n]["block"]
        if number != mine:
            break
        for cell in steps[n]["cells"]:
            last = max(last, cell["key"] + cell["keys"])
    for n in range(i, len(steps)):
        block = blocks[steps[n]["block"]]
        number = block["segment"]
        if not resident:
            number = steps[n]["block"]
        if number != mine:
            break
        block["end"] = last
    return last


def _timed(wanted: list[Item], count: int, room: int, prefetch: int, lag: int) -> list[list[Item]]:
    """The loads by the step before which each is issued, in the order of need."""
    issued: list[list[Item]] = []
    for _ in range(count):
        issued.append([])
    held: list[Item] = []
    at = 0
    for load in wanted:
        at = max(at, load["need"] - prefetch)
        for moment in range(at, load["need"] + 1):
            at = moment
            live = load["bytes"]
            for other in held:
                if other["last"] + lag >= moment:
                    live = live + other["bytes"]
            if live <= room:
                break
        issued[at].append(load)
        kept = []
        for other in held:
            if other["last"] + lag >= at:
                kept.append(other)
        if load["bytes"] > 0:
            kept.append(load)
        held = kept
    return issued
