"""One query tile of one head with its exact row maximum: for tiles whose rows fail the certificate of the constant shift.

Queries on partitions, two passes over all keys: the first finds the row maximum, the second sums exp(score - maximum) and its
product with v. No row of it can overflow or vanish where the inputs are finite and `seqlen_kv * max |v|` is.

Where a tile lies is said by `place`: element offsets into the flattened tensors, either numbers or, in a loop at run time,
registers. So the tile is always TILE rows: the last one of a head starts early enough, and of fewer queries in all the rest is
padding.
"""

from nki_hf.lang import nisa, nl

TILE = 128
BLOCK = 512
CHUNK = 2048
FP32_MIN = -3.4028235e38
LOWEST = -2.0e38
"""Row maxima are raised to this: hidden scores, float32's lowest value, are then as far below it as exp needs, and a row
without keys has a sum of 0. Biases of visible keys are above."""


def static_place(env, batch, head, tile):
    """The place of query tile `tile` of a query head."""
    q, k, v, out = env["q"], env["k"], env["v"], env["out"]
    seqlen_q, seqlen_kv = q.shape[3], k.shape[3]
    row = max(0, min(tile * TILE, seqlen_q - TILE))
    head_kv = batch * k.shape[1] + head // env["group_size"]
    place = {
        "q": (batch * q.shape[1] + head) * q.shape[2] * seqlen_q + row, "k": head_kv * k.shape[2] * seqlen_kv,
        "v": head_kv * seqlen_kv * v.shape[3], "out": ((batch * seqlen_q + row) * out.shape[2] + head) * out.shape[3],
        "lse": (batch * q.shape[1] + head) * seqlen_q + row, "bounds": 0, "bias": 0, "sink": head, "registers": None,
        "position": row,
    }  # fmt: skip
    if env["lo"] != None:  # noqa: E711
        place["bounds"] = min(batch, env["lo"].shape[0] - 1) * seqlen_q + row
    if env["bias"] != None:  # noqa: E711
        place["bias"] = min(batch, env["bias"].shape[0] - 1) * seqlen_kv
    return place


def exact_tile(env, place):
    """Compute, and write over, the rows of `out` and `lse` at `place`."""
    q, width = env["q"], env["v"].shape[3]
    rows = min(TILE, q.shape[3])
    queries = _queries(env, place, rows)
    bounds = _bounds(env, place, rows)
    top = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=top, value=LOWEST)
    if env["sink"] != None:  # noqa: E711
        sink = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=sink, src=_at(env, "sink", place, "sink", [[0, TILE], [1, 1]], 0))
        nisa.tensor_tensor(dst=top, data1=top, data2=sink, op=nl.maximum, engine=nisa.engine.vector)
    seqlen_kv = env["k"].shape[3]
    part = _keys(env, place, 0, min(CHUNK, seqlen_kv))
    for chunk in range(0, seqlen_kv, CHUNK):
        stop = min(chunk + CHUNK, seqlen_kv)
        loaded = part
        if stop < seqlen_kv:
            part = _keys(env, place, stop, min(stop + CHUNK, seqlen_kv))
        for key in range(chunk, stop, BLOCK):
            _scores(env, place, queries, bounds, loaded, chunk, key, min(BLOCK, stop - key), top)
    shift = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=shift, data=top, op0=nl.multiply, operand0=-1.0)

    total = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    if env["sink"] != None:  # noqa: E711
        nisa.activation(dst=total, op=nl.exp, data=sink, bias=shift, scale=1.0)
    else:
        nisa.memset(dst=total, value=0.0)
    result = nl.ndarray((TILE, width), dtype=nl.float32, buffer=nl.psum)
    blocks = []
    for key in range(0, seqlen_kv, BLOCK):
        blocks.append({"key": key, "keys": min(BLOCK, seqlen_kv - key)})
    # Each part of a block's work stands a block behind the part before it, so that engines do not wait for each other.
    for i in range(len(blocks) + 3):
        if i < len(blocks):
            block = blocks[i]
            key = block["key"]
            if key == 0:
                ahead = _chunk(env, place, 0)
            if key % CHUNK == 0:
                chunk = ahead
                if key + CHUNK < seqlen_kv:
                    ahead = _chunk(env, place, key + CHUNK)
            block["values"] = chunk[1]
            block["slot"] = key % CHUNK // TILE
            block["scores"] = _scores(env, place, queries, bounds, chunk[0], key // CHUNK * CHUNK, key, block["keys"], None)
        if i >= 1 and i - 1 < len(blocks):
            _exponentials(env, blocks[i - 1], shift)
        if i >= 2 and i - 2 < len(blocks):
            _turn(blocks[i - 2], total)
        if i >= 3:
            _multiply(blocks[i - 3], result)
    _write(env, place, rows, result, total, top)


def _exponentials(env, block, shift):
    """Probabilities of the block in the dtype of v, and their row sums."""
    scores = block["scores"]
    block["probs"] = nl.ndarray(scores.shape, dtype=env["v"].dtype, buffer=nl.sbuf)
    block["share"] = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=block["probs"], op=nl.exp, data=scores, bias=shift, scale=1.0, reduce_op=nl.add, reduce_res=block["share"],
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )  # fmt: skip
    block["scores"] = None


