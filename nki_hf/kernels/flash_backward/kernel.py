"""flash_backward: the gradients of attention, software-pipelined in the source; memory linear in the sequence.

Queries lie on partitions, so that probabilities and scores' gradients are the stationary operands of dv and dk as they are;
only dq needs dS transposed. A *step* is up to 128 query rows of one head by a block of up to 512 keys (256 where head_dim or
head_dim_v is above 128):

    products  Tensor  scores = q k^T and dprobs = dout v^T, both [rows, keys] in PSUM
    gradient  Scalar  P = exp(scale * scores - shift);  Vector: the mask before it, P = minimum(P * factor, 1) and
                      dS = (dprobs - delta) * P
    keys      Tensor  dv += P^T dout and dk += dS^T q, which stay in PSUM for all queries of a key block; transposes of dS;
                      Scalar: one copy of them to SBUF
    queries   Tensor  dS k in PSUM;  Vector: added to the dq of these rows, float32 in SBUF

with delta = rowsum(dout * (out + out_rest)) - dlse, of which out's part comes from products as dprobs do: a row with one key,
whose out_rest is 0, has a dS of exactly 0. Without out_rest delta errs by a rounding of dprobs to 16 bits, which is more than a
row's dS where one key has nearly all of its weight: with 1 - e for one key, dS is e * dprobs.

Iteration i issues products(i), gradient(i), keys(i-2), queries(i-3), and the loads of what steps further on need; of a step
with a mask, bias or cap it issues the mask at i and the rest of gradient at i+1. Key blocks are the outer loop; the query tiles
of a section (all that fit SBUF, over all query heads of the kv head) stay there. With more than one section dk and dv pass from
one to the next through float32 in HBM.

With `recompute` a query tile finds maximum, sum and delta of its rows from the very scores and dprobs, and needs no out and no
lse: one whose keys lie in one block in the step that uses them, which costs time of Vector and Scalar and no product, others in
a first pass over the same steps. That is what float32 and additive biases need: an lse of 1e8, rounded to float32, says nothing
about how a row's weight is divided, and a gradient that cancels in exact arithmetic does so only if both sides were rounded
alike. For the same reason float32 adds dlse after dprobs - rowsum(P * dprobs), by one more instruction of Vector. Elsewhere
probabilities are P = exp(scale * scores - row_shift) / row_sum, at most 1: the forward pass's own weights, rounded as there,
over their own sum. What a weight of nearly all of a row lost or won by its rounding, it has in the sum too. Weights get the
power of two above 1 / row_sum, which takes none of their digits; q (for dk), dout (for dv) and dq get the rest. Without
row_shift and row_sum P is exp(scale * scores - lse), and rows of equal keys err by the rounding of lse: 0.2 % at 3e4, 3 % at
1e6, all of it at 1e8.

Hidden scores are float32's lowest value before the exponential. Key tiles that no row of a query tile sees have no step; rows,
query tiles and key tiles without a partner have gradients of zero.

Layouts (all HBM, row-major):
    q     [batch, num_heads_q, seqlen_q, head_dim]     head_dim 1..256
    k     [batch, num_heads_kv, seqlen_kv, head_dim]
    v     [batch, num_heads_kv, seqlen_kv, head_dim_v]  head_dim_v 1..256
    dout  [batch, seqlen_q, num_heads_q, head_dim_v]
    out   [batch, seqlen_q, num_heads_q, head_dim_v], None with `recompute`
    row_shift, row_sum  [batch, num_heads_q, seqlen_q] float32 (see `binding.TENSORS`), or both None and lse like them
    out_rest  like out, float32, or None
    dlse  [batch, num_heads_q, seqlen_q] float32, or None
    lo, hi, bias, sink: as in `flash_prefill`
Returns dq, dk, dv as q, k, v, then dsink float32 [batch, num_heads_q] if there is a sink, then dbias float32 in the bias's
shape if `bias_gradient`.

`kernel[2]` divides the (batch, kv head) pairs; of an odd one out the first core does all: n pairs take as long as
ceil(n / 2) on one core. Cores write no element in common.

PSUM: 2 banks each of scores and dprobs, 1 of transposes, 1 of dq, 1 each of dk and dv: all 8.

Source: arXiv:2205.14135, algorithm 4; arXiv:2307.08691, section 3.1.2.
"""

from nki_hf.kernels.flash_backward.bias_gradient import write_bias_gradient
from nki_hf.kernels.flash_backward.key_blocks import close_block, load_block, prepare_block
from nki_hf.kernels.flash_backward.scores import end_statistics, gather_statistics, mask_scores, products
from nki_hf.kernels.flash_backward.stages import gradient_stage, key_stage, query_stage
from nki_hf.kernels.flash_backward.steps import order_of_work, runs_of, tiles_of, units_of
from nki_hf.kernels.flash_backward.tiles import close_tile, load_diagonal, load_run, open_tile, prepare_run
from nki_hf.lang import nisa, nki, nl

