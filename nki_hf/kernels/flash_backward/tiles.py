"""Query tiles and key blocks of `flash_backward`: loads, transposes, row bounds, and what ends them."""

from nki_hf.lang import nisa, nl

TILE = 128
FP32_MAX = 3.4028235e38
EMPTY_LSE = -2.0e38


def load_tile(env, tile):
    """Start the loads of a query tile: q, dout, and out where delta comes from it. Rows are made even: transposes of 16-bit
    tiles are written to PSUM in whole words of 4 bytes.
    """
    q, dout, rows, row = env["q"], env["dout"], tile["rows"], tile["row"]
    even = rows + rows % 2
    queries = nl.ndarray((even, q.shape[3]), dtype=q.dtype, buffer=nl.sbuf)
    grads = nl.ndarray((even, dout.shape[3]), dtype=dout.dtype, buffer=nl.sbuf)
    if rows % 2 == 1:
        nisa.memset(dst=queries, value=0.0, engine=nisa.engine.gpsimd)
        nisa.memset(dst=grads, value=0.0, engine=nisa.engine.gpsimd)
    nisa.dma_copy(dst=queries[0:rows, 0 : q.shape[3]], src=q[tile["batch"], tile["head"], row : row + rows, 0 : q.shape[3]])
    nisa.dma_copy(
        dst=grads[0:rows, 0 : dout.shape[3]], src=dout[tile["batch"], row : row + rows, tile["head"], 0 : dout.shape[3]]
    )
    tile["q"] = queries
    tile["dout"] = grads
    tile["out"] = None
    tile["lse"] = None
    if not env["recompute"]:
        out = env["out"]
        outputs = nl.ndarray((rows, out.shape[3]), dtype=out.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=outputs, src=out[tile["batch"], row : row + rows, tile["head"], 0 : out.shape[3]])
        tile["out"] = outputs
        tile["lse"] = _column(env["lse"], tile)
    tile["dlse"] = None
    if env["dlse"] != None:  # noqa: E711  (NKI's front end knows no `is`)
        tile["dlse"] = _column(env["dlse"], tile)
    if tile["first"] < tile["full_first"] or tile["last"] > tile["full_last"]:
        _row_bounds(env, tile)


def _column(array, tile):
    """This tile's rows of a float32 `[batch, num_heads_q, seqlen_q]`, as `[rows, 1]`."""
    rows = tile["rows"]
    column = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    offset = (tile["batch"] * array.shape[1] + tile["head"]) * array.shape[2] + tile["row"]
    nisa.dma_copy(dst=column, src=array.ap(pattern=[[1, rows], [1, 1]], offset=offset))
    return column


def _row_bounds(env, tile):
    """First and past-the-last visible key of each row, float32 [rows, 1]: exact, because keys are below 2^24."""
    rows, row, k = tile["rows"], tile["row"], env["k"]
    lower = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    upper = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    if env["lo"] != None:  # noqa: E711
        _load_bound(lower, env["lo"], tile)
    elif env["window"] != None:  # noqa: E711
        start = env["q_offset"] + row - env["window"] + 1
        nisa.iota(dst=lower, pattern=[[0, 1]], offset=start, channel_multiplier=1)
    else:
        nisa.memset(dst=lower, value=0.0)
    if env["hi"] != None:  # noqa: E711
        _load_bound(upper, env["hi"], tile)
    elif env["ahead"] != None:  # noqa: E711
        start = env["q_offset"] + row + env["ahead"]
        nisa.iota(dst=upper, pattern=[[0, 1]], offset=start, channel_multiplier=1)
    else:
        nisa.memset(dst=upper, value=float(k.shape[2]))
    tile["lower"] = lower
    tile["upper"] = upper


def _load_bound(target, given, tile):
    """This tile's rows of int32 bounds `[batch or 1, seqlen_q]`, as float32 `[rows, 1]`."""
    rows = tile["rows"]
    raw = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    offset = min(tile["batch"], given.shape[0] - 1) * given.shape[1] + tile["row"]
    nisa.dma_copy(dst=raw, src=given.ap(pattern=[[1, rows], [1, 1]], offset=offset))
    nisa.tensor_copy(dst=target, src=raw, engine=nisa.engine.gpsimd)