def _turn(block, total):
    """Turn the block's probabilities into [keys, rows], and add its row sums to `total`."""
    probs, keys = block["probs"], block["keys"]
    full, rest = keys // TILE, keys % TILE
    slots = full + (rest > 0)
    nisa.tensor_tensor(dst=total, data1=total, data2=block["share"], op=nl.add, engine=nisa.engine.vector)
    bank = nl.ndarray((TILE, slots, TILE), dtype=probs.dtype, buffer=nl.psum)
    turned = nl.ndarray((TILE, slots, TILE), dtype=probs.dtype, buffer=nl.sbuf)
    for slot in range(slots):
        count = min(TILE, keys - slot * TILE)
        source = probs[0:TILE, slot * TILE : slot * TILE + count]
        nisa.nc_transpose(dst=bank[0:count, slot, 0:TILE], data=source, engine=nisa.engine.tensor)
    if full > 0:
        nisa.tensor_copy(dst=turned[0:TILE, 0:full, 0:TILE], src=bank[0:TILE, 0:full, 0:TILE], engine=nisa.engine.vector)
    if rest > 0:
        nisa.tensor_copy(dst=turned[0:rest, full, 0:TILE], src=bank[0:rest, full, 0:TILE], engine=nisa.engine.vector)
    block["probs"] = None
    block["turned"] = turned


def _multiply(block, result):
    """Add the block's product with its values to `result`."""
    turned, values, keys = block["turned"], block["values"], block["keys"]
    for slot in range(turned.shape[1]):
        count = min(TILE, keys - slot * TILE)
        moving = values[0:count, block["slot"] + slot, 0 : values.shape[2]]
        nisa.nc_matmul(dst=result, stationary=turned[0:count, slot, 0:TILE], moving=moving)
    block["turned"] = None


def _chunk(env, place, begin):
    """Keys and values of up to CHUNK keys from `begin` on."""
    end = min(begin + CHUNK, env["k"].shape[3])
    return _keys(env, place, begin, end), _values(env, place, begin, end)


def _keys(env, place, begin, end):
    """Keys `begin` to `end` as [head_dim piece, keys] tiles."""
    k = env["k"]
    pieces = []
    for d in range(0, k.shape[2], TILE):
        depth = min(TILE, k.shape[2] - d)
        piece = nl.ndarray((depth, end - begin), dtype=k.dtype, buffer=nl.sbuf)
        source = _at(env, "k", place, "k", [[k.shape[3], depth], [1, end - begin]], d * k.shape[3] + begin)
        nisa.dma_copy(dst=piece, src=source)
        pieces.append(piece)
    return pieces


