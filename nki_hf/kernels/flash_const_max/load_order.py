"""What `flash_const_max` loads and when: for each step the loads that are issued before it.

Plain Python, as `work.py`, whose words it has, and one more:

    load      one chunk of k and v (of short kv heads: of several), or the queries of a pack, with the step before which it is
              issued

Written in the subset of Python that every NKI front end reads, like the kernel that calls it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["loads_of"]

TILE = 128
WIDE = 1024
"""Keys of a mask of bounds per row."""

Item = dict[str, Any]


def loads_of(
    steps: list[Item],
    blocks: list[Item],
    segments: list[Item],
    seqlen_kv: int,
    resident: bool,
    chunk: int,
    key_bytes: int,
    room: int,
    prefetch: int,
    lag: int,
    masked: int,
) -> list[list[Item]]:
    """For each step, what is loaded before it: as early as `prefetch` allows and as `room` has place for.

    Args:
      steps, blocks, segments: as `steps_of`, `blocks_of` and `divided` give them.
      seqlen_kv: number of keys.
      resident: chunks stay for all blocks of a segment; else each block loads its own.
      chunk: keys of a chunk, a multiple of 128. A core starts with shorter ones, so that its first step starts early.
      key_bytes: bytes per partition that 128 keys and their values take.
      room: bytes per partition that chunks may take together.
      prefetch: steps that a load may be ahead of its use.
      lag: steps that a step's output is behind.
      masked: which blocks of the same query tiles share masks of bounds per row: 0 there are none, 1 no two, 2 those of a
        segment, 3 those of a batch entry, 4 all.
    """
    if len(steps) == 0:
        return []
    wanted: list[Item] = []
    chunks: list[Any] = []
    tiles = -(-seqlen_kv // TILE)
    blocks_end = 0
    for block in blocks:
        blocks_end = max(blocks_end, block["tile"] + 1)
    shared: list[Any] = [None] * (blocks[-1]["segment"] + 1)
    owner = -1
    masks: list[Any] = [None] * blocks_end
    rows: Any = None
    for i in range(len(steps)):
        step = steps[i]
        block = blocks[step["block"]]
        if step["opens"] and masked > 0:
            sharer = 0
            if masked == 1:
                sharer = step["block"]
            elif masked == 2:
                sharer = block["segment"]
            elif masked == 3:
                sharer = block["batch"]
            ready = masks[block["tile"]]
            if ready == None or ready["sharer"] != sharer:  # noqa: E711
                wides = seqlen_kv // WIDE + 1
                places: list[Any] = []
                for _ in range(block["tiles"]):
                    places.append([None] * wides)
                ready = {"sharer": sharer, "masks": places, "relative": [None] * wides}
                masks[block["tile"]] = ready
            block["masks"] = ready["masks"]
            block["relative"] = ready["relative"]
            segment = segments[block["segment"]]
            sharer = 0
            if masked < 4:
                sharer = block["batch"]
            if rows == None or rows["sharer"] != sharer or rows["span"] != (segment["begin"], segment["end"]):  # noqa: E711
                rows = {
                    "kind": "rows",
                    "segment": block["segment"],
                    "need": i,
                    "last": i,
                    "bytes": 0,
                    "empty": None,
                    "loaded": False,
                    "edges": None,
                    "sharer": sharer,
                    "span": (segment["begin"], segment["end"]),
                }
                wanted.append(rows)
            block["rows"] = rows
            segment["rows"] = rows
        if step["opens"]:
            if block["place"] == 0:
                queries = {"kind": "q", "block": step["block"], "need": i, "last": i, "bytes": 0}
                wanted.append(queries)
        number = block["segment"]
        mine = number
        if not resident:
            mine = step["block"]
        if owner != mine:
            owner = mine
            chunks = [None] * tiles
        for cell in step["cells"]:
            if chunks[cell["key"] // TILE] == None:  # noqa: E711
                load = shared[number]
                if load == None:  # noqa: E711
                    load = _chunk(steps, blocks, i, cell["key"], chunks, resident, chunk, len(wanted) < 5)
                    load["bytes"] = load["units"] * -(-(load["end"] - load["begin"]) // TILE) * key_bytes
                    wanted.append(load)
                    if load["units"] > 1:
                        for n in range(load["units"]):
                            shared[number + n] = load
                for key in range(load["begin"], load["end"], TILE):
                    chunks[key // TILE] = load
            used = chunks[cell["key"] // TILE]
            used["last"] = i
            cell["load"] = used
            cell["unit"] = number - used["segment"]
    return _timed(wanted, len(steps), room, prefetch, lag)


def _chunk(
    steps: list[Item], blocks: list[Item], i: int, first: int, chunks: list[Any], resident: bool, chunk: int, short: bool
) -> Item:
    """The load that brings key `first` for step `i`: to the end of its chunk, of the keys that are visited, or to a chunk
    that is there; where that is all that the segment visits, those of the segments behind it as well, as far as they fit a
    chunk.
    """
    block = blocks[steps[i]["block"]]
    width = chunk
    if short:
        width = min(chunk, 512)
    last = _end_of(steps, blocks, i, resident)
    end = min((first // width + 1) * width, last)
    for key in range(end - 1 - (end - 1 - first) % TILE, first, -TILE):
        if chunks[key // TILE] != None:  # noqa: E711
            end = key
    units = 1
    whole = -(-(end - first) // TILE) * TILE
    begins = steps[i]["opens"] and steps[i]["cells"][0]["key"] == first
    if resident and begins and end == last and not short:
        for n in range(steps[i]["block"], len(blocks)):
            other = blocks[n]
            behind = other["segment"] - block["segment"]
            if other["tile"] != block["tile"] or other["tiles"] != block["tiles"] or (behind + 1) * whole > chunk:
                break
            units = behind + 1
    return {
        "kind": "kv",
        "block": steps[i]["block"],
        "need": i,
        "last": i,
        "begin": first,
        "end": end,
        "units": units,
        "segment": block["segment"],
    }


def _end_of(steps: list[Item], blocks: list[Item], i: int, resident: bool) -> int:
    """Past the last key that the segment (or block) of step `i` visits."""
    if "end" in blocks[steps[i]["block"]]:
        found: int = blocks[steps[i]["block"]]["end"]
        return found
    mine = blocks[steps[i]["block"]]["segment"]
    if not resident:
        mine = steps[i]["block"]
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
