"""flash_decode: 1 to 16 query rows per sequence against a cache; keys and values are read once, as Transformers keeps them.

All query rows of the heads that share a kv head are the rows of one problem. Keys come in chunks of `128 * per_partition`,
counted from the first key that any row of the sequence sees; a *step* is up to `group` tiles of 128 keys of one chunk by one
block of up to 128 rows:

    turn     Tensor   key tiles [128 keys, head_dim] to [head_dim, 128 keys];  Vector and Scalar: copies to SBUF
    scores   Tensor   scores[keys, rows] in PSUM: the mask, and k.T @ q with the key tile stationary
    maximum  Vector   over key tiles; Tensor: turned; Vector: over keys; raises the running maximum of each row
    exp      Tensor   minus the maximum, as one more product into the scores;  Scalar: probs = exp(slope * scores)
    output   Tensor   probs.T @ v in PSUM, and the row sums;  Vector: accumulator = accumulator * correction + that

The maximum is exact: no row can overflow or vanish, whatever its scores, so nothing has to be certified afterwards. Steps of
all chunks and heads follow each other in one pipeline; keys are loaded `prefetch` chunks ahead.

The live length is data. The transfers of chunk `c` start at a run-time register: at key `start + 128 c per_partition`, counted
from the first key that any row of the sequence sees, or out of bounds, where nothing is transferred. A chunk is read whole
where it ends before the last visible key; what is left, the tail, is always the program's last chunk and read in four
quarters of 32 partitions, those behind the last visible key not at all. So at most `32 * per_partition - 1` keys too many are
read, whatever `chunks` is, and results do not depend on it. What then lies in a tile is zeros or older keys, which the mask
hides. Hidden keys of the same sequence within a quarter of visible ones must be finite, as in a softmax that is written out.
What is not finite in one sequence reaches no other: where bounds differ by sequence, a buffer is zeroed before another sequence
loads into it. It may reach other heads of its own sequence.

Layouts (all HBM, row-major):
    q    [batch, num_heads_q, seqlen_q, head_dim]    seqlen_q 1..16, head_dim 1..256
    k    [batch, num_heads_kv, seqlen_kv, head_dim]  at least `32 * per_partition` keys
    v    [batch, num_heads_kv, seqlen_kv, head_dim_v]  head_dim_v 1..256
    lo, hi  int32 [batch or 1, seqlen_q]: row i sees keys lo <= key < hi; at most `chunks` chunks from the lowest lo to the
            highest hi of a sequence
    sink    float32 [1, num_heads_q]
Returns out [batch, seqlen_q, num_heads_q, head_dim_v] (dtype of q) and lse [batch, num_heads_q, seqlen_q] float32, natural
logarithm; with `row_statistics` also row_shift, the largest score of a row or its sink, and row_sum, like lse; with `out_rest`,
which needs `row_statistics`, as well out_rest, like out in float32: what out lost when it was rounded. A row without
keys gives zeros, and -inf for lse and row_shift (with a sink: the sink).

`kernel[2]` divides the (batch, kv head) units; the chunks of an odd one out are dealt to the cores, and the two results are
merged by their maxima and sums (the first core takes it where cores exchange nothing: NeuronCore-v2).

Source: online softmax, arXiv:2205.14135, algorithm 1; split over keys, arXiv:2311.01282.
"""

from nki_hf.kernels.flash_decode.bounds import (
    load_bounds,
    mask_of,
    number_keys,
    number_rows,
    place_chunks,
    place_tail,
)
from nki_hf.kernels.flash_decode.finish import finish_block, lse_offsets, write_rows, write_statistics
from nki_hf.kernels.flash_decode.loads import (
    clear_values,
    load_constants,
    load_keys,
    load_queries,
    load_values,
    open_buffers,
    open_pairs,
    turn_queries,
)
from nki_hf.kernels.flash_decode.stages import (
    accumulate,
    close_sums,
    exponentials,
    gathered,
    maximum,
    output,
    scores,
    sums,
    tops,
    turn,
)
from nki_hf.kernels.flash_decode.work import STAGES, divided, steps_of
from nki_hf.lang import nisa, nki, nl

TILE = 128


