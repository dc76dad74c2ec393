"""The order of work of `flash_backward`: plain Python over sizes, run while the kernel is traced; it issues no instruction.

Written in the subset of Python that every NKI front end reads, like the kernel that calls it. What the stages of the kernel
hand to each other lies in dictionaries with string keys; `KEYS` names the keys.
"""

from __future__ import annotations

from typing import Any

__all__ = ["KEYS", "bias_jobs", "order_of_work", "row_steps", "runs_of", "tiles_of", "units_of"]

TILE = 128
RUN = 4
"""Query tiles that are loaded by one DMA and turned into one PSUM bank."""

KEYS = {
    "env": {
        "q": "argument", "k": "argument", "v": "argument", "dout": "argument", "out": "argument", "lse": "argument",
        "dlse": "argument", "lo": "argument", "hi": "argument", "bias": "argument", "sink": "argument",
        "row_shift": "argument", "row_sum": "argument", "out_rest": "argument", "q_offset": "argument", "window": "argument",
        "ahead": "argument", "softcap": "argument", "recompute": "argument",
        "dq": "output in HBM", "dk": "output in HBM", "dv": "output in HBM", "dsink": "output in HBM, or None",
        "scale": "softmax_scale", "slope": "what multiplies the scores that the softmax sees",
        "scaled": "True if softmax_scale is applied before the mask", "additive": "True if the bias is added",
        "has_ranges": "True if the chip selects by range", "sinks": "sinks on every partition [TILE, num_heads_q], or None",
        "diagonal": "uint8 [TILE, TILE], 1 on its diagonal, or None",
        "shares": "sums for the sinks' gradient [TILE, query heads of the unit], or None",
        "section": "number of the query section",
        "sections": "their number", "partial_dk": "dk of the sections so far, float32 in HBM, or None", "partial_dv": "of dv",
    },
    "run": {
        "batch": "index", "head": "query head", "row": "first query row", "rows": "query rows", "tiles": "query tiles",
        "edges": "True if some tile has an edge",
        "q": "[TILE, tiles, head_dim]", "dout": "[TILE, tiles, head_dim_v]",
        "out": "the same, until delta is known, or None", "out_rest": "the same, or None",
        "lse": "lse or row_shift [TILE, tiles], until shift is known, or None", "row_sum": "[TILE, tiles], or None",
        "dlse": "[TILE, tiles], or None",
        "lower": "first visible keys [TILE, tiles]", "upper": "past the last ones",
        "shift": "-lse or -row_shift [TILE, tiles]", "factor": "1 / row_sum [TILE, tiles], or None",
        "power": "its power of two, or None", "left": "factor / power, or None", "most": "power / factor, or None",
        "delta": "rowsum(dout * out) - dlse [TILE, tiles]", "loaded": "True from its first tile's load on",
        "prepared": "True from its first tile's use on", "q_turned": "per piece of head_dim [depth, tiles * TILE]",
        "dout_turned": "per piece of head_dim_v, the same",
    },
    "tile": {
        "batch": "index", "head": "query head", "g": "its place in the group", "row": "first query row", "rows": "query rows",
        "first": "first key that it visits", "last": "past the last one", "full_first": "first key that all rows see",
        "full_last": "past the last one", "run": "number of its run", "slot": "place in its run",
        "lower": "first visible keys [rows, 1], or None", "upper": "past the last ones", "dlse": "[rows, 1], or None",
        "shift": "what the exponentials are relative to [rows, 1]", "total": "row sums so far [rows, 1], or None",
        "weighted": "row sums of probabilities * dP so far [rows, 1]",
        "factor": "1 / row sum [rows, 1], or None", "power": "its power of two, or None", "left": "factor / power, or None",
        "most": "power / factor, or None", "delta": "rowsum(P * dP) - dlse [rows, 1]", "centre": "without dlse, or None",
        "dq": "sum so far [rows, head_dim] float32, or None",
    },
    "block": {
        "batch": "index", "head": "kv head", "key": "first key", "keys": "keys", "k": "[TILE, key tiles, head_dim]",
        "v": "[TILE, key tiles, head_dim_v] until it is turned", "k_turned": "per piece of head_dim [depth, key tiles, TILE]",
        "v_turned": "per piece of head_dim_v, the same", "dk": "[TILE, key tiles, head_dim] float32 in PSUM",
        "dv": "[TILE, key tiles, head_dim_v] float32 in PSUM", "begun": "per key tile, True if dk and dv hold something",
        "steps": "number of its steps",
    },
    "step": {
        "tile": "number of the query tile", "block": "number of the key block", "key": "first key", "width": "keys",
        "place": "first key's place in the block", "edge": "True if some row does not see all keys",
        "statistics": "True in the pass over the keys that only finds row statistics",
        "gathers": "True if the step finds its tile's statistics before it uses them",
        "opens_tile": "True for the first step of a query tile", "ends_statistics": "True for the last one of statistics",
        "closes_tile": "True for its last step", "opens_block": "True for the first step of a key block",
        "closes_block": "True for its last",
    },
    "work": {
        "scores": "[rows, width] float32", "dprobs": "dout v^T [rows, width] float32 in PSUM", "bias": "[rows, width], or None",
        "slope": "1 - tanh^2 [rows, width], or None", "probs": "[rows, width]", "dscores": "[rows made even, width]",
        "turned": "dS with keys on partitions [TILE, key tiles, rows made even]",
    },
}  # fmt: skip
"""The dictionaries of the kernel, by name: their keys and what they hold."""