def prepare_tile(env, tile):
    """q and dout with head_dim on partitions, and the row statistics that the forward pass left."""
    tile["q_turned"] = _turned(tile["q"])
    tile["dout_turned"] = _turned(tile["dout"])
    if env["recompute"]:
        return
    rows, out = tile["rows"], tile["out"]
    width = out.shape[1]
    # A row without keys has lse -inf: its shift becomes so low that every probability is 0.
    empty = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=empty, data=tile["lse"], op0=nl.less, operand0=EMPTY_LSE, op1=nl.multiply, operand1=-FP32_MAX)
    shift = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=shift, data=tile["lse"], op0=nl.maximum, operand0=EMPTY_LSE, op1=nl.multiply, operand1=-1.0)
    nisa.tensor_tensor(dst=shift, data1=shift, data2=empty, op=nl.add)
    grads, delta = tile["dout"], nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    product = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=product, data1=grads[0:rows, 0:width], data2=out, op=nl.multiply)
    nisa.tensor_reduce(dst=delta, op=nl.add, data=product, axis=(1,))
    if tile["dlse"] != None:  # noqa: E711
        nisa.tensor_tensor(dst=delta, data1=delta, data2=tile["dlse"], op=nl.subtract)
    tile["shift"] = shift
    tile["delta"] = delta
    tile["out"] = None
    tile["lse"] = None
    if env["sinks"] != None:  # noqa: E711
        sinks, head = env["sinks"], tile["head"]
        share = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=share, op=nl.exp, data=sinks[0:rows, head : head + 1], bias=shift, scale=1.0)
        add_share(env, tile, share)


def add_share(env, tile, share):
    """The sink's share of each row, times delta, joins the sums for the sink's gradient."""
    rows, g, shares = tile["rows"], tile["g"], env["shares"]
    if shares == None:  # noqa: E711  (the pass for the bias's gradient, after the sink's is written)
        return
    place = shares[0:rows, g : g + 1]
    nisa.scalar_tensor_tensor(dst=place, data=share, op0=nl.multiply, operand0=tile["delta"], op1=nl.add, operand1=place)


def _turned(rows_first):
    """The transpose of `[rows, width]`, a list of `[depth, rows]` tiles of at most 128 of its width."""
    rows, width = rows_first.shape[0], rows_first.shape[1]
    pieces = []
    for d in range(0, width, TILE):
        depth = min(TILE, width - d)
        bank = nl.ndarray((depth, rows), dtype=rows_first.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=bank, data=rows_first[0:rows, d : d + depth], engine=nisa.engine.tensor)
        piece = nl.ndarray((depth, rows), dtype=rows_first.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=piece, src=bank, engine=nisa.engine.vector)
        pieces.append(piece)
    return pieces


def load_block(env, block):
    """Start the loads of a key block: k and v, a row per key, [TILE, key tiles, width]."""
    block["k"] = _load_keys(env["k"], block)
    block["v"] = _load_keys(env["v"], block)