@nki.jit
def flash_decode(
    q,
    k,
    v,
    lo,
    hi,
    sink=None,
    chunks=1,
    per_partition=16,
    prefetch=2,
    softmax_scale=1.0,
    softcap=None,
    row_statistics=False,
    out_rest=False,
):
    """Attention output and log-sum-exp; see the module for layouts and `plan.DecodePlan` for the constants."""
    batch, heads_kv, seqlen_q = k.shape[0], k.shape[1], q.shape[2]
    out = nl.ndarray((batch, seqlen_q, q.shape[1], v.shape[3]), dtype=q.dtype, buffer=nl.shared_hbm, name="out")
    lse = nl.ndarray((batch, q.shape[1], seqlen_q), dtype=nl.float32, buffer=nl.shared_hbm, name="lse")
    row_shift = None
    row_sum = None
    if row_statistics:
        row_shift = nl.ndarray(lse.shape, dtype=nl.float32, buffer=nl.shared_hbm, name="row_shift")
        row_sum = nl.ndarray(lse.shape, dtype=nl.float32, buffer=nl.shared_hbm, name="row_sum")
    rest = None
    if out_rest:
        rest = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.shared_hbm, name="out_rest")
    program, programs = 0, 1
    if nl.program_ndim() > 0:
        program, programs = nl.program_id(axis=0), nl.num_programs(axes=0)
    group_size = q.shape[1] // heads_kv
    heads = max(1, min(group_size, TILE // seqlen_q))
    # What multiplies the scores that the softmax sees; a negative scale goes into the queries, one of 0 makes them 0.
    slope, factor = softmax_scale, 1.0
    if softmax_scale < 0.0:
        slope, factor = -softmax_scale, -1.0
    if softmax_scale == 0.0:
        slope, factor = 1.0, 0.0
    env = {
        "q": q, "k": k, "v": v, "lo": lo, "hi": hi, "sink": sink, "out": out, "lse": lse,
        "row_shift": row_shift, "row_sum": row_sum, "out_rest": rest, "rest": None, "chunks": chunks,
        "per_partition": per_partition, "prefetch": prefetch, "scale": slope, "slope": slope, "factor": factor,
        "softcap": softcap, "group_size": group_size, "heads": heads, "rows": group_size * seqlen_q,
        "block_rows": heads * seqlen_q, "program": program, "copies": 0,
    }  # fmt: skip
    if softcap != None:  # noqa: E711  (NKI's front end knows no `is`)
        env["slope"] = softcap
    exchange = nisa.get_nc_version() >= nisa.nc_version.gen3
    segments = divided(batch * heads_kv, chunks, program, programs, exchange)
    steps, loads, blocks = steps_of(segments, heads_kv, per_partition, env["rows"], env["block_rows"], chunks)
    # Two rings generate descriptors from NeuronCore-v3 on; before, they lie ready.
    env["rings"] = [nisa.engine.unknown, nisa.engine.unknown]
    if exchange:
        env["rings"] = [nisa.engine.sync, nisa.engine.scalar]
    env["segments"] = segments
    env["written"] = 0
    env["together"] = 1
    for n in range(len(steps)):
        env["together"] = max(env["together"], steps[n]["loads"])
    env["loads"] = loads
    env["blocks"] = blocks
    if len(segments) == 0:
        if out_rest:
            return out, lse, row_shift, row_sum, rest
        if row_statistics:
            return out, lse, row_shift, row_sum
        return out, lse
    # What the first transfer waits for goes first.
    edges = load_bounds(env)
    load_queries(env)
    open_buffers(env)
    number_keys(env)
    number_rows(env)
    place_chunks(env, edges)
    whole = loads[0]["chunk"] < chunks - 1
    if whole:
        load_keys(env, 0)
    place_tail(env)
    if not whole:
        load_keys(env, 0)
    load_values(env, 0, 0)
    load_constants(env)
    load_keys(env, 1)
    mask_of(env, steps[0]["batch"])
    load_values(env, 0, 1)
    open_pairs(env)
    clear_values(env)
    turn_queries(env)
    for n in range(2, prefetch + 1):
        load_keys(env, n)
        load_values(env, 0, min(n, 2))
    count, closed = len(steps), 0
    # A sink, or the other core, still changes the maxima.
    later, offsets = sink != None or segments[len(segments) - 1]["shared"], None  # noqa: E711
    for i in range(count + STAGES + 2):
        summed = None
        if i >= 4 and i - 4 < count:
            if i - 2 < count and len(env["pairs"]) > 0:
                summed = steps[i - 4]
                sums(env, summed, steps[i - 2])
            else:
                sums(env, steps[i - 4], None)
        if i < count:
            mask_of(env, steps[i]["batch"])
            turn(env, steps[i])
        if i >= 1 and i - 1 < count:
            scores(env, steps[i - 1])
        # Not before: the simulator's scores are those of the keys themselves, as long as nothing has overwritten them.
        if i < count:
            if steps[i]["closes"]:
                for n in range(steps[i]["loads"]):
                    load_keys(env, steps[i]["number"] + n + prefetch + 1)
        if i >= 2 and i - 2 < count:
            maximum(env, steps[i - 2], summed)
            if i - 2 == count - 1 and not later:
                offsets = lse_offsets(env)
        if i >= 3 and i - 3 < count:
            exponentials(env, steps[i - 3])
        if i >= 1 and i - 1 < count:
            tops(env, steps[i - 1], i - 1)
        if i > STAGES + 1 and i - STAGES >= count - 1:
            _finish(env, steps[i - STAGES - 2])
        # What does not wait for the last values goes before the product that does, unless that one waits for the engine.
        early = i - STAGES == count - 1 and not later
        if early and len(env["pairs"]) == 0:
            _write_sums(env, steps, offsets)
        if i >= STAGES and i - STAGES < count:
            output(env, steps[i - STAGES])
            if steps[i - STAGES]["closes"]:
                closed = steps[i - STAGES]["number"] + steps[i - STAGES]["loads"]
        if early and len(env["pairs"]) > 0:
            _write_sums(env, steps, offsets)
        # Keys have further to go than values, so values of a step follow its turn; nothing follows the last keys.
        opened = len(loads)
        if i == 0:
            opened = 0
        elif i < count and steps[i]["number"] + prefetch + 1 < len(loads):
            opened = steps[i - 1]["number"]
        load_values(env, closed, opened)
        if i > STAGES and i - STAGES - 1 < count:
            gathered(env, steps[i - STAGES - 1])
            accumulate(env, steps[i - STAGES - 1])
        if i > STAGES + 1 and i - STAGES < count - 1:
            _finish(env, steps[i - STAGES - 2])
    if later:
        write_statistics(env, lse_offsets(env))
    if out_rest:
        return out, lse, row_shift, row_sum, rest
    if row_statistics:
        return out, lse, row_shift, row_sum
    return out, lse


def _finish(env, step):
    """The rows of a step's block, if it is their last step."""
    if step["last"]:
        place = step["block"]
        finish_block(env, env["blocks"][place])
        if env["loaded"] == len(env["loads"]):
            write_rows(env, place + 1)


def _write_sums(env, steps, offsets):
    """What is written of all rows' sums, before the last step's product."""
    for n in range(max(0, len(steps) - 2), len(steps)):
        close_sums(env, steps[n])
    write_statistics(env, offsets)