Item = dict[str, Any]
Span = tuple[int, int, int, int]


def units_of(units: int, program: int, programs: int) -> list[int]:
    """The (batch, kv head) pairs of one core; of an odd one out the first core takes all."""
    share = units // programs
    found = []
    for unit in range(program * share, (program + 1) * share):
        found.append(unit)  # noqa: PERF402  (the parser knows append)
    if program == 0:
        for unit in range(programs * share, units):
            found.append(unit)  # noqa: PERF402
    return found


def tiles_of(unit: int, spans: tuple[Span, ...], q_shape: tuple[int, ...], k_shape: tuple[int, ...]) -> list[Item]:
    """The query tiles of all query heads of one unit, by head."""
    heads_kv, seqlen_q, seqlen_kv = k_shape[1], q_shape[2], k_shape[2]
    group = q_shape[1] // heads_kv
    found = []
    for g in range(group):
        for t in range(len(spans)):
            first, visited, full_first, full_last = spans[t]
            # Whole key tiles, so that every product that adds to dk and dv covers the same rows.
            last = min((visited + TILE - 1) // TILE * TILE, seqlen_kv)
            tile = {
                "batch": unit // heads_kv, "head": unit % heads_kv * group + g, "g": g, "row": t * TILE,
                "rows": min(TILE, seqlen_q - t * TILE), "first": first, "last": last, "full_first": full_first,
                "full_last": full_last, "total": None, "weighted": None, "factor": None, "power": None, "left": None,
                "most": None, "shift": None, "delta": None, "centre": None, "lower": None, "upper": None, "dlse": None,
                "dq": None, "run": 0, "slot": 0,
            }  # fmt: skip
            found.append(tile)
    return found


def runs_of(tiles: list[Item], begin: int, end: int) -> list[Item]:
    """Runs of up to `RUN` neighbouring tiles `[begin, end)` of one head, which are loaded and transposed together."""
    runs = []
    count = 0
    for i in range(begin, end):
        tile = tiles[i]
        if i == begin or count == RUN or tiles[i - 1]["head"] != tile["head"]:
            fresh = {
                "batch": tile["batch"],
                "head": tile["head"],
                "row": tile["row"],
                "rows": 0,
                "tiles": 0,
                "edges": False,
                "loaded": False,
                "prepared": False,
                "dlse": None,
            }
            runs.append(fresh)
            count = 0
        count += 1
        run = runs[len(runs) - 1]
        tile["run"] = len(runs) - 1
        tile["slot"] = run["tiles"]
        run["tiles"] = run["tiles"] + 1
        run["rows"] = run["rows"] + tile["rows"]
        if tile["first"] < tile["full_first"] or tile["last"] > tile["full_last"]:
            run["edges"] = True
    return runs


def order_of_work(
    unit: int, tiles: list[Item], begin: int, end: int, k_shape: tuple[int, ...], size: int, find: bool
) -> tuple[list[Item], list[Item]]:
    """Key blocks and steps of the query tiles `[begin, end)` of one unit: by key block, then query tile.

    Args:
      unit: the (batch, kv head).
      tiles: as `tiles_of` gives them.
      k_shape: `[batch, num_heads_kv, seqlen_kv, head_dim]`.
      size: keys of a block.
      find: tiles find their row statistics themselves: one whose keys lie in one block in the step that uses them, which
        costs no product, others in a pass over their keys before.
    """
    seqlen_kv = k_shape[2]
    blocks = []
    steps = []
    number = 0
    rounds = 1
    for i in range(begin, end):
        tile = tiles[i]
        if find and not _in_one_block(tile, size):
            rounds = 2
    for turn in range(rounds):
        statistics = turn + 1 < rounds
        for cell in range(0, seqlen_kv, size):
            added = 0
            for i in range(begin, end):
                tile = tiles[i]
                key = max(cell, tile["first"])
                stop = min(cell + size, tile["last"])
                alone = _in_one_block(tile, size)
                if key < stop and (not statistics or not alone):
                    step = {
                        "tile": i,
                        "block": number,
                        "key": key,
                        "width": stop - key,
                        "place": key - cell,
                        "edge": key < tile["full_first"] or stop > tile["full_last"],
                        "statistics": statistics,
                        "opens_block": added == 0,
                        "closes_block": False,
                        "opens_tile": False,
                        "ends_statistics": False,
                        "closes_tile": False,
                        "gathers": find and (statistics or alone),
                    }
                    steps.append(step)
                    added += 1
            if added > 0:
                last = steps[len(steps) - 1]
                last["closes_block"] = True
            if added > 0 or not statistics:
                block = {
                    "batch": unit // k_shape[1],
                    "head": unit % k_shape[1],
                    "key": cell,
                    "keys": min(size, seqlen_kv - cell),
                    "steps": added,
                    "dk": None,
                    "dv": None,
                }
                blocks.append(block)
                number += 1
    _mark_tiles(steps, begin, end)
    return blocks, steps


def _in_one_block(tile: Item, size: int) -> bool:
    """True if the keys of a query tile lie in one block."""
    return tile["last"] <= tile["first"] // size * size + size


def _mark_tiles(steps: list[Item], begin: int, end: int) -> None:
    """First and last steps of each query tile `[begin, end)`."""
    opened, closed, known = [False] * (end - begin), [False] * (end - begin), [False] * (end - begin)
    count = len(steps)
    for i in range(count):
        step = steps[i]
        if not opened[step["tile"] - begin]:
            step["opens_tile"] = True
        opened[step["tile"] - begin] = True
    for i in range(count):
        step = steps[count - 1 - i]
        place = step["tile"] - begin
        if not closed[place]:
            step["closes_tile"] = True
        closed[place] = True
        if step["gathers"] and not known[place]:
            step["ends_statistics"] = True
        if step["gathers"]:
            known[place] = True


def bias_jobs(shape: tuple[int, ...], batch: int, heads: int, seqlen_q: int, program: int, programs: int) -> list[Item]:
    """What one core computes of the bias's gradient `shape` = [batch or 1, num_heads_q or 1, seqlen_q or 1, seqlen_kv]: for
    each of its planes, and each query tile if it has rows, the batches, heads and query tiles that are summed.
    """
    tiles, jobs = (seqlen_q + TILE - 1) // TILE, []
    for b in range(shape[0]):
        for h in range(shape[1]):
            runs = 1
            if shape[2] > 1:
                runs = tiles
            for t in range(runs):
                job = {
                    "batch": b,
                    "batch_end": b + 1,
                    "head": h,
                    "head_end": h + 1,
                    "tile": t,
                    "tile_end": t + 1,
                    "rows": min(TILE, seqlen_q - t * TILE),
                }
                if shape[0] == 1:
                    job["batch_end"] = batch
                if shape[1] == 1:
                    job["head_end"] = heads
                if shape[2] == 1:
                    job["tile_end"] = tiles
                    job["rows"] = 0
                jobs.append(job)
    share = (len(jobs) + programs - 1) // programs
    found = []
    for i in range(program * share, min((program + 1) * share, len(jobs))):
        found.append(jobs[i])
    return found


def row_steps(unit: int, tile: Item, k_shape: tuple[int, ...], size: int, statistics: bool) -> tuple[list[Item], list[Item]]:
    """Blocks and steps of one query tile alone, one block for each step."""
    blocks, steps = order_of_work(unit, [tile], 0, 1, k_shape, size, False)
    found = []
    for i in range(len(steps)):
        step = steps[i]
        step["statistics"] = statistics
        step["gathers"] = statistics
        found.append(blocks[step["block"]])
    return found, steps
