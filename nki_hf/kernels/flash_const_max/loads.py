"""What `flash_const_max` reads from HBM: keys, values with their ones column, queries, bounds, biases, sinks."""

from nki_hf.lang import nisa, nl

TILE = 128
HIDDEN = -3.0e38


def load_constants(env):
    """The shift as an activation's bias; per batch entry the bias of every key less the shift; the sinks' share of the sums."""
    env["offset"] = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=env["offset"], value=-env["shift"])
    env["masks"], env["masks_of"], env["bounds"], env["keys"] = [], (-1, -1), None, None
    bias, sink = env["bias"], env["sink"]
    if bias != None:  # noqa: E711
        env["key_bias"] = []
        for b in range(bias.shape[0]):
            env["key_bias"].append(_key_bias(env, b))
    if env["lo"] != None:  # noqa: E711
        tiles = (env["k"].shape[3] + TILE - 1) // TILE
        env["keys"] = nl.ndarray((TILE, tiles), dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=env["keys"], pattern=[[TILE, tiles]], offset=0, channel_multiplier=1)
    if sink != None:  # noqa: E711
        heads = sink.shape[1]
        raw = nl.ndarray((TILE, heads), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=raw, src=sink.ap(pattern=[[0, TILE], [1, heads]], offset=0))
        env["sink_sum"] = nl.ndarray((TILE, heads), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=env["sink_sum"], op=nl.exp, data=raw, bias=env["offset"], scale=1.0)


def _key_bias(env, b):
    """float32 [TILE, key tiles]: bias of key 128 * t + p, less the shift. Read in rows and turned: a column of it would be read
    in packets of 4 bytes."""
    bias = env["bias"]
    seqlen_kv = bias.shape[3]
    tiles = (seqlen_kv + TILE - 1) // TILE
    turned = nl.ndarray((TILE, tiles), dtype=nl.float32, buffer=nl.sbuf)
    for begin in range(0, tiles, TILE):
        count = min(TILE, tiles - begin)
        full = min(count, seqlen_kv // TILE - begin)
        rest = seqlen_kv - (begin + full) * TILE
        raw = nl.ndarray((count, TILE), dtype=bias.dtype, buffer=nl.sbuf)
        if full < count:
            nisa.memset(dst=raw, value=0)
        offset = b * seqlen_kv + begin * TILE
        if full > 0:
            nisa.dma_copy(dst=raw[0:full, 0:TILE], src=bias.ap(pattern=[[TILE, full], [1, TILE]], offset=offset))
        if full < count:
            source = bias.ap(pattern=[[rest, 1], [1, rest]], offset=offset + full * TILE)
            nisa.dma_copy(dst=raw[full : full + 1, 0:rest], src=source)
        lines = nl.ndarray((count, TILE), dtype=nl.float32, buffer=nl.sbuf)
        if bias.dtype == nl.float32:
            nisa.tensor_scalar(dst=lines, data=raw, op0=nl.subtract, operand0=env["shift"], op1=nl.maximum, operand1=HIDDEN)
        else:
            nisa.tensor_scalar(dst=lines, data=raw, op0=nl.equal, operand0=0.0, op1=nl.multiply, operand1=HIDDEN)
            nisa.tensor_scalar(dst=lines, data=lines, op0=nl.subtract, operand0=env["shift"])
        bank = nl.ndarray((TILE, count), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=bank, data=lines, engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=turned[0:TILE, begin : begin + count], src=bank, engine=nisa.engine.vector)
    return turned


def load_keys(env, load, block):
    """k as [head_dim piece, keys] tiles, and [v | 1] as [TILE, key tiles, head_dim_v + 1]."""
    k, v = env["k"], env["v"]
    head_dim, seqlen_kv, width = k.shape[2], k.shape[3], v.shape[3]
    batch, head, begin, end = block["batch"], block["head_kv"], load["begin"], load["end"]
    load["k"] = []
    for d in range(0, head_dim, TILE):
        piece = nl.ndarray((min(TILE, head_dim - d), end - begin), dtype=k.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=piece, src=k[batch, head, d : d + piece.shape[0], begin:end])
        load["k"].append(piece)
    full, rest = (end - begin) // TILE, (end - begin) % TILE
    slots = full + (rest > 0)
    values = nl.ndarray((TILE, slots, width + 1), dtype=v.dtype, buffer=nl.sbuf)
    nisa.memset(dst=values[0:TILE, 0:slots, width : width + 1], value=1.0, engine=nisa.engine.gpsimd)
    offset = ((batch * v.shape[1] + head) * seqlen_kv + begin) * width
    if full > 0:
        source = v.ap(pattern=[[width, TILE], [TILE * width, full], [1, width]], offset=offset)
        nisa.dma_copy(dst=values[0:TILE, 0:full, 0:width], src=source)
    if rest > 0:
        source = v.ap(pattern=[[width, rest], [1, width]], offset=offset + full * TILE * width)
        nisa.dma_copy(dst=values[0:rest, full, 0:width], src=source)
    load["v"] = values


def load_queries(env, block):
    """The block's queries as [head_dim piece, columns]; columns of a partial query tile are followed by zeros."""
    q = env["q"]
    head_dim, seqlen_q, heads, tiles = q.shape[2], q.shape[3], block["heads"], block["tiles"]
    begin = block["tile"] * TILE
    rows = min(tiles * TILE, seqlen_q - begin)
    full, rest = rows // TILE, rows % TILE
    block["q"] = []
    for d in range(0, head_dim, TILE):
        depth = min(TILE, head_dim - d)
        offset = ((block["batch"] * q.shape[1] + block["head"]) * head_dim + d) * seqlen_q + begin
        if heads == 1:
            piece = nl.ndarray((depth, block["columns"]), dtype=q.dtype, buffer=nl.sbuf)
            if rest > 0:
                nisa.memset(dst=piece[0:depth, full * TILE : block["columns"]], value=0.0)
            source = q.ap(pattern=[[seqlen_q, depth], [1, rows]], offset=offset)
            nisa.dma_copy(dst=piece[0:depth, 0:rows], src=source)
            block["q"].append(piece)
        else:
            piece = nl.ndarray((depth, tiles, heads, TILE), dtype=q.dtype, buffer=nl.sbuf)
            if rest > 0:
                nisa.memset(dst=piece[0:depth, full : full + 1, 0:heads, 0:TILE], value=0.0)
            for t in range(tiles):
                count = min(TILE, rows - t * TILE)
                pattern = [[seqlen_q, depth], [head_dim * seqlen_q, heads], [1, count]]
                source = q.ap(pattern=pattern, offset=offset + t * TILE)
                nisa.dma_copy(dst=piece[0:depth, t, 0:heads, 0:count], src=source)
            block["q"].append(piece.reshape((depth, block["columns"])))
