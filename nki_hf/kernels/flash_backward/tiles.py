"""Runs of query tiles of `flash_backward`: loads, transposes, row bounds and statistics, and the gradient of q."""

from nki_hf.lang import nisa, nl

TILE = 128
FP32_MAX = 3.4028235e38
EMPTY_LSE = -2.0e38
EXPONENT = 0x7F800000
"""The bits of a positive float32 that are its power of two."""


def load_run(env, run):
    """Start the loads of a run: one DMA per tensor, because each takes its queue as long as half a step takes the engines."""
    q, dout, count, rows, row = env["q"], env["dout"], run["tiles"], run["rows"], run["row"]
    queries = _rows_tile(count, q.shape[3], q.dtype, rows)
    offset = ((run["batch"] * q.shape[1] + run["head"]) * q.shape[2] + row) * q.shape[3]
    _load_rows(queries, q, offset, q.shape[3], rows)
    run["q"] = queries
    run["dout"] = _load_output(dout, run)
    run["out"] = None
    run["out_rest"] = None
    run["lse"] = None
    run["row_sum"] = None
    run["dlse"] = None
    offset = (run["batch"] * q.shape[1] + run["head"]) * q.shape[2] + row
    if not env["recompute"]:
        run["out"] = _load_output(env["out"], run)
        if env["out_rest"] != None:  # noqa: E711  (NKI's front end knows no `is`)
            run["out_rest"] = _load_output(env["out_rest"], run)
        if env["row_shift"] != None:  # noqa: E711
            run["lse"] = _load_columns(env["row_shift"], run, offset, 0.0)
            run["row_sum"] = _load_columns(env["row_sum"], run, offset, 1.0)
        else:
            run["lse"] = _load_columns(env["lse"], run, offset, 0.0)
    if env["dlse"] != None:  # noqa: E711
        run["dlse"] = _load_columns(env["dlse"], run, offset, 0.0)
    if run["edges"]:
        _load_bounds(env, run)


def _rows_tile(count, width, dtype, rows):
    """`[TILE, tiles, width]`, zeros where the last tile has no rows."""
    tile = nl.ndarray((TILE, count, width), dtype=dtype, buffer=nl.sbuf)
    if rows % TILE > 0:
        nisa.memset(dst=tile[0:TILE, count - 1, 0:width], value=0.0, engine=nisa.engine.gpsimd)
    return tile


def _load_output(array, run):
    """A run's rows of `[batch, seqlen_q, num_heads_q, head_dim_v]`."""
    heads, width, rows = array.shape[2], array.shape[3], run["rows"]
    tile = _rows_tile(run["tiles"], width, array.dtype, rows)
    offset = ((run["batch"] * array.shape[1] + run["row"]) * heads + run["head"]) * width
    _load_rows(tile, array, offset, heads * width, rows)
    return tile


def _load_rows(tile, array, offset, stride, rows):
    """`rows` rows that lie `stride` elements apart, the first at `offset`."""
    full, rest, width = rows // TILE, rows % TILE, tile.shape[2]
    if full > 0:
        source = array.ap(pattern=[[stride, TILE], [TILE * stride, full], [1, width]], offset=offset)
        nisa.dma_copy(dst=tile[0:TILE, 0:full, 0:width], src=source)
    if rest > 0:
        source = array.ap(pattern=[[stride, rest], [1, width]], offset=offset + full * TILE * stride)
        nisa.dma_copy(dst=tile[0:rest, full, 0:width], src=source)


def _load_columns(array, run, offset, beyond):
    """A number per row, from `offset` on, as `[TILE, tiles]`; `beyond` where the last tile has no rows."""
    count, rows = run["tiles"], run["rows"]
    full, rest = rows // TILE, rows % TILE
    tile = nl.ndarray((TILE, count), dtype=array.dtype, buffer=nl.sbuf)
    if rest > 0:
        nisa.memset(dst=tile[0:TILE, full : full + 1], value=beyond, engine=nisa.engine.gpsimd)
    if full > 0:
        nisa.dma_copy(dst=tile[0:TILE, 0:full], src=array.ap(pattern=[[1, TILE], [TILE, full]], offset=offset))
    if rest > 0:
        source = array.ap(pattern=[[1, rest], [1, 1]], offset=offset + full * TILE)
        nisa.dma_copy(dst=tile[0:rest, full : full + 1], src=source)
    return tile


def _load_bounds(env, run):
    """First and past-the-last visible key of each row, float32 [TILE, tiles]: exact, because keys are below 2^24."""
    count, row, k = run["tiles"], run["row"], env["k"]
    lower = nl.ndarray((TILE, count), dtype=nl.float32, buffer=nl.sbuf)
    upper = nl.ndarray((TILE, count), dtype=nl.float32, buffer=nl.sbuf)
    if env["lo"] != None:  # noqa: E711
        _load_bound(lower, env["lo"], run)
    elif env["window"] != None:  # noqa: E711
        start = env["q_offset"] + row - env["window"] + 1
        nisa.iota(dst=lower, pattern=[[TILE, count]], offset=start, channel_multiplier=1)
    else:
        nisa.memset(dst=lower, value=0.0)
    if env["hi"] != None:  # noqa: E711
        _load_bound(upper, env["hi"], run)
    elif env["ahead"] != None:  # noqa: E711
        start = env["q_offset"] + row + env["ahead"]
        nisa.iota(dst=upper, pattern=[[TILE, count]], offset=start, channel_multiplier=1)
    else:
        nisa.memset(dst=upper, value=float(k.shape[2]))
    run["lower"] = lower
    run["upper"] = upper


