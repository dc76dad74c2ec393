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

from nki_hf.kernels.flash_prefill.row_statistics import empty_above, write_statistics
from nki_hf.kernels.flash_prefill.steps import divided, order_of_work
from nki_hf.kernels.hidden import select, select_between
from nki_hf.lang import nisa, nki, nl

TILE = 128
BLOCK = 512
CHUNK = 2048
FP32_MAX = 3.4028235e38
FP32_MIN = -3.4028235e38


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
        _load_sink(env, sink)

    tasks = divided(batch * k.shape[1], len(spans), row_split, program, programs)
    blocks, sections, steps = order_of_work(tasks, spans, q.shape, k.shape, q_rows, q_heads, section)
    count = len(steps)
    live = [None, None, None, None, None]
    for i in range(count + 4):
        if i < count:
            step = steps[i]
            if step["opens_section"]:
                _load_section(env, sections[step["section"]])
            if step["opens_block"]:
                _open_block(env, blocks[step["block"]])
            live[i % 5] = _scores(env, step, blocks[step["block"]], sections[step["section"]])
        if i >= 1 and i - 1 < count:
            step = steps[i - 1]
            _shift(env, step, live[(i - 1) % 5], blocks[step["block"]])
        if i >= 2 and i - 2 < count:
            _exponentials(env, steps[i - 2], live[(i - 2) % 5])
        if i >= 3 and i - 3 < count:
            _turn(steps[i - 3], live[(i - 3) % 5])
        if i >= 4:
            step = steps[i - 4]
            _output(env, step, live[(i - 4) % 5], blocks[step["block"]], sections[step["section"]])
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


# ---- loads ----------------------------------------------------------------------------------------------------------


def _load_sink(env, sink):
    """The sinks on every partition, [TILE, num_heads_q], and their negatives."""
    heads = sink.shape[1]
    spread = nl.ndarray((TILE, heads), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=spread, src=sink.ap(pattern=[[0, TILE], [1, heads]], offset=0))
    negative = nl.ndarray((TILE, heads), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=negative, data=spread, op0=nl.multiply, operand0=-1.0)
    env["sink"] = spread
    env["negative_sink"] = negative


