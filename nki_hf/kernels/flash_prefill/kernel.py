"""flash_prefill: attention of many queries, online softmax, software-pipelined in the source.

Per (batch, kv head) the keys and values stay in SBUF if they fit (else they stream in sections), and all query heads of the
group read them there. A *step* is one score block, up to 128 query rows of one head by up to 512 keys:

    scores   Tensor   scores[rows, keys] in PSUM = q.T @ k, head_dim contracted in pieces of 128
    shift    Vector   softcap, bias and mask, row maximum
    exp      Scalar   probabilities = exp(scale * scores - scale * maximum), 16-bit (float32 for float32 inputs), with their
                      row sum in float32
    turn     Tensor   128 x 128 transposes of the probabilities into one PSUM bank;  Scalar: one copy back to SBUF
    output   Tensor   probabilities @ v in PSUM;  Vector: accumulator = accumulator * correction + that, float32

Queues run in order, so iteration i issues scores(i), shift(i-1), exp(i-2), turn(i-3), output(i-4): no engine waits for what
another computes in the same iteration. Consecutive steps belong to different heads of the group, which spreads the dependency
between the steps of one row. Blocks lie on the 512-key grid and are cut to the 128-key grid at the ends of a query tile's keys,
so that a causal edge costs no more than its visible keys; blocks without visible keys do not exist.

Masks: `spans` says which keys a query tile visits and which of those all of its rows see. Blocks outside the latter select
by per-row bounds, on NeuronCore-v3 and newer in the instruction that takes the row maximum. Hidden scores are float32's
lowest value before the maximum is taken; a row whose maximum stays there is empty: zeros, and lse = -inf (or the sink).
A NaN in q or k reaches the rows that see it, one in v the query tiles that visit it; on NeuronCore-v2, whose transposes are
products with an identity, a NaN reaches all rows of its query tile.

Layouts (all HBM, row-major):
    q    [batch, num_heads_q, head_dim, seqlen_q]    head_dim 1..256; a load reads q_rows elements in a row
    k    [batch, num_heads_kv, head_dim, seqlen_kv]  a load reads 2,048 elements in a row
    v    [batch, num_heads_kv, seqlen_kv, head_dim_v]  head_dim_v 1..256; read once per kv head, one row per key: longer
         rows would need the keys permuted, which would undo the cutting of edge blocks
    lo, hi  int32 [batch or 1, seqlen_q]: row i sees keys lo <= key < hi; None = bounds follow from q_offset, window, ahead
    bias    [batch or 1, num_heads_q or 1, seqlen_q or 1, seqlen_kv]: uint8 (0 hides) or float32 (float32's lowest hides)
    sink    float32 [1, num_heads_q]
Returns out [batch, seqlen_q, num_heads_q, head_dim_v] (dtype of q; the heads of a group are written as one row) and
lse [batch, num_heads_q, seqlen_q] float32, natural logarithm; with `row_statistics` also row_shift (the largest score of a row
or its sink, whichever is larger; -inf without both) and row_sum, like lse; with `out_rest`, which needs `row_statistics`, as
well out_rest, like out in float32: what out lost when it was rounded.

`kernel[2]` divides the (batch, kv head) pairs; of an odd one out the cores divide the query tiles.

Budget: `plan.py` chooses q_rows, q_heads and section so that SBUF use stays within the chip's partition
size less 16 KiB; `PrefillPlan.budget` has it by purpose. With head_dim 128, bfloat16, causal, 4,096 keys and 2 query heads per
kv head it is 80,176 B per partition, k and v of the next kv head included.
PSUM: 3 banks of scores, 2 of transposes, 2 of output, 1 for the statistics: all 8.

Source: online softmax, arXiv:2205.14135, algorithm 1.
"""

from nki_hf.kernels.flash_prefill.loads import load_section, load_sink, open_block
from nki_hf.kernels.flash_prefill.row_statistics import write_statistics
from nki_hf.kernels.flash_prefill.stages import exp_stage, output_stage, score_stage, shift_stage, turn_stage
from nki_hf.kernels.flash_prefill.steps import divided, order_of_work
from nki_hf.lang import nisa, nki, nl

CHUNK = 2048


@nki.jit
def flash_prefill(
    q,
    k,
    v,
    lo=None,
    hi=None,
    bias=None,
    sink=None,
    spans=(),
    row_split=0,
    q_rows=1024,
    q_heads=1,
    section=CHUNK,
    softmax_scale=1.0,
    softcap=None,
    q_offset=0,
    window=None,
    ahead=None,
    row_statistics=False,
    out_rest=False,
    sources="",
):
    """Attention output and log-sum-exp; see the module for layouts and `plan.PrefillPlan` for the constants.

    `sources` is not read: a digest of the kernel's files makes every change of them another kernel to the compiler's cache.
    """
    batch, num_heads_q, seqlen_q = q.shape[0], q.shape[1], q.shape[3]
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
    program, programs = 0, 1
    if nl.program_ndim() > 0:
        program, programs = nl.program_id(axis=0), nl.num_programs(axes=0)

    # What multiplies the scores that the softmax sees. Both the cap and an additive bias leave scores of their own scale in
    # SBUF; a scale that is not positive is applied first, because the row maximum must be that of the scaled scores.
    scaled = softcap == None and softmax_scale <= 0.0  # noqa: E711  (NKI's front end knows no `is`)
    additive = bias != None and bias.dtype == nl.float32  # noqa: E711
    slope = softmax_scale
    if softcap != None:  # noqa: E711
        slope = softcap
    if scaled or additive:
        slope = 1.0
    env = {
        "q": q, "k": k, "v": v, "lo": lo, "hi": hi, "bias": bias, "out": out, "lse": lse,
        "row_shift": row_shift, "row_sum": row_sum, "out_rest": rest, "spans": spans, "scale": softmax_scale,
        "softcap": softcap, "slope": slope, "scaled": scaled, "additive": additive, "q_offset": q_offset, "window": window,
        "ahead": ahead, "has_ranges": nisa.get_nc_version() >= nisa.nc_version.gen3, "sink": None, "negative_sink": None,
    }  # fmt: skip
    if sink != None:  # noqa: E711
        load_sink(env, sink)

    tasks = divided(batch * k.shape[1], len(spans), row_split, program, programs)
    blocks, sections, steps = order_of_work(tasks, spans, q.shape, k.shape, q_rows, q_heads, section)
    count = len(steps)
    live = [None, None, None, None, None]
    for i in range(count + 4):
        if i < count:
            step = steps[i]
            if step["opens_section"]:
                load_section(env, sections[step["section"]])
            if step["opens_block"]:
                open_block(env, blocks[step["block"]])
            live[i % 5] = score_stage(env, step, blocks[step["block"]], sections[step["section"]])
        if i >= 1 and i - 1 < count:
            step = steps[i - 1]
            shift_stage(env, step, live[(i - 1) % 5], blocks[step["block"]])
        if i >= 2 and i - 2 < count:
            exp_stage(env, steps[i - 2], live[(i - 2) % 5])
        if i >= 3 and i - 3 < count:
            turn_stage(steps[i - 3], live[(i - 3) % 5])
        if i >= 4:
            step = steps[i - 4]
            output_stage(env, step, live[(i - 4) % 5], blocks[step["block"]], sections[step["section"]])
            if step["closes_block"]:
                write_statistics(env, blocks[step["block"]])
            if step["closes_section"]:
                sections[step["section"]] = None
            live[(i - 4) % 5] = None
    if out_rest:
        return out, lse, row_shift, row_sum, rest
    if row_statistics:
        return out, lse, row_shift, row_sum
    return out, lse