TILE = 128
AHEAD = 6
"""Steps between the start of a load and its use."""
PREPARED = 2
"""Steps between a tile's transposes and their use."""


@nki.jit
def flash_backward(
    q,
    k,
    v,
    dout,
    out=None,
    lse=None,
    dlse=None,
    lo=None,
    hi=None,
    bias=None,
    sink=None,
    row_shift=None,
    row_sum=None,
    out_rest=None,
    spans=(),
    section=64,
    block=512,
    recompute=False,
    bias_gradient=False,
    softmax_scale=1.0,
    softcap=None,
    q_offset=0,
    window=None,
    ahead=None,
    sources="",
):
    """Gradients of attention; see the module for layouts and `plan.BackwardPlan` for the constants.

    `sources` is not read: a digest of the kernel's files makes every change of them another kernel to the compiler's cache.
    """
    dq = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm, name="dq")
    dk = nl.ndarray(k.shape, dtype=k.dtype, buffer=nl.shared_hbm, name="dk")
    dv = nl.ndarray(v.shape, dtype=v.dtype, buffer=nl.shared_hbm, name="dv")
    dsink = None
    if sink != None:  # noqa: E711  (NKI's front end knows no `is`)
        dsink = nl.ndarray((q.shape[0], q.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm, name="dsink")
    program, programs = 0, 1
    if nl.program_ndim() > 0:
        program, programs = nl.program_id(axis=0), nl.num_programs(axes=0)
    scaled = softcap == None and softmax_scale <= 0.0  # noqa: E711
    additive = bias != None and bias.dtype == nl.float32  # noqa: E711
    slope = softmax_scale
    if softcap != None:  # noqa: E711
        slope = softcap
    if scaled or additive:
        slope = 1.0
    env = {
        "q": q, "k": k, "v": v, "dout": dout, "out": out, "lse": lse, "dlse": dlse, "lo": lo, "hi": hi, "bias": bias,
        "sink": sink, "row_shift": row_shift, "row_sum": row_sum, "out_rest": out_rest, "dq": dq, "dk": dk, "dv": dv,
        "dsink": dsink,
        "scale": softmax_scale, "softcap": softcap, "slope": slope, "scaled": scaled, "additive": additive,
        "q_offset": q_offset, "window": window, "ahead": ahead, "recompute": recompute,
        "has_ranges": nisa.get_nc_version() >= nisa.nc_version.gen3, "sinks": None, "diagonal": None, "shares": None,
        "section": 0, "sections": 1, "partial_dk": None, "partial_dv": None,
    }  # fmt: skip
    if sink != None:  # noqa: E711
        sinks = nl.ndarray((TILE, sink.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=sinks, src=sink.ap(pattern=[[0, TILE], [1, sink.shape[1]]], offset=0))
        env["sinks"] = sinks
    units = units_of(q.shape[0] * k.shape[1], program, programs)
    for u in range(len(units)):
        _unit(env, units[u], spans, section, block)
    if bias_gradient:
        dbias = nl.ndarray(bias.shape, dtype=nl.float32, buffer=nl.shared_hbm, name="dbias")
        write_bias_gradient(env, dbias, spans, block, program, programs)
        if sink != None:  # noqa: E711
            return dq, dk, dv, dsink, dbias
        return dq, dk, dv, dbias
    if sink != None:  # noqa: E711
        return dq, dk, dv, dsink
    return dq, dk, dv


def _unit(env, unit, spans, section, size):
    """The gradients of one kv head of one batch and of its query heads, a section of query tiles after the other."""
    q, k, v = env["q"], env["k"], env["v"]
    tiles = tiles_of(unit, spans, q.shape, k.shape)
    group = q.shape[1] // k.shape[1]
    if env["diagonal"] == None and not env["recompute"]:  # noqa: E711
        load_diagonal(env)
    if env["sinks"] != None:  # noqa: E711
        shares = nl.ndarray((TILE, group), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=shares, value=0.0)
        env["shares"] = shares
    sections = (len(tiles) + section - 1) // section
    env["sections"] = sections
    if sections > 1:
        env["partial_dk"] = nl.ndarray(k.shape, dtype=nl.float32, buffer=nl.private_hbm)
        env["partial_dv"] = nl.ndarray(v.shape, dtype=nl.float32, buffer=nl.private_hbm)
    for number in range(sections):
        env["section"] = number
        begin, end = number * section, min((number + 1) * section, len(tiles))
        blocks, steps = order_of_work(unit, tiles, begin, end, k.shape, size, env["recompute"])
        runs = runs_of(tiles, begin, end)
        _section(env, tiles, runs, blocks, steps)
        for i in range(begin, end):
            tile = tiles[i]
            if tile["first"] >= tile["last"]:
                _empty_tile(env, tile, runs[tile["run"]])
        for i in range(len(blocks)):
            block = blocks[i]
            if block["steps"] == 0:
                close_block(env, block)
    if env["sinks"] != None:  # noqa: E711
        _write_sink_gradient(env, unit, group)
        env["shares"] = None


def _empty_tile(env, tile, run):
    """A query tile that sees no key: dq is zero; its rows still weigh in the sink's gradient."""
    if env["sinks"] != None:  # noqa: E711
        _load(env, run)
        _prepare(env, run)
        open_tile(env, tile, run)
        if env["recompute"]:
            end_statistics(env, tile)
    close_tile(env, tile)


def _load(env, run):
    if not run["loaded"]:
        load_run(env, run)
        run["loaded"] = True


def _prepare(env, run):
    if not run["prepared"]:
        prepare_run(env, run)
        run["prepared"] = True


def _section(env, tiles, runs, blocks, steps):
    """All steps of one section, pipelined."""
    count = len(steps)
    live = [None, None, None, None]
    for i in range(0 - AHEAD, count + 3):
        if i + AHEAD >= 0 and i + AHEAD < count:
            step = steps[i + AHEAD]
            if step["opens_block"]:
                load_block(env, blocks[step["block"]])
            if step["opens_tile"]:
                tile = tiles[step["tile"]]
                _load(env, runs[tile["run"]])
        if i + PREPARED >= 0 and i + PREPARED < count:
            step = steps[i + PREPARED]
            if step["opens_block"]:
                prepare_block(blocks[step["block"]])
            if step["opens_tile"]:
                tile = tiles[step["tile"]]
                _prepare(env, runs[tile["run"]])
                open_tile(env, tile, runs[tile["run"]])
        if i >= 0 and i < count:
            step = steps[i]
            tile = tiles[step["tile"]]
            work = products(env, step, tile, runs[tile["run"]], blocks[step["block"]])
            live[i % 4] = work
            if step["gathers"]:
                gather_statistics(env, step, tile, work)
                if step["ends_statistics"]:
                    end_statistics(env, tile)
            elif _is_masked(env, step):
                mask_scores(env, step, tile, work)
        if i >= 1 and i - 1 < count:
            step = steps[i - 1]
            if not step["statistics"] and _is_masked(env, step):
                gradient_stage(env, step, tiles[step["tile"]], live[(i - 1) % 4])
        if i >= 0 and i < count:
            step = steps[i]
            if not step["statistics"] and not _is_masked(env, step):
                gradient_stage(env, step, tiles[step["tile"]], live[i % 4])
        if i >= 2 and i - 2 < count:
            step = steps[i - 2]
            if not step["statistics"]:
                tile = tiles[step["tile"]]
                key_stage(step, tile, runs[tile["run"]], blocks[step["block"]], live[(i - 2) % 4])
                if step["closes_block"]:
                    close_block(env, blocks[step["block"]])
        if i >= 3 and i - 3 < count:
            step = steps[i - 3]
            tile, block = tiles[step["tile"]], blocks[step["block"]]
            if not step["statistics"]:
                query_stage(step, tile, block, live[(i - 3) % 4])
                if step["closes_tile"]:
                    close_tile(env, tile)
            if step["closes_block"]:
                block["k"] = None
                block["k_turned"] = None
                block["v_turned"] = None
            live[(i - 3) % 4] = None


def _is_masked(env, step):
    """True if Vector works on the scores before the exponential: the rest of such a step comes an iteration later, so that
    Vector does not wait for Scalar within one.
    """
    return step["edge"] or env["bias"] != None or env["softcap"] != None or env["scaled"]  # noqa: E711


def _write_sink_gradient(env, unit, group):
    """Dsink = -sum over rows of share * delta: the partitions' sums, turned, are added in halves, as errors then stay least."""
    dsink, heads_kv = env["dsink"], env["k"].shape[1]
    offset = unit // heads_kv * dsink.shape[1] + unit % heads_kv * group
    for begin in range(0, group, TILE):
        heads = min(TILE, group - begin)
        bank = nl.ndarray((heads, TILE), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=bank, data=env["shares"][0:TILE, begin : begin + heads], engine=nisa.engine.tensor)
        sums = nl.ndarray((heads, TILE), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=sums, data=bank, op0=nl.multiply, operand0=-1.0)
        for width in (64, 32, 16, 8, 4, 2, 1):
            place = sums[0:heads, 0:width]
            nisa.tensor_tensor(dst=place, data1=place, data2=sums[0:heads, width : 2 * width], op=nl.add)
        nisa.dma_copy(dst=dsink.ap(pattern=[[1, heads], [1, 1]], offset=offset + begin), src=sums[0:heads, 0:1])