def _load_section(env, section):
    """Keys as [head_dim piece, keys] tiles and values as [TILE, key tiles, head_dim_v] tiles, a chunk of keys each."""
    k, v = env["k"], env["v"]
    head_dim, seqlen_kv, width = k.shape[2], k.shape[3], v.shape[3]
    batch, head = section["unit"] // k.shape[1], section["unit"] % k.shape[1]
    begins = []
    key_tiles = []
    value_tiles = []
    for grid in range(section["first"] // CHUNK * CHUNK, section["last"], CHUNK):
        begin, end = max(grid, section["first"]), min(grid + CHUNK, section["last"])
        pieces = []
        for d in range(0, head_dim, TILE):
            depth = min(TILE, head_dim - d)
            piece = nl.ndarray((depth, end - begin), dtype=k.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=piece, src=k[batch, head, d : d + depth, begin:end])
            pieces.append(piece)
        full, rest = (end - begin) // TILE, (end - begin) % TILE
        values = nl.ndarray((TILE, (end - begin + TILE - 1) // TILE, width), dtype=v.dtype, buffer=nl.sbuf)
        offset = ((batch * v.shape[1] + head) * seqlen_kv + begin) * width
        if full > 0:
            source = v.ap(pattern=[[width, TILE], [TILE * width, full], [1, width]], offset=offset)
            nisa.dma_copy(dst=values[0:TILE, 0:full, 0:width], src=source)
        if rest > 0:
            source = v.ap(pattern=[[width, rest], [1, width]], offset=offset + full * TILE * width)
            nisa.dma_copy(dst=values[0:rest, full, 0:width], src=source)
        begins.append(begin)
        key_tiles.append(pieces)
        value_tiles.append(values)
    section["begins"] = begins
    section["k"] = key_tiles
    section["v"] = value_tiles


def _chunk(section, key):
    """Which chunk of the section holds `key`, and the key's place in it; chunks lie on one grid, so the first tells all."""
    begins = section["begins"]
    number = key // CHUNK - begins[0] // CHUNK
    return number, key - begins[number]


def _open_block(env, block):
    """The block's queries as [head_dim piece, heads, rows], its row bounds, and empty places for its running state."""
    q = env["q"]
    head_dim, seqlen_q = q.shape[2], q.shape[3]
    begin = block["tile"] * TILE
    end = min(begin + block["tiles"] * TILE, seqlen_q)
    heads, tiles, spans = block["heads"], block["tiles"], env["spans"]
    pieces = []
    for d in range(0, head_dim, TILE):
        depth = min(TILE, head_dim - d)
        piece = nl.ndarray((depth, heads, end - begin), dtype=q.dtype, buffer=nl.sbuf)
        for g in range(heads):
            source = q[block["batch"], block["head"] + g, d : d + depth, begin:end]
            nisa.dma_copy(dst=piece[0:depth, g, 0 : end - begin], src=source)
        pieces.append(piece)
    bounds = []
    for t in range(tiles):
        first, last, full_first, full_last = spans[block["tile"] + t]
        edges = None
        if first < full_first or last > full_last:
            edges = _row_bounds(env, block["batch"], begin + t * TILE, min(TILE, end - begin - t * TILE))
        bounds.append(edges)
    slots = heads * tiles
    # One column per slot, for one logarithm at the block's end: switching the Scalar engine's table costs more than a step.
    shifts = nl.ndarray((TILE, slots), dtype=nl.float32, buffer=nl.sbuf)
    totals = nl.ndarray((TILE, slots), dtype=nl.float32, buffer=nl.sbuf)
    if (end - begin) % TILE > 0:
        nisa.memset(dst=shifts, value=0.0)
        nisa.memset(dst=totals, value=1.0)
    block["q"] = pieces
    block["bounds"] = bounds
    block["out"] = [None] * tiles
    block["rest"] = [None] * tiles
    block["accumulator"] = [None] * slots
    block["shift"] = [None] * slots
    block["total"] = [None] * slots
    block["shifts"] = shifts
    block["totals"] = totals


def _row_bounds(env, batch, row, rows):
    """First and past-the-last visible key of each row, float32 [rows, 1]: exact, because keys are below 2^24."""
    lower = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    upper = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    lo, hi, k = env["lo"], env["hi"], env["k"]
    if lo != None:  # noqa: E711
        _load_bound(lower, lo, batch, row, rows)
    elif env["window"] != None:  # noqa: E711
        start = env["q_offset"] + row - env["window"] + 1
        nisa.iota(dst=lower, pattern=[[0, 1]], offset=start, channel_multiplier=1)
    else:
        nisa.memset(dst=lower, value=0.0)
    if hi != None:  # noqa: E711
        _load_bound(upper, hi, batch, row, rows)
    elif env["ahead"] != None:  # noqa: E711
        start = env["q_offset"] + row + env["ahead"]
        nisa.iota(dst=upper, pattern=[[0, 1]], offset=start, channel_multiplier=1)
    else:
        nisa.memset(dst=upper, value=float(k.shape[3]))
    return lower, upper


def _load_bound(tile, given, batch, row, rows):
    """Rows `[row, row + rows)` of the int32 bounds `[batch or 1, seqlen_q]`, as float32 `[rows, 1]`."""
    raw = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    offset = min(batch, given.shape[0] - 1) * given.shape[1] + row
    nisa.dma_copy(dst=raw, src=given.ap(pattern=[[1, rows], [1, 1]], offset=offset))
    nisa.tensor_copy(dst=tile, src=raw, engine=nisa.engine.gpsimd)


# ---- the five stages of a step ----------------------------------------------------------------------------------------


def _scores(env, step, block, section):
    """Stage 1: q.T @ k into one PSUM bank, and the load of the bias that goes with it."""
    work = {
        "scores": None,
        "bias": None,
        "before": None,
        "shift": None,
        "correction": None,
        "total": None,
        "probabilities": None,
        "turned": None,
    }
    rows, width = step["rows"], step["width"]
    if width == 0:
        return work
    scores = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.psum)
    number, place = _chunk(section, step["key"])
    q_pieces = block["q"]
    k_pieces = section["k"][number]
    row = step["t"] * TILE
    for d in range(len(k_pieces)):
        queries, keys = q_pieces[d], k_pieces[d]
        depth = keys.shape[0]
        nisa.nc_matmul(
            dst=scores,
            stationary=queries[0:depth, step["g"], row : row + rows],
            moving=keys[0:depth, place : place + width],
        )
    work["scores"] = scores
    bias = env["bias"]
    if bias != None:  # noqa: E711
        shape = bias.shape
        batch, head = min(block["batch"], shape[0] - 1), min(block["head"] + step["g"], shape[1] - 1)
        stride, row = shape[3], step["row"]
        if shape[2] == 1:
            stride, row = 0, 0
        offset = ((batch * shape[1] + head) * shape[2] + row) * shape[3] + step["key"]
        tile = nl.ndarray((rows, width), dtype=bias.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=bias.ap(pattern=[[stride, rows], [1, width]], offset=offset))
        work["bias"] = tile
    return work


def _shift(env, step, work, block):
    """Stage 2: the mask, and what the exponentials are relative to: shift = -slope * running maximum."""
    rows, slot, slope = step["rows"], step["slot"], env["slope"]
    if step["width"] == 0:
        return
    scores, top = _masked(env, step, work, block)
    work["scores"] = scores
    # Clamped, so that a row without visible keys so far keeps it finite.
    shift = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    shifts = block["shift"]
    before = shifts[slot]
    if step["first"]:
        nisa.tensor_scalar(dst=shift, data=top, op0=nl.multiply, operand0=-slope, op1=nl.minimum, operand1=FP32_MAX)
    else:
        nisa.scalar_tensor_tensor(dst=shift, data=top, op0=nl.multiply, operand0=-slope, op1=nl.minimum, operand1=before)
    shifts[slot] = shift
    work["before"] = before
    work["shift"] = shift


def _exponentials(env, step, work):
    """Stage 3: probabilities with their row sum, and what corrects the earlier steps of these rows."""
    rows, width, shift, v = step["rows"], step["width"], work["shift"], env["v"]
    if width == 0:
        return
    if not step["first"]:
        correction = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=correction, op=nl.exp, data=work["before"], bias=shift, scale=-1.0)
        work["correction"] = correction
    total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    # An even number of rows, because their transposes are written to PSUM in whole words of 4 bytes.
    probabilities = nl.ndarray((rows + rows % 2, width), dtype=v.dtype, buffer=nl.sbuf)
    if rows % 2 == 1:
        nisa.memset(dst=probabilities, value=0.0, engine=nisa.engine.gpsimd)
    nisa.activation(
        dst=probabilities[0:rows, 0:width],
        op=nl.exp,
        data=work["scores"],
        bias=shift,
        scale=env["slope"],
        reduce_op=nl.add,
        reduce_res=total,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    work["probabilities"] = probabilities
    work["total"] = total
    work["scores"] = None
    work["before"] = None
    work["shift"] = None


def _masked(env, step, work, block):
    """The scores that the softmax sees (times `slope`) and their row maximum [rows, 1]."""
    rows, width, scores, bias = step["rows"], step["width"], work["scores"], work["bias"]
    top = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    factor = env["scale"]
    if env["softcap"] != None:  # noqa: E711
        capped = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=capped, op=nl.tanh, data=scores, scale=env["scale"] / env["softcap"])
        scores, factor = capped, env["softcap"]
    elif env["scaled"] and not env["additive"]:
        scaled = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=scaled, op=nl.copy, data=scores, scale=env["scale"])
        scores = scaled
    predicate = bias
    if env["additive"]:
        biased = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(dst=biased, data=scores, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=bias)
        scores = biased
        # Hidden keys are selected away as well, so that a NaN under a hidden key stays there. A NaN in the bias hides nothing.
        predicate = nl.ndarray((rows, width), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=predicate, data=bias, op0=nl.not_equal, operand0=FP32_MIN)
    if bias != None:  # noqa: E711
        scores = select(predicate, scores, top)
    if step["edge"]:
        bounds = block["bounds"]
        lower, upper = bounds[step["t"]]
        scores = select_between(scores, step["key"], lower, upper, top, env["has_ranges"])
    elif bias == None:  # noqa: E711
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=scores, axis=(1,))
    return scores, top