def _load_bound(target, given, run):
    """A run's rows of int32 bounds `[batch or 1, seqlen_q]`, as float32."""
    raw = _load_columns(given, run, min(run["batch"], given.shape[0] - 1) * given.shape[1] + run["row"], 0)
    nisa.tensor_copy(dst=target, src=raw, engine=nisa.engine.gpsimd)


def prepare_run(env, run):
    """Q and dout with head_dim on partitions, and the row statistics that the forward pass left."""
    run["q_turned"] = _turned_rows(run["q"])
    run["dout_turned"] = _turned_rows(run["dout"])
    if env["recompute"]:
        return
    lse, count = run["lse"], run["tiles"]
    run["factor"] = None
    run["power"] = None
    run["left"] = None
    if run["row_sum"] != None:  # noqa: E711
        _divide_factor(run)
    # A row without keys has lse -inf: its shift becomes so low that every probability is 0.
    empty = nl.ndarray((TILE, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=empty, data=lse, op0=nl.less, operand0=EMPTY_LSE, op1=nl.multiply, operand1=-FP32_MAX)
    shift = nl.ndarray((TILE, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=shift, data=lse, op0=nl.maximum, operand0=EMPTY_LSE, op1=nl.multiply, operand1=-1.0)
    nisa.tensor_tensor(dst=shift, data1=shift, data2=empty, op=nl.add)
    delta = _delta(env, run)
    if run["out_rest"] != None:  # noqa: E711
        _add_rest(run, delta)
    if run["dlse"] != None:  # noqa: E711
        nisa.tensor_tensor(dst=delta, data1=delta, data2=run["dlse"], op=nl.subtract)
    if run["row_sum"] != None:  # noqa: E711
        _scale_rows(run, run["q"])
        _scale_rows(run, run["dout"])
    run["shift"] = shift
    run["delta"] = delta
    run["out"] = None
    run["out_rest"] = None
    run["lse"] = None
    run["row_sum"] = None


def _divide_factor(run):
    """1 / row_sum as a power of two above it, which takes no digit of the weights that it multiplies, and the rest, 1/2 to 1.
    Above: so float16 holds more of the smallest weights.
    """
    count = run["tiles"]
    factor = nl.ndarray((TILE, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=factor, data=run["row_sum"])
    power = nl.ndarray((TILE, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=power.view(nl.int32), data=factor.view(nl.int32), op0=nl.bitwise_and, operand0=EXPONENT)
    nisa.tensor_scalar(dst=power, data=power, op0=nl.multiply, operand0=2.0)
    left = nl.ndarray((TILE, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=left, data1=factor, data2=power, op=nl.divide)
    most = nl.ndarray((TILE, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=most, data=left)
    run["factor"] = factor
    run["power"] = power
    run["left"] = left
    run["most"] = most


def _scale_rows(run, tile):
    """Multiply each row by what its weights lack of their factor."""
    count, width, left = run["tiles"], tile.shape[2], run["left"]
    for t in range(count):
        rows = min(TILE, run["rows"] - t * TILE)
        place = tile[0:rows, t, 0:width]
        nisa.activation(dst=place, op=nl.copy, data=place, scale=left[0:rows, t : t + 1])


def _delta(env, run):
    """rowsum(dout * out) of each row, [TILE, tiles]: the diagonal of dout out^T, by the products that give dprobs.

    So a row with one key, whose out is that key's v, has a delta that is its dprobs bit by bit, and a dS of exactly 0, which a
    sum in another order would leave at a rounding error of dprobs, times the key.
    """
    count, pieces, turned = run["tiles"], _turned_rows(run["out"]), run["dout_turned"]
    delta = nl.ndarray((TILE, count), dtype=nl.float32, buffer=nl.sbuf)
    chosen = nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf)
    diagonal = env["diagonal"]
    if run["rows"] % TILE > 0:
        nisa.memset(dst=delta, value=0.0, engine=nisa.engine.gpsimd)
    for t in range(count):
        first, rows = t * TILE, min(TILE, run["rows"] - t * TILE)
        bank = nl.ndarray((rows, TILE), dtype=nl.float32, buffer=nl.psum)
        for d in range(len(pieces)):
            left, right = turned[d], pieces[d]
            depth = left.shape[0]
            nisa.nc_matmul(
                dst=bank, stationary=left[0:depth, first : first + rows], moving=right[0:depth, first : first + TILE]
            )
        nisa.select_reduce(
            dst=chosen[0:rows, 0:TILE],
            predicate=diagonal[0:rows, 0:TILE],
            on_true=bank,
            on_false=-FP32_MAX,
            reduce_res=delta[0:rows, t : t + 1],
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
            reduce_op=nl.maximum,
        )
    return delta


def _add_rest(run, delta):
    """Add rowsum(dout * out_rest) to delta: so small a part that the order of its sum does not matter."""
    grads, rest, count = run["dout"], run["out_rest"], run["tiles"]
    width = grads.shape[2]
    product = nl.ndarray((TILE, count, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=product, data1=grads, data2=rest, op=nl.multiply, engine=nisa.engine.gpsimd)
    part = nl.ndarray((TILE, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=part, op=nl.add, data=product, axis=(2,))
    nisa.tensor_tensor(dst=delta, data1=delta, data2=part, op=nl.add)


def load_diagonal(env):
    """The cells of a tile that lie on its diagonal."""
    distance = nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=distance, pattern=[[1, TILE]], offset=0, channel_multiplier=-1)
    diagonal = nl.ndarray((TILE, TILE), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=diagonal, data=distance, op0=nl.equal, operand0=0.0)
    env["diagonal"] = diagonal


def open_tile(env, tile, run):
    """A tile's part of its run: row statistics and bounds [rows, 1], and the sink's share of its rows."""
    rows, slot = tile["rows"], tile["slot"]
    if run["edges"]:
        lower, upper = run["lower"], run["upper"]
        tile["lower"] = lower[0:rows, slot : slot + 1]
        tile["upper"] = upper[0:rows, slot : slot + 1]
    if run["dlse"] != None:  # noqa: E711
        dlse = run["dlse"]
        tile["dlse"] = dlse[0:rows, slot : slot + 1]
    if env["recompute"]:
        return
    shift, delta = run["shift"], run["delta"]
    tile["shift"] = shift[0:rows, slot : slot + 1]
    tile["delta"] = delta[0:rows, slot : slot + 1]
    if run["factor"] != None:  # noqa: E711
        factor, power, left, most = run["factor"], run["power"], run["left"], run["most"]
        tile["factor"] = factor[0:rows, slot : slot + 1]
        tile["power"] = power[0:rows, slot : slot + 1]
        tile["left"] = left[0:rows, slot : slot + 1]
        tile["most"] = most[0:rows, slot : slot + 1]
    if env["sinks"] != None:  # noqa: E711
        sinks, head = env["sinks"], tile["head"]
        share = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=share, op=nl.exp, data=sinks[0:rows, head : head + 1], bias=tile["shift"], scale=1.0)
        if tile["factor"] != None:  # noqa: E711
            nisa.tensor_tensor(dst=share, data1=share, data2=tile["factor"], op=nl.multiply)
        add_share(env, tile, share)


def add_share(env, tile, share):
    """The sink's share of each row, times delta, joins the sums for the sink's gradient."""
    rows, g, shares = tile["rows"], tile["g"], env["shares"]
    if shares == None:  # noqa: E711  (the pass for the bias's gradient, after the sink's is written)
        return
    place = shares[0:rows, g : g + 1]
    nisa.scalar_tensor_tensor(dst=place, data=share, op0=nl.multiply, operand0=tile["delta"], op1=nl.add, operand1=place)


def _turned_rows(tile):
    """The transpose of `[TILE, tiles, width]`, a list of `[depth, tiles * TILE]` of at most 128 of its width each."""
    count, width = tile.shape[1], tile.shape[2]
    pieces = []
    for d in range(0, width, TILE):
        depth = min(TILE, width - d)
        bank = nl.ndarray((depth, count * TILE), dtype=tile.dtype, buffer=nl.psum)
        for t in range(count):
            place = bank[0:depth, t * TILE : (t + 1) * TILE]
            nisa.nc_transpose(dst=place, data=tile[0:TILE, t, d : d + depth], engine=nisa.engine.tensor)
        piece = nl.ndarray((depth, count * TILE), dtype=tile.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=piece, src=bank, engine=nisa.engine.vector)
        pieces.append(piece)
    return pieces


def close_tile(env, tile):
    """Write dq = softmax_scale * sum; a tile without keys has zeros."""
    q, rows, row, width = env["q"], tile["rows"], tile["row"], env["q"].shape[3]
    result = nl.ndarray((rows, width), dtype=q.dtype, buffer=nl.sbuf)
    if tile["dq"] == None:  # noqa: E711
        nisa.memset(dst=result, value=0.0)
    elif tile["left"] == None:  # noqa: E711
        nisa.activation(dst=result, op=nl.copy, data=tile["dq"], scale=env["scale"])
    else:
        nisa.tensor_scalar(
            dst=result, data=tile["dq"], op0=nl.multiply, operand0=tile["left"], op1=nl.multiply, operand1=env["scale"]
        )
    nisa.dma_copy(dst=env["dq"][tile["batch"], tile["head"], row : row + rows, 0:width], src=result)
    tile["dq"] = None