def _values(env, place, begin, end):
    """Values of keys `begin` to `end` as a [TILE, key tiles, head_dim_v] tile."""
    v, width = env["v"], env["v"].shape[3]
    full, rest = (end - begin) // TILE, (end - begin) % TILE
    values = nl.ndarray((TILE, full + (rest > 0), width), dtype=v.dtype, buffer=nl.sbuf)
    if full > 0:
        source = _at(env, "v", place, "v", [[width, TILE], [TILE * width, full], [1, width]], begin * width)
        nisa.dma_copy(dst=values[0:TILE, 0:full, 0:width], src=source)
    if rest > 0:
        source = _at(env, "v", place, "v", [[width, rest], [1, width]], (begin + full * TILE) * width)
        nisa.dma_copy(dst=values[0:rest, full, 0:width], src=source)
    return values


def _at(env, tensor, place, name, pattern, offset):
    """An access to a tensor of `env` relative to the place."""
    whole = env[tensor]
    if place["registers"] == None:  # noqa: E711
        return whole.ap(pattern=pattern, offset=place[name] + offset)
    return env["flat_" + tensor].ap(pattern=pattern, offset=offset, scalar_offset=place["registers"][name], indirect_dim=0)


def _queries(env, place, rows):
    """[head_dim piece, TILE] tiles, padded with zeros."""
    q = env["q"]
    head_dim, seqlen_q = q.shape[2], q.shape[3]
    pieces = []
    for d in range(0, head_dim, TILE):
        depth = min(TILE, head_dim - d)
        piece = nl.ndarray((depth, TILE), dtype=q.dtype, buffer=nl.sbuf)
        if rows < TILE:
            nisa.memset(dst=piece, value=0.0)
        source = _at(env, "q", place, "q", [[seqlen_q, depth], [1, rows]], d * seqlen_q)
        nisa.dma_copy(dst=piece[0:depth, 0:rows], src=source)
        pieces.append(piece)
    return pieces


def _bounds(env, place, rows):
    """First and past-the-last visible key of each row, float32 [TILE, 1] each."""
    bounds = []
    if env["lo"] != None:  # noqa: E711
        for name in ("lo", "hi"):
            raw = nl.ndarray((TILE, 1), dtype=nl.int32, buffer=nl.sbuf)
            if rows < TILE:
                nisa.memset(dst=raw, value=0)
            nisa.dma_copy(dst=raw[0:rows, 0:1], src=_at(env, name, place, "bounds", [[1, rows], [1, 1]], 0))
            bound = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=bound, src=raw, engine=nisa.engine.vector)
            bounds.append(bound)
        return bounds
    position = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    if place["registers"] == None:  # noqa: E711
        nisa.iota(dst=position, pattern=[[0, 1]], offset=env["q_offset"] + place["position"], channel_multiplier=1)
    else:
        numbers = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=numbers, pattern=[[0, 1]], offset=env["q_offset"], channel_multiplier=1)
        nisa.tensor_tensor(dst=position, data1=numbers, data2=place["position"], op=nl.add, engine=nisa.engine.vector)
    lower = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    upper = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=lower, value=0.0)
    nisa.memset(dst=upper, value=float(env["k"].shape[3]))
    if env["window"] != None:  # noqa: E711
        nisa.tensor_scalar(dst=lower, data=position, op0=nl.add, operand0=float(1 - env["window"]))
    if env["ahead"] != None:  # noqa: E711
        nisa.tensor_scalar(dst=upper, data=position, op0=nl.add, operand0=float(env["ahead"]))
    return [lower, upper]


def _scores(env, place, queries, bounds, part, chunk, key, keys, top):
    """Scaled and biased scores [TILE, keys] of a block of keys, float32's lowest value where hidden; their row maximum goes
    into `top`, unless that is None.
    """
    bank = nl.ndarray((TILE, keys), dtype=nl.float32, buffer=nl.psum)
    for n in range(len(queries)):
        depth = queries[n].shape[0]
        moving = part[n][0:depth, key - chunk : key - chunk + keys]
        nisa.nc_matmul(dst=bank, stationary=queries[n], moving=moving)
    scores = nl.ndarray((TILE, keys), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=scores, op=nl.copy, data=bank, scale=env["scale"])  # on Scalar, which has less to do than Vector
    if env["bias"] != None:  # noqa: E711
        scores = _biased(env, place, scores, key, keys)
    highest = None
    if env["lo"] != None or env["window"] != None or env["ahead"] != None:  # noqa: E711
        scores, highest = _within(scores, bounds, key, keys)
    if top != None:  # noqa: E711
        if highest == None:  # noqa: E711
            highest = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(dst=highest, op=nl.maximum, data=scores, axis=(1,))
        nisa.tensor_tensor(dst=top, data1=top, data2=highest, op=nl.maximum, engine=nisa.engine.vector)
    return scores