def _turn(step, work):
    """Stage 4: the probabilities with keys on partitions, [TILE, key tiles, rows made even]."""
    width, probabilities = step["width"], work["probabilities"]
    if width == 0:
        return
    rows, tiles = probabilities.shape[0], (width + TILE - 1) // TILE
    bank = nl.ndarray((TILE, tiles, rows), dtype=probabilities.dtype, buffer=nl.psum)
    for c in range(tiles):
        keys = min(TILE, width - c * TILE)
        source = probabilities[0:rows, c * TILE : c * TILE + keys]
        nisa.nc_transpose(dst=bank[0:keys, c, 0:rows], data=source, engine=nisa.engine.tensor)
    turned = nl.ndarray((TILE, tiles, rows), dtype=probabilities.dtype, buffer=nl.sbuf)
    full, rest = width // TILE, width % TILE
    if full > 0:
        nisa.activation(dst=turned[0:TILE, 0:full, 0:rows], op=nl.copy, data=bank[0:TILE, 0:full, 0:rows])
    if rest > 0:
        nisa.activation(dst=turned[0:rest, full, 0:rows], op=nl.copy, data=bank[0:rest, full, 0:rows])
    work["turned"] = turned
    work["probabilities"] = None


def _output(env, step, work, block, section):
    """Stage 5: probabilities @ v, added to the corrected accumulator; the last step of a row also writes it out."""
    rows, width, slot, v = step["rows"], step["width"], step["slot"], env["v"]
    width_v = v.shape[3]
    result = None
    if width > 0:
        result = nl.ndarray((rows, width_v), dtype=nl.float32, buffer=nl.psum)
        number, place = _chunk(section, step["key"])
        values = section["v"][number]
        turned = work["turned"]
        for c in range((width + TILE - 1) // TILE):
            keys = min(TILE, width - c * TILE)
            nisa.nc_matmul(
                dst=result,
                stationary=turned[0:keys, c, 0:rows],
                moving=values[0:keys, place // TILE + c, 0:width_v],
            )
        totals, accumulators = block["total"], block["accumulator"]
        if step["first"]:
            totals[slot] = work["total"]
        else:
            running = totals[slot]
            nisa.scalar_tensor_tensor(
                dst=running, data=running, op0=nl.multiply, operand0=work["correction"], op1=nl.add, operand1=work["total"]
            )
        if step["first"] and not step["last"]:
            accumulator = nl.ndarray((rows, width_v), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=accumulator, src=result, engine=nisa.engine.vector)
            accumulators[slot] = accumulator
        elif not step["first"]:
            running = accumulators[slot]
            nisa.scalar_tensor_tensor(
                dst=running, data=running, op0=nl.multiply, operand0=work["correction"], op1=nl.add, operand1=result
            )
            result = running
    if step["last"]:
        _finish(env, step, block, result)


# ---- what ends a row -------------------------------------------------------------------------------------


def _finish(env, step, block, result):
    """Normalise a row tile of one head into the block's output tile; its last head writes that to HBM."""
    rows, slot, t, g, out = step["rows"], step["slot"], step["t"], step["g"], env["out"]
    width_v = out.shape[3]
    outputs, rests = block["out"], block["rest"]
    if outputs[t] == None:  # noqa: E711
        outputs[t] = nl.ndarray((rows, block["heads"], width_v), dtype=out.dtype, buffer=nl.sbuf)
        if env["out_rest"] != None:  # noqa: E711
            rests[t] = nl.ndarray((rows, block["heads"], width_v), dtype=nl.float32, buffer=nl.sbuf)
    tile, rest, final_shifts, final_totals = outputs[t], rests[t], block["shifts"], block["totals"]
    place = tile[0:rows, g, 0:width_v]
    if rest != None:  # noqa: E711
        place = rest[0:rows, g, 0:width_v]
    final_shift, final_total = final_shifts[0:rows, slot : slot + 1], final_totals[0:rows, slot : slot + 1]
    head, negative_sink = block["head"] + g, env["negative_sink"]
    if result == None:  # noqa: E711
        nisa.memset(dst=place, value=0.0)
        nisa.memset(dst=final_total, value=1.0)
        if negative_sink == None:  # noqa: E711
            nisa.memset(dst=final_shift, value=FP32_MAX)
        else:
            nisa.tensor_copy(dst=final_shift, src=negative_sink[0:rows, head : head + 1])
    else:
        shifts, totals, accumulators = block["shift"], block["total"], block["accumulator"]
        shift, total = shifts[slot], totals[slot]
        factor = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        if negative_sink == None:  # noqa: E711
            # The largest term of a row is 1, so only a row without visible keys can sum to less.
            nisa.tensor_scalar(dst=final_total, data=total, op0=nl.maximum, operand0=0.5)
            nisa.tensor_copy(dst=final_shift, src=shift, engine=nisa.engine.vector)
            nisa.reciprocal(dst=factor, data=final_total)
            nisa.scalar_tensor_tensor(
                dst=factor, data=shift, op0=nl.less, operand0=empty_above(env), op1=nl.multiply, operand1=factor
            )
        else:
            _join_sink(env, rows, head, shift, total, final_shift, final_total, factor)
        nisa.activation(dst=place, op=nl.copy, data=result, scale=factor)
        shifts[slot] = None
        totals[slot] = None
        accumulators[slot] = None
    if g == block["heads"] - 1:
        row, first, batch, target = step["row"], block["head"], block["batch"], env["out_rest"]
        if rest != None:  # noqa: E711
            nisa.tensor_copy(dst=tile, src=rest, engine=nisa.engine.gpsimd)
            nisa.tensor_tensor(dst=rest, data1=rest, data2=tile, op=nl.subtract, engine=nisa.engine.gpsimd)
            nisa.dma_copy(dst=target[batch, row : row + rows, first : first + block["heads"], 0:width_v], src=rest)
        nisa.dma_copy(dst=out[batch, row : row + rows, first : first + block["heads"], 0:width_v], src=tile)
        outputs[t] = None
        rests[t] = None


def _join_sink(env, rows, head, shift, total, final_shift, final_total, factor):
    """The sink joins the denominator: total' = total * exp(m - m') + exp(sink - m') with m' = max(m, sink), m = -shift."""
    sinks, negative_sinks = env["sink"], env["negative_sink"]
    sink, negative = sinks[0:rows, head : head + 1], negative_sinks[0:rows, head : head + 1]
    nisa.tensor_tensor(dst=final_shift, data1=shift, data2=negative, op=nl.minimum)
    keep = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=keep, op=nl.exp, data=shift, bias=final_shift, scale=-1.0)
    weight = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=weight, op=nl.exp, data=sink, bias=final_shift, scale=1.0)
    nisa.scalar_tensor_tensor(dst=final_total, data=total, op0=nl.multiply, operand0=keep, op1=nl.add, operand1=weight)
    nisa.reciprocal(dst=factor, data=final_total)
    nisa.tensor_tensor(dst=factor, data1=factor, data2=keep, op=nl.multiply)
