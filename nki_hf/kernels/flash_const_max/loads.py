"""What `flash_const_max` reads from HBM: keys, values with their ones column, queries, bounds, biases, sinks."""

from nki_hf.kernels.flash_const_max.masks import load_identity
from nki_hf.lang import nisa, nl

TILE = 128
HIDDEN = -3.0e38
"""Twice this is -inf, which hides a key whatever its score is."""


def load_constants(env):
    """The shift as an activation's bias; per batch entry the bias of every key less the shift; the sinks' share of the sums."""
    env["offset"] = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=env["offset"], value=-env["shift"])
    bias, sink = env["bias"], env["sink"]
    if bias != None:  # noqa: E711
        env["key_bias"] = []
        for b in range(bias.shape[0]):
            env["key_bias"].append(_key_bias(env, b))
    if env["lo"] != None:  # noqa: E711
        load_identity(env)
    if sink != None:  # noqa: E711
        heads = sink.shape[1]
        raw = nl.ndarray((TILE, heads), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=raw, src=sink.ap(pattern=[[0, TILE], [1, heads]], offset=0))
        env["sink_sum"] = nl.ndarray((TILE, heads), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=env["sink_sum"], op=nl.exp, data=raw, bias=env["offset"], scale=1.0)


def _key_bias(env, b):
    """float32 [TILE, key tiles]: bias of key 128 * t + p, less the shift, or -inf where the key is hidden. Read in rows and
    turned: a column of it would be read in packets of 4 bytes.
    """
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
        target = turned[0:TILE, begin : begin + count]
        nisa.tensor_scalar(dst=target, data=bank, op0=nl.multiply, operand0=2.0, op1=nl.multiply, operand1=0.5)
    return turned


def load_keys(env, load, block):
    """K as [head_dim piece, units, keys] tiles, and [v | 1] as [TILE, units, key tiles, head_dim_v + 1]."""
    k, v = env["k"], env["v"]
    head_dim, seqlen_kv, width = k.shape[2], k.shape[3], v.shape[3]
    begin, end, units = load["begin"], load["end"], load["units"]
    unit, keys = block["batch"] * k.shape[1] + block["head_kv"], end - begin
    load["k"] = []
    for d in range(0, head_dim, TILE):
        depth = min(TILE, head_dim - d)
        piece = nl.ndarray((depth, units, keys), dtype=k.dtype, buffer=nl.sbuf)
        pattern = [[seqlen_kv, depth], [head_dim * seqlen_kv, units], [1, keys]]
        nisa.dma_copy(dst=piece, src=k.ap(pattern=pattern, offset=(unit * head_dim + d) * seqlen_kv + begin))
        load["k"].append(piece)
    full, rest = keys // TILE, keys % TILE
    slots = full + (rest > 0)
    values = nl.ndarray((TILE, units, slots, width + 1), dtype=v.dtype, buffer=nl.sbuf)
    nisa.memset(dst=values[0:TILE, 0:units, 0:slots, width : width + 1], value=1.0, engine=nisa.engine.gpsimd)
    offset = (unit * seqlen_kv + begin) * width
    if full > 0:
        pattern = [[width, TILE], [seqlen_kv * width, units], [TILE * width, full], [1, width]]
        nisa.dma_copy(dst=values[0:TILE, 0:units, 0:full, 0:width], src=v.ap(pattern=pattern, offset=offset))
    if rest > 0:
        pattern = [[width, rest], [seqlen_kv * width, units], [1, width]]
        source = v.ap(pattern=pattern, offset=offset + full * TILE * width)
        nisa.dma_copy(dst=values[0:rest, 0:units, full, 0:width], src=source)
    load["v"] = values


