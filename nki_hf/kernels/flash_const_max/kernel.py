"""flash_const_max: attention of many queries; softmax with a constant shift, certified afterwards; scores are transposed.

A step is up to `group` key tiles of 128 keys by a block of up to 512 query columns:

    scores   Tensor   scores[keys, columns] in PSUM = k.T @ q, the key tile stationary
    exp      Scalar   probs[keys, columns] = exp(scale * scores - shift), bfloat16: the layout that the next product needs
    edge     GpSimd   hidden cells of key tiles at an edge of the mask become 0 (bounds per row: `masks.py`)
    output   Tensor   [out | row sum][queries, head_dim_v + 1] += probs.T @ [v | 1], in PSUM over all keys of the block

No row maximum, no correction, no transpose. Steps of all blocks and heads follow each other in one pipeline; output runs `lag`
steps behind scores, loads up to `prefetch` steps ahead. `late` steps after its last output a block is normalised, from PSUM, and
written.

The shift is right for a row if its sum lies in [1, SUM_MAX] and its accumulators are finite: a sum of 1 or more means that what
was flushed to zero weighs as little as under the exact row maximum, whose sum is 1 or more as well; sums and accumulators that
overflow stay inf or NaN. `finish.py` checks both for every row and counts the rows of each query tile that fail.

Layouts (all HBM, row-major): q, k, v, lo, hi, sink, out and lse as in `flash_prefill`; bias [batch or 1, 1, 1, seqlen_kv]
uint8 or float32. `failed` is int32 [batch, num_heads_q, query tiles].

`kernel[2]` divides the (batch, kv head) units; of an odd one out the cores divide the query tiles.

PSUM: `group` banks of scores twice; the accumulators of two blocks, 2 banks each for head_dim_v up to 254.
"""

from nki_hf.kernels.flash_const_max.exact import exact_tile, static_place
from nki_hf.kernels.flash_const_max.finish import finish_block
from nki_hf.kernels.flash_const_max.loads import load_constants, load_keys, load_queries, load_rows, turn_rows
from nki_hf.kernels.flash_const_max.masks import MASKS_AHEAD, add_masks, hide_edges, join_masks, make_masks
from nki_hf.kernels.flash_const_max.work import blocks_of, divided, ledgers_of, loads_of, steps_of
from nki_hf.kernels.flash_const_max.worklist import open_worklist, run_worklist
from nki_hf.lang import nisa, nki, nl

TILE = 128


@nki.jit
def flash_const_max(
    q,
    k,
    v,
    lo=None,
    hi=None,
    bias=None,
    sink=None,
    spans=(),
    row_split=0,
    block_tiles=4,
    group=3,
    lag=3,
    late=1,
    prefetch=16,
    chunk=2048,
    resident=True,
    room=0,
    keep_masks=False,
    shift=0.0,
    softmax_scale=1.0,
    q_offset=0,
    window=None,
    ahead=None,
    exact=(),
):
    """Attention output, log-sum-exp and failed rows, without a loop at run time; see the module for layouts and
    `plan.ConstMaxPlan` for the constants.

    `exact` names query tiles, `(batch, query head, tile)` each, that are computed again with their exact row maximum (exact.py).
    """
    return _attention(
        q, k, v, lo, hi, bias, sink, spans, row_split, block_tiles, group, lag, late, prefetch, chunk, resident,
        room, keep_masks, shift, softmax_scale, q_offset, window, ahead, exact, False,
    )


@nki.jit
def flash_const_max_loop(
    q,
    k,
    v,
    lo=None,
    hi=None,
    bias=None,
    sink=None,
    spans=(),
    row_split=0,
    block_tiles=4,
    group=3,
    lag=3,
    late=1,
    prefetch=16,
    chunk=2048,
    resident=True,
    room=0,
    keep_masks=False,
    shift=0.0,
    softmax_scale=1.0,
    q_offset=0,
    window=None,
    ahead=None,
):
    """`flash_const_max` whose failed query tiles are computed again with their exact row maximum, in a loop at run time."""
    return _attention(
        q, k, v, lo, hi, bias, sink, spans, row_split, block_tiles, group, lag, late, prefetch, chunk, resident,
        room, keep_masks, shift, softmax_scale, q_offset, window, ahead, (), True,
    )