def _within(scores, bounds, key, keys):
    """The scores of keys within the bounds of their row, and their row maximum where it comes along, else None."""
    chosen = nl.ndarray((TILE, keys), dtype=nl.float32, buffer=nl.sbuf)
    if nisa.get_nc_version() >= nisa.nc_version.gen3:
        highest = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.range_select(
            dst=chosen, on_true_tile=scores, comp_op0=nl.greater_equal, comp_op1=nl.less, bound0=bounds[0], bound1=bounds[1],
            reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_res=highest, reduce_op=nl.maximum, range_start=key,
            on_false_value=FP32_MIN,
        )  # fmt: skip
        return chosen, highest
    numbers = nl.ndarray((TILE, keys), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=numbers, pattern=[[1, keys]], offset=key, channel_multiplier=0)
    above = nl.ndarray((TILE, keys), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=above, data=numbers, op0=nl.greater_equal, operand0=bounds[0])
    seen = nl.ndarray((TILE, keys), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(dst=seen, data=numbers, op0=nl.less, operand0=bounds[1], op1=nl.multiply, operand1=above)
    nisa.memset(dst=chosen, value=FP32_MIN)
    nisa.tensor_copy_predicated(dst=chosen, src=scores, predicate=seen)
    return chosen, None


def _biased(env, place, scores, key, keys):
    """The scores plus the bias of their key, or those of visible keys alone."""
    bias = env["bias"]
    raw = nl.ndarray((TILE, keys), dtype=bias.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=raw, src=_at(env, "bias", place, "bias", [[0, TILE], [1, keys]], key))
    limit = 0.0
    if bias.dtype == nl.float32:
        limit = 0.9 * FP32_MIN
        nisa.tensor_tensor(dst=scores, data1=scores, data2=raw, op=nl.add, engine=nisa.engine.vector)
    seen = nl.ndarray((TILE, keys), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=seen, data=raw, op0=nl.greater, operand0=limit)
    chosen = nl.ndarray((TILE, keys), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=chosen, value=FP32_MIN)
    nisa.tensor_copy_predicated(dst=chosen, src=scores, predicate=seen)
    return chosen


def _write(env, place, rows, result, total, top):
    """Normalised rows and lse = top + log(total); rows without keys: zeros, and -inf."""
    out, width = env["out"], env["v"].shape[3]
    empty = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=empty, data=total, op0=nl.equal, operand0=0.0)
    nisa.tensor_tensor(dst=total, data1=total, data2=empty, op=nl.add, engine=nisa.engine.vector)
    factor = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=factor, data=total)
    normal = nl.ndarray((TILE, width), dtype=out.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=normal, data=result, op0=nl.multiply, operand0=factor)
    target = _at(env, "out", place, "out", [[out.shape[2] * width, rows], [1, width]], 0)
    nisa.dma_copy(dst=target, src=normal[0:rows, 0:width])
    column = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=column, op=nl.log, data=total)
    nisa.tensor_tensor(dst=column, data1=column, data2=top, op=nl.add, engine=nisa.engine.vector)
    for _ in range(2):  # twice the lowest value is -inf
        nisa.scalar_tensor_tensor(dst=column, data=empty, op0=nl.multiply, operand0=FP32_MIN, op1=nl.add, operand1=column)
    nisa.dma_copy(dst=_at(env, "lse", place, "lse", [[1, rows], [1, 1]], 0), src=column[0:rows, 0:1])
