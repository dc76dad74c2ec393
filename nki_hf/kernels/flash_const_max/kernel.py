"""flash_const_max: attention of many queries; softmax with a constant shift, certified afterwards; scores are transposed.

A step is up to `group` key tiles of 128 keys by a block of up to 512 query columns:

    scores   Tensor   scores[keys, columns] in PSUM = k.T @ q, the key tile stationary
    copy     Vector   scores to SBUF, of the `copied` steps behind each one that is not copied
    exp      Scalar   probs[keys, columns] = exp(scale * scores - shift), bfloat16: the layout that the next product needs
    edge     GpSimd   hidden cells of key tiles at an edge of the mask become 0 (bounds per row: `masks.py`)
    output   Tensor   [out | row sum][queries, head_dim_v + 1] += probs.T @ [v | 1], in PSUM over all keys of the block

No row maximum, no correction, no transpose. Steps of all blocks and heads follow each other in one pipeline; output runs
`lag` steps behind scores, loads up to `prefetch` steps ahead. `late` steps after its last output a block is normalised,
from PSUM, and written.

The shift is right for a row if its sum lies in [1, SUM_MAX] and its accumulators are finite: a sum of 1 or more means that what
was flushed to zero weighs as little as under the exact row maximum, whose sum is 1 or more as well; sums and accumulators that
overflow stay inf or NaN. `finish.py` checks both for every row and counts the rows of each query tile that fail.

Layouts (all HBM, row-major): q, k, v, lo, hi, sink, out and lse as in `flash_prefill`; bias [batch or 1, 1, 1, seqlen_kv]
uint8 or float32. With `row_statistics` row_shift and row_sum are returned too, like lse: the shift and the row's sum, or what
they are in `flash_prefill` for rows that are computed again; with `out_rest` too out_rest, as in `flash_prefill`. With
`count_failed` the last output, `failed`, is int32 [batch, num_heads_q, query tiles].

`kernel[2]` divides the (batch, kv head) units; of an odd one out the cores divide the query tiles.

PSUM: `group` banks of scores twice; the accumulators of two blocks, 2 banks each for head_dim_v up to 254.
"""

from nki_hf.kernels.flash_const_max.exact import exact_tile, static_place
from nki_hf.kernels.flash_const_max.load_order import loads_of
from nki_hf.kernels.flash_const_max.loads import load_constants
from nki_hf.kernels.flash_const_max.pipeline import run_steps
from nki_hf.kernels.flash_const_max.places import open_places
from nki_hf.kernels.flash_const_max.work import blocks_of, divided, ledgers_of, steps_of
from nki_hf.kernels.flash_const_max.worklist import run_worklist
from nki_hf.lang import nki, nl

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
    copied=0,
    prefetch=16,
    chunk=2048,
    resident=True,
    room=0,
    share_masks=0,
    shift=0.0,
    softmax_scale=1.0,
    q_offset=0,
    window=None,
    ahead=None,
    count_failed=False,
    row_statistics=False,
    out_rest=False,
    exact=(),
):
    """Attention output, log-sum-exp and failed rows, without a loop at run time; see the module for layouts and
    `plan.ConstMaxPlan` for the constants.

    `exact` names query tiles, `(batch, query head, tile)` each, that are computed again with their exact row maximum
    (exact.py).
    """
    env = _setup(
        q, k, v, lo, hi, bias, sink, spans, row_split, block_tiles, group, lag, late, copied, prefetch, chunk,
        resident, room, share_masks, shift, softmax_scale, q_offset, window, ahead, count_failed, row_statistics,
        out_rest,
    )  # fmt: skip
    run_steps(env)
    for place in exact:
        batch, head, tile = place[0], place[1], place[2]
        for segment in env["segments"]:
            mine = segment["unit"] == batch * k.shape[1] + head // env["group_size"]
            if mine and segment["begin"] <= tile and tile < segment["end"]:
                exact_tile(env, static_place(env, batch, head, tile))
    if out_rest and count_failed:
        return env["out"], env["lse"], env["row_shift"], env["row_sum"], env["out_rest"], env["failed"]
    if out_rest:
        return env["out"], env["lse"], env["row_shift"], env["row_sum"], env["out_rest"]
    if row_statistics and count_failed:
        return env["out"], env["lse"], env["row_shift"], env["row_sum"], env["failed"]
    if row_statistics:
        return env["out"], env["lse"], env["row_shift"], env["row_sum"]
    if count_failed:
        return env["out"], env["lse"], env["failed"]
    return env["out"], env["lse"]


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
    copied=0,
    prefetch=16,
    chunk=2048,
    resident=True,
    room=0,
    share_masks=0,
    shift=0.0,
    softmax_scale=1.0,
    q_offset=0,
    window=None,
    ahead=None,
    count_failed=False,
    row_statistics=False,
    out_rest=False,
):
    """`flash_const_max` whose failed query tiles are computed again with their exact row maximum, in a loop at run time."""
    env = _setup(
        q, k, v, lo, hi, bias, sink, spans, row_split, block_tiles, group, lag, late, copied, prefetch, chunk,
        resident, room, share_masks, shift, softmax_scale, q_offset, window, ahead, count_failed, row_statistics,
        out_rest,
    )  # fmt: skip
    open_places(env)
    run_steps(env)
    run_worklist(env)
    if out_rest and count_failed:
        return env["out"], env["lse"], env["row_shift"], env["row_sum"], env["out_rest"], env["failed"]
    if out_rest:
        return env["out"], env["lse"], env["row_shift"], env["row_sum"], env["out_rest"]
    if row_statistics and count_failed:
        return env["out"], env["lse"], env["row_shift"], env["row_sum"], env["failed"]
    if row_statistics:
        return env["out"], env["lse"], env["row_shift"], env["row_sum"]
    if count_failed:
        return env["out"], env["lse"], env["failed"]
    return env["out"], env["lse"]