def _load_keys(array, block):
    seqlen, width, keys = array.shape[2], array.shape[3], block["keys"]
    full, rest = keys // TILE, keys % TILE
    tile = nl.ndarray((TILE, (keys + TILE - 1) // TILE, width), dtype=array.dtype, buffer=nl.sbuf)
    offset = ((block["batch"] * array.shape[1] + block["head"]) * seqlen + block["key"]) * width
    if rest % 2 == 1:
        nisa.memset(dst=tile[0:TILE, full, 0:width], value=0.0, engine=nisa.engine.gpsimd)
    if full > 0:
        source = array.ap(pattern=[[width, TILE], [TILE * width, full], [1, width]], offset=offset)
        nisa.dma_copy(dst=tile[0:TILE, 0:full, 0:width], src=source)
    if rest > 0:
        source = array.ap(pattern=[[width, rest], [1, width]], offset=offset + full * TILE * width)
        nisa.dma_copy(dst=tile[0:rest, full, 0:width], src=source)
    return tile


def prepare_block(block):
    """k and v with head_dim on partitions, per piece of head_dim [depth, keys made even]."""
    block["k_turned"] = _turned_keys(block["k"], block["keys"])
    block["v_turned"] = _turned_keys(block["v"], block["keys"])
    block["v"] = None


def _turned_keys(tile, keys):
    width, even = tile.shape[2], keys + keys % 2
    pieces = []
    for d in range(0, width, TILE):
        depth = min(TILE, width - d)
        bank = nl.ndarray((depth, even), dtype=tile.dtype, buffer=nl.psum)
        for c in range((keys + TILE - 1) // TILE):
            rows = min(TILE, even - c * TILE)
            nisa.nc_transpose(
                dst=bank[0:depth, c * TILE : c * TILE + rows], data=tile[0:rows, c, d : d + depth], engine=nisa.engine.tensor
            )
        piece = nl.ndarray((depth, even), dtype=tile.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=piece, src=bank, engine=nisa.engine.vector)
        pieces.append(piece)
    return pieces


def close_tile(env, tile):
    """Write dq = softmax_scale * sum; a tile without keys has zeros."""
    q, rows, row, width = env["q"], tile["rows"], tile["row"], env["q"].shape[3]
    result = nl.ndarray((rows, width), dtype=q.dtype, buffer=nl.sbuf)
    if tile["dq"] == None:  # noqa: E711
        nisa.memset(dst=result, value=0.0)
    else:
        nisa.activation(dst=result, op=nl.copy, data=tile["dq"], scale=env["scale"])
    nisa.dma_copy(dst=env["dq"][tile["batch"], tile["head"], row : row + rows, 0:width], src=result)
    tile["dq"] = None
    tile["q"] = None
    tile["dout"] = None
    tile["q_turned"] = None
    tile["dout_turned"] = None


def close_block(env, block):
    """Write dk = softmax_scale * sum and dv, or hand them on to the next section of queries."""
    _write_keys(env, env["dk"], block, block["dk"], env["scale"], "dk")
    _write_keys(env, env["dv"], block, block["dv"], 1.0, "dv")
    block["dk"] = None
    block["dv"] = None


def _write_keys(env, array, block, result, scale, name):
    keys, seqlen, width = block["keys"], array.shape[2], array.shape[3]
    tiles, full, rest = (keys + TILE - 1) // TILE, keys // TILE, keys % TILE
    dtype, target, first, last = array.dtype, array, env["section"] == 0, env["section"] == env["sections"] - 1
    if not last:
        dtype, target = nl.float32, env["partial_" + name]
    tile = nl.ndarray((TILE, tiles, width), dtype=dtype, buffer=nl.sbuf)
    before = None
    if not first:
        before = nl.ndarray((TILE, tiles, width), dtype=nl.float32, buffer=nl.sbuf)
        _move_keys(env["partial_" + name], block, before, True)
    for c in range(tiles):
        rows = min(TILE, keys - c * TILE)
        place = tile[0:rows, c, 0:width]
        begun = result != None  # noqa: E711
        if begun:
            begun = block["begun"][c]
        if begun and before == None:  # noqa: E711
            if name == "dk":
                nisa.activation(dst=place, op=nl.copy, data=result[0:rows, c, 0:width], scale=scale)
            else:
                nisa.tensor_copy(dst=place, src=result[0:rows, c, 0:width], engine=nisa.engine.vector)
        elif begun:
            nisa.scalar_tensor_tensor(
                dst=place, data=result[0:rows, c, 0:width], op0=nl.multiply, operand0=scale, op1=nl.add,
                operand1=before[0:rows, c, 0:width],
            )  # fmt: skip
        elif before != None:  # noqa: E711
            nisa.tensor_copy(dst=place, src=before[0:rows, c, 0:width], engine=nisa.engine.vector)
        else:
            nisa.memset(dst=place, value=0.0)
    _move_keys(target, block, tile, False)


def _move_keys(array, block, tile, loads):
    """Copy a key block `[TILE, key tiles, width]` from HBM (`loads`) or to it."""
    seqlen, width, keys = array.shape[2], array.shape[3], block["keys"]
    full, rest = keys // TILE, keys % TILE
    offset = ((block["batch"] * array.shape[1] + block["head"]) * seqlen + block["key"]) * width
    if full > 0:
        place = array.ap(pattern=[[width, TILE], [TILE * width, full], [1, width]], offset=offset)
        if loads:
            nisa.dma_copy(dst=tile[0:TILE, 0:full, 0:width], src=place)
        else:
            nisa.dma_copy(dst=place, src=tile[0:TILE, 0:full, 0:width])
    if rest > 0:
        place = array.ap(pattern=[[width, rest], [1, width]], offset=offset + full * TILE * width)
        if loads:
            nisa.dma_copy(dst=tile[0:rest, full, 0:width], src=place)
        else:
            nisa.dma_copy(dst=place, src=tile[0:rest, full, 0:width])