def _attention(
    q, k, v, lo, hi, bias, sink, spans, row_split, block_tiles, group, lag, late, prefetch, chunk, resident, room,
    keep_masks, shift, softmax_scale, q_offset, window, ahead, exact, loops,
):
    """The common part of both entries."""
    batch, num_heads_q, seqlen_q = q.shape[0], q.shape[1], q.shape[3]
    head_dim_v, tiles = v.shape[3], len(spans)
    out = nl.ndarray((batch, seqlen_q, num_heads_q, head_dim_v), dtype=q.dtype, buffer=nl.shared_hbm, name="out")
    lse = nl.ndarray((batch, num_heads_q, seqlen_q), dtype=nl.float32, buffer=nl.shared_hbm, name="lse")
    failed = nl.ndarray((batch, num_heads_q, tiles), dtype=nl.int32, buffer=nl.shared_hbm, name="failed")
    program, programs = 0, 1
    if nl.program_ndim() > 0:
        program, programs = nl.program_id(axis=0), nl.num_programs(axes=0)

    columns = head_dim_v + 1
    pieces = (columns + 511) // 512
    env = {
        "q": q, "k": k, "v": v, "lo": lo, "hi": hi, "bias": bias, "sink": sink, "out": out, "lse": lse, "failed": failed,
        "spans": spans, "scale": softmax_scale, "shift": shift, "q_offset": q_offset, "window": window, "ahead": ahead,
        "group_size": num_heads_q // k.shape[1], "piece": (columns + pieces - 1) // pieces, "pieces": pieces,
        "may_be_empty": _may_be_empty(q, k, lo, q_offset, window, ahead),
    }  # fmt: skip
    load_constants(env)

    segments = divided(batch * k.shape[1], tiles, row_split, program, programs)
    ledgers = ledgers_of(segments, env["group_size"])
    slots = 0
    for ledger in ledgers:
        ledger["place"] = slots
        slots = slots + ledger["slots"]
    env["flags"] = None
    if loops and slots > 0:
        open_worklist(env, segments, slots)
    blocks = blocks_of(segments, k.shape[1], env["group_size"], block_tiles)
    steps = steps_of(blocks, spans, k.shape[3], group, bias == None)  # noqa: E711  (NKI's front end knows no `is`)
    key_bytes = 2 * ((q.shape[2] + TILE - 1) // TILE * TILE + columns)
    masked = 0
    if lo != None:  # noqa: E711
        masked = 1 + keep_masks * (1 + (lo.shape[0] == 1))
    loads = loads_of(steps, blocks, segments, k.shape[3], resident, chunk, key_bytes, room, prefetch, lag, masked)
    count = len(steps)
    for i in range(count + lag + late):
        if i < count:
            for load in loads[i]:
                if load["kind"] == "rows":
                    load_rows(env, load, segments[load["segment"]])
                elif load["kind"] == "q":
                    load_queries(env, blocks, load["block"])
                else:
                    load_keys(env, load, blocks[load["block"]])
            step = steps[i]
            block = blocks[step["block"]]
            if lo != None:  # noqa: E711
                if block["rows"]["edges"] == None:  # noqa: E711
                    turn_rows(env, block["rows"])
                make_masks(env, step, block, 1000)
                join_masks(env, 0)
                more = 1
                for n in range(i + 1, min(i + MASKS_AHEAD + 1, count)):
                    more = make_masks(env, steps[n], blocks[steps[n]["block"]], more)
            _scores(env, step, block)
            _exponentials(env, step, block)
            if lo == None:  # noqa: E711
                hide_edges(env, step, block)
        if i >= lag and i - lag < count:
            step = steps[i - lag]
            block = blocks[step["block"]]
            if step["opens"]:
                _open_accumulators(env, block)
            _output(env, step, block)
            for cell in step["cells"]:
                if cell["load"]["last"] == i - lag:
                    cell["load"]["k"] = None
                    cell["load"]["v"] = None
        if i >= lag + late:
            step = steps[i - lag - late]
            if step["closes"]:
                finish_block(env, blocks, step["block"], segments, ledgers)
    if loops and slots > 0:
        run_worklist(env)
    for place in exact:
        batch_entry, head, tile = place[0], place[1], place[2]
        unit = batch_entry * k.shape[1] + head // env["group_size"]
        for segment in segments:
            if segment["unit"] == unit and segment["begin"] <= tile and tile < segment["end"]:
                exact_tile(env, static_place(env, batch_entry, head, tile))
    return out, lse, failed


def _may_be_empty(q, k, lo, q_offset, window, ahead):
    """True if some row may see no key."""
    if lo != None:  # noqa: E711
        return True
    before = ahead != None and q_offset + ahead <= 0  # noqa: E711
    behind = window != None and q_offset + q.shape[3] - window >= k.shape[3]  # noqa: E711
    return before or behind


def _scores(env, step, block):
    """scores[keys, columns] = k.T @ q of each cell, head_dim contracted in pieces of 128."""
    cells = step["cells"]
    if len(cells) == 0:
        return
    tile = nl.ndarray((TILE, len(cells), block["pitch"]), dtype=nl.float32, buffer=nl.psum)
    for n in range(len(cells)):
        cell = cells[n]
        keys, begin, end = cell["keys"], cell["begin"], cell["end"]
        load = cell["load"]
        place = cell["key"] - load["begin"]
        for piece in range(len(load["k"])):
            part = load["k"][piece]
            queries = block["q"][piece]
            depth = part.shape[0]
            nisa.nc_matmul(
                dst=tile[0:keys, n, begin:end],
                stationary=part[0:depth, cell["unit"], place : place + keys],
                moving=queries[0:depth, begin:end],
            )
        if env["lo"] != None and len(cell["edges"]) > 0:  # noqa: E711
            add_masks(env, tile[0:keys, n, 0 : block["columns"]], block, cell)
    step["scores"] = tile


def _exponentials(env, step, block):
    """probs = exp(scale * scores - shift + bias of the key), one instruction per run."""
    cells, runs = step["cells"], step["runs"]
    if len(cells) == 0:
        return
    scores = step["scores"]
    probs = nl.ndarray((TILE, len(cells), block["pitch"]), dtype=env["v"].dtype, buffer=nl.sbuf)
    for n in range(len(runs)):
        first, last = runs[n][0], runs[n][1]
        cell = cells[first]
        keys, begin, end = cell["keys"], cell["begin"], cell["end"]
        offset = env["offset"][0:keys, 0:1]
        if env["bias"] != None:  # noqa: E711
            number = cell["key"] // TILE
            offset = env["key_bias"][min(block["batch"], env["bias"].shape[0] - 1)][0:keys, number : number + 1]
        nisa.activation(
            dst=probs[0:keys, first:last, begin:end], op=nl.exp, data=scores[0:keys, first:last, begin:end], bias=offset,
            scale=env["scale"],
        )  # fmt: skip
    step["probs"] = probs
    step["scores"] = None


def _open_accumulators(env, block):
    """One region of `piece` columns per column tile and piece of [v | 1]; as many in a bank as fit evenly."""
    regions = block["tiles"] * block["heads"] * env["pieces"]
    banks = (regions + 512 // env["piece"] - 1) // (512 // env["piece"])
    block["per_bank"] = (regions + banks - 1) // banks
    block["accumulators"] = []
    for bank in range(banks):
        size = min(block["per_bank"], regions - bank * block["per_bank"])
        block["accumulators"].append(nl.ndarray((TILE, size, env["piece"]), dtype=nl.float32, buffer=nl.psum))


def _output(env, step, block):
    """[out | row sum] += probs.T @ [v | 1], bank by bank."""
    cells, heads = step["cells"], block["heads"]
    for bank in range(len(block["accumulators"])):
        tile = block["accumulators"][bank]
        for n in range(len(cells)):
            cell = cells[n]
            load = cell["load"]
            keys, slot = cell["keys"], (cell["key"] - load["begin"]) // TILE
            for place in range(tile.shape[1]):
                region = bank * block["per_bank"] + place
                column, piece = region // env["pieces"], region % env["pieces"]
                if column // heads in cell["seen"]:
                    begin = piece * env["piece"]
                    end = min(begin + env["piece"], env["v"].shape[3] + 1)
                    nisa.nc_matmul(
                        dst=tile[0:TILE, place, 0 : end - begin],
                        stationary=step["probs"][0:keys, n, column * TILE : (column + 1) * TILE],
                        moving=load["v"][0:keys, cell["unit"], slot, begin:end],
                    )
    step["probs"] = None