def _setup(
    q, k, v, lo, hi, bias, sink, spans, row_split, block_tiles, group, lag, late, copied, prefetch, chunk, resident,
    room, share_masks, shift, softmax_scale, q_offset, window, ahead, count_failed,
    row_statistics, out_rest,
):  # fmt: skip
    """What all parts of a launch share: outputs, constants on chip, and the order of this core's work."""
    batch, num_heads_q, seqlen_q = q.shape[0], q.shape[1], q.shape[3]
    columns = v.shape[3] + 1
    pieces = (columns + 511) // 512
    out = nl.ndarray((batch, seqlen_q, num_heads_q, v.shape[3]), dtype=q.dtype, buffer=nl.shared_hbm, name="out")
    lse = nl.ndarray((batch, num_heads_q, seqlen_q), dtype=nl.float32, buffer=nl.shared_hbm, name="lse")
    row_shift = None
    row_sum = None
    if row_statistics:
        row_shift = nl.ndarray((batch, num_heads_q, seqlen_q), dtype=nl.float32, buffer=nl.shared_hbm, name="row_shift")
        row_sum = nl.ndarray((batch, num_heads_q, seqlen_q), dtype=nl.float32, buffer=nl.shared_hbm, name="row_sum")
    rest = None
    if out_rest:
        rest = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.shared_hbm, name="out_rest")
    failed = None
    if count_failed:
        failed = nl.ndarray((batch, num_heads_q, len(spans)), dtype=nl.int32, buffer=nl.shared_hbm, name="failed")
    env = {
        "q": q, "k": k, "v": v, "lo": lo, "hi": hi, "bias": bias, "sink": sink, "out": out, "lse": lse,
        "row_shift": row_shift, "row_sum": row_sum, "out_rest": rest, "failed": failed, "spans": spans, "scale": softmax_scale,
        "shift": shift, "q_offset": q_offset, "window": window, "ahead": ahead, "lag": lag, "late": late, "copied": copied,
        "group_size": num_heads_q // k.shape[1], "piece": (columns + pieces - 1) // pieces,
        "pieces": pieces, "may_be_empty": _may_be_empty(q, k, lo, q_offset, window, ahead), "flags": None,
    }  # fmt: skip
    load_constants(env)

    program, programs = 0, 1
    if nl.program_ndim() > 0:
        program, programs = nl.program_id(axis=0), nl.num_programs(axes=0)
    segments = divided(batch * k.shape[1], len(spans), row_split, program, programs)
    env["segments"] = segments
    env["ledgers"] = ledgers_of(segments, env["group_size"])
    env["blocks"] = blocks_of(segments, k.shape[1], env["group_size"], block_tiles)
    env["steps"] = steps_of(env["blocks"], spans, k.shape[3], group, bias == None, copied)  # noqa: E711  (there is no `is`)
    key_bytes = 2 * ((q.shape[2] + TILE - 1) // TILE * TILE + columns)
    masked = 0
    if lo != None:  # noqa: E711
        masked = 1 + share_masks
        if share_masks == 2 and lo.shape[0] == 1:
            masked = 4
    env["loads"] = loads_of(
        env["steps"], env["blocks"], segments, k.shape[3], resident, chunk, key_bytes, room, prefetch, lag, masked
    )
    return env


def _may_be_empty(q, k, lo, q_offset, window, ahead):
    """True if some row may see no key."""
    if lo != None:  # noqa: E711
        return True
    before = ahead != None and q_offset + ahead <= 0  # noqa: E711
    behind = window != None and q_offset + q.shape[3] - window >= k.shape[3]  # noqa: E711
    return before or behind