def load_queries(env, blocks, first):
    """The queries of a pack as [head_dim piece, columns] of each block; those of a partial query tile are followed by zeros."""
    q = env["q"]
    block = blocks[first]
    head_dim, seqlen_q, tiles, packed = q.shape[2], q.shape[3], block["tiles"], block["packed"]
    begin = block["tile"] * TILE
    rows = min(tiles * TILE, seqlen_q - begin)
    full = rows // TILE
    heads = packed * block["heads"]
    for n in range(packed):
        blocks[first + n]["q"] = []
    for d in range(0, head_dim, TILE):
        depth = min(TILE, head_dim - d)
        offset = ((block["batch"] * q.shape[1] + block["head"]) * head_dim + d) * seqlen_q + begin
        if block["heads"] == 1:
            piece = nl.ndarray((depth, packed, tiles * TILE), dtype=q.dtype, buffer=nl.sbuf)
            if full < tiles:
                nisa.memset(dst=piece[0:depth, 0:packed, full * TILE : tiles * TILE], value=0.0)
            pattern = [[seqlen_q, depth], [head_dim * seqlen_q, heads], [1, rows]]
            nisa.dma_copy(dst=piece[0:depth, 0:packed, 0:rows], src=q.ap(pattern=pattern, offset=offset))
        else:
            # Column tiles by query tile, then head.
            piece = nl.ndarray((depth, packed, tiles, block["heads"], TILE), dtype=q.dtype, buffer=nl.sbuf)
            if full < tiles:
                nisa.memset(dst=piece[0:depth, 0:packed, full : full + 1, 0 : block["heads"], 0:TILE], value=0.0)
            for t in range(tiles):
                count = min(TILE, rows - t * TILE)
                pattern = [[seqlen_q, depth], [head_dim * seqlen_q, heads], [1, count]]
                target = piece[0:depth, 0:packed, t, 0 : block["heads"], 0:count]
                nisa.dma_copy(dst=target, src=q.ap(pattern=pattern, offset=offset + t * TILE))
            piece = piece.reshape((depth, packed, block["columns"]))
        for n in range(packed):
            blocks[first + n]["q"].append(piece[0:depth, n, 0 : block["columns"]])


def load_rows(env, load, segment):
    """`lo` and `hi` of the segment's rows, int32 [query tiles, TILE] as they lie in HBM; rows behind the last see no key."""
    tiles, begin = segment["tiles"], segment["begin"] * TILE
    load["loaded"] = True
    load["begin"] = segment["begin"]
    load["tiles"] = tiles
    load["lines"] = []
    for side in range(2):
        given = env["lo"]
        if side == 1:
            given = env["hi"]
        batch, seqlen_q = min(segment["unit"] // env["k"].shape[1], given.shape[0] - 1), given.shape[1]
        for first in range(0, tiles, TILE):
            count = min(TILE, tiles - first)
            start = begin + first * TILE
            rows = min(count * TILE, seqlen_q - start)
            full, rest = rows // TILE, rows % TILE
            offset = batch * seqlen_q + start
            lines = nl.ndarray((count, TILE), dtype=nl.int32, buffer=nl.sbuf)
            if rest > 0:
                nisa.memset(dst=lines, value=0)
                source = given.ap(pattern=[[rest, 1], [1, rest]], offset=offset + full * TILE)
                nisa.dma_copy(dst=lines[full : full + 1, 0:rest], src=source)
            if full > 0:
                source = given.ap(pattern=[[TILE, full], [1, TILE]], offset=offset)
                nisa.dma_copy(dst=lines[0:full, 0:TILE], src=source)
            load["lines"].append(lines)


def turn_rows(env, load):
    """The bounds with a row per partition, float32 [TILE, 2, query tiles]: a column read from HBM takes packets of 4 bytes."""
    load["edges"] = nl.ndarray((TILE, 2, load["tiles"]), dtype=nl.float32, buffer=nl.sbuf)
    half = len(load["lines"]) // 2
    for n in range(len(load["lines"])):
        lines = load["lines"][n]
        count, first = lines.shape[0], n % half * TILE
        values = nl.ndarray((count, TILE), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=values, src=lines, engine=nisa.engine.vector)
        bank = nl.ndarray((TILE, count), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=bank, data=values, engine=nisa.engine.tensor)
        target = load["edges"][0:TILE, n // half, first : first + count]
        nisa.tensor_copy(dst=target, src=bank, engine=nisa.engine.vector)
    load["lines"] = None
