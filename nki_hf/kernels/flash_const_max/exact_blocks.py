"""Blocks of up to 512 keys of one query tile, for `exact.py`: queries on partitions.

What the body of a loop at run time allocates stays allocated for all of its turns, and no two of its tiles share bytes. So
blocks take turns in `RING` tiles of each kind, however many keys there are.
"""

from nki_hf.kernels.flash_const_max.places import at
from nki_hf.lang import nisa, nl

TILE = 128
BLOCK = 512
CHUNK = 2048
"""Keys of a load."""
RING = 2
FP32_MIN = -3.4028235e38


def load(env, place, begin, values):
    """Up to CHUNK keys from `begin` on: k as [head_dim piece, keys] tiles; with `values` v as [TILE, key tiles, head_dim_v]."""
    k, v, width = env["k"], env["v"], env["v"].shape[3]
    seqlen_kv, number = k.shape[3], begin // CHUNK
    size = min(CHUNK, seqlen_kv - begin)
    pieces = []
    for d in range(0, k.shape[2], TILE):
        depth = min(TILE, k.shape[2] - d)
        piece = _tile(env, f"k{d}", number, (depth, min(CHUNK, seqlen_kv)), k.dtype, nl.sbuf)
        source = at(env, "k", place, "k", [[seqlen_kv, depth], [1, size]], d * seqlen_kv + begin)
        nisa.dma_copy(dst=piece[0:depth, 0:size], src=source)
        pieces.append(piece)
    if not values:
        return {"begin": begin, "k": pieces, "v": None}
    tile = _tile(env, "v", number, (TILE, (min(CHUNK, seqlen_kv) + TILE - 1) // TILE, width), v.dtype, nl.sbuf)
    full, rest = size // TILE, size % TILE
    if full > 0:
        source = at(env, "v", place, "v", [[width, TILE], [TILE * width, full], [1, width]], begin * width)
        nisa.dma_copy(dst=tile[0:TILE, 0:full, 0:width], src=source)
    if rest > 0:
        source = at(env, "v", place, "v", [[width, rest], [1, width]], (begin + full * TILE) * width)
        nisa.dma_copy(dst=tile[0:rest, full, 0:width], src=source)
    return {"begin": begin, "k": pieces, "v": tile}


def scores(env, place, queries, block, maximum):
    """Scaled and biased scores of the block, float32's lowest value where hidden; with `maximum` their row maximum too."""
    keys, loaded = block["keys"], block["loaded"]
    first = block["key"] - loaded["begin"]
    bank = _block_tile(env, "bank", block, nl.float32, nl.psum)
    for n in range(len(queries)):
        depth = queries[n].shape[0]
        moving = loaded["k"][n][0:depth, first : first + keys]
        nisa.nc_matmul(dst=bank, stationary=queries[n], moving=moving, accumulate=n > 0)
    found = _block_tile(env, "scores", block, nl.float32, nl.sbuf)
    nisa.activation(dst=found, op=nl.copy, data=bank, scale=env["scale"])  # Scalar has less to do than Vector
    if env["bias"] != None:  # noqa: E711
        found = _biased(env, place, block, found)
    highest = _tile(env, "highest", block["number"], (TILE, 1), nl.float32, nl.sbuf)
    reduced = False
    if env["lo"] != None or env["window"] != None or env["ahead"] != None:  # noqa: E711
        reduced = nisa.get_nc_version() >= nisa.nc_version.gen3
        found = _within(env, block, found, highest)
    block["scores"] = found
    block["highest"] = highest
    if maximum and not reduced:
        nisa.tensor_reduce(dst=highest, op=nl.maximum, data=found, axis=(1,))


def lower_shift(env, block, before):
    """The block's shift: minus the row maximum so far, where `before` is the shift of the block before it."""
    block["before"] = before
    block["shift"] = _tile(env, f"shift {block['number'] % 3}", 0, (TILE, 1), nl.float32, nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=block["shift"], data=block["highest"], op0=nl.multiply, operand0=-1.0, op1=nl.minimum, operand1=before
    )


def weigh(env, block, total):
    """`total`, relative to the shift before the block, becomes relative to the block's, and its row sums are added."""
    factor = _tile(env, "factor", block["number"], (TILE, 1), nl.float32, nl.sbuf)
    nisa.activation(dst=factor, op=nl.exp, data=block["before"], bias=block["shift"], scale=-1.0)
    exponentials(env, block, block["shift"])
    nisa.scalar_tensor_tensor(dst=total, data=total, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=block["share"])


def exponentials(env, block, shift):
    """Probabilities of the block in the dtype of v, and their row sums."""
    block["probs"] = _block_tile(env, "probs", block, env["v"].dtype, nl.sbuf)
    block["share"] = _tile(env, "share", block["number"], (TILE, 1), nl.float32, nl.sbuf)
    nisa.activation(
        dst=block["probs"],
        op=nl.exp,
        data=block["scores"],
        bias=shift,
        scale=1.0,
        reduce_op=nl.add,
        reduce_res=block["share"],
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )


def turn(env, block, part, total):
    """Turn `part` of the block's probabilities into [keys, rows], and add its row sums, of all of them, to `total`."""
    probs, keys, number = block["probs"], block["keys"], block["number"]
    full, rest = keys // TILE, keys % TILE
    shape = (TILE, BLOCK // TILE, TILE)
    nisa.tensor_tensor(dst=total, data1=total, data2=block["share"], op=nl.add, engine=nisa.engine.vector)
    nisa.tensor_scalar(dst=probs, data=probs, op0=nl.multiply, operand0=part)
    bank = _tile(env, "turned bank", number, shape, env["v"].dtype, nl.psum)
    turned = _tile(env, "turned", number, shape, env["v"].dtype, nl.sbuf)
    for slot in range(full + (rest > 0)):
        count = min(TILE, keys - slot * TILE)
        source = probs[0:TILE, slot * TILE : slot * TILE + count]
        nisa.nc_transpose(dst=bank[0:count, slot, 0:TILE], data=source, engine=nisa.engine.tensor)
    if full > 0:
        nisa.tensor_copy(dst=turned[0:TILE, 0:full, 0:TILE], src=bank[0:TILE, 0:full, 0:TILE], engine=nisa.engine.vector)
    if rest > 0:
        nisa.tensor_copy(dst=turned[0:rest, full, 0:TILE], src=bank[0:rest, full, 0:TILE], engine=nisa.engine.vector)
    block["turned"] = turned


def multiply(block, result):
    """Add the block's product with its values to `result`."""
    turned, values, keys = block["turned"], block["loaded"]["v"], block["keys"]
    first = (block["key"] - block["loaded"]["begin"]) // TILE
    for slot in range((keys + TILE - 1) // TILE):
        count = min(TILE, keys - slot * TILE)
        moving = values[0:count, first + slot, 0 : values.shape[2]]
        begun = block["number"] > 0 or slot > 0
        nisa.nc_matmul(dst=result, stationary=turned[0:count, slot, 0:TILE], moving=moving, accumulate=begun)


def _within(env, block, values, highest):
    """The scores of keys within the bounds of their row; from NeuronCore-v3 on their row maximum goes into `highest`."""
    bounds = env["bounds"]
    chosen = _block_tile(env, "chosen", block, nl.float32, nl.sbuf)
    if nisa.get_nc_version() >= nisa.nc_version.gen3:
        nisa.range_select(
            dst=chosen,
            on_true_tile=values,
            comp_op0=nl.greater_equal,
            comp_op1=nl.less,
            bound0=bounds[0],
            bound1=bounds[1],
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
            reduce_res=highest,
            reduce_op=nl.maximum,
            range_start=block["key"],
            on_false_value=FP32_MIN,
        )
        return chosen
    numbers = _block_tile(env, "numbers", block, nl.float32, nl.sbuf)
    nisa.iota(dst=numbers, pattern=[[1, block["keys"]]], offset=block["key"], channel_multiplier=0)
    above = _block_tile(env, "above", block, nl.float32, nl.sbuf)
    nisa.tensor_scalar(dst=above, data=numbers, op0=nl.greater_equal, operand0=bounds[0])
    seen = _block_tile(env, "within", block, nl.uint8, nl.sbuf)
    nisa.scalar_tensor_tensor(dst=seen, data=numbers, op0=nl.less, operand0=bounds[1], op1=nl.multiply, operand1=above)
    nisa.memset(dst=chosen, value=FP32_MIN)
    nisa.tensor_copy_predicated(dst=chosen, src=values, predicate=seen)
    return chosen


def _biased(env, place, block, values):
    """The scores plus the bias of their key, or those of visible keys alone."""
    bias = env["bias"]
    raw = _block_tile(env, "bias", block, bias.dtype, nl.sbuf)
    nisa.dma_copy(dst=raw, src=at(env, "bias", place, "bias", [[0, TILE], [1, block["keys"]]], block["key"]))
    limit = 0.0
    if bias.dtype == nl.float32:
        limit = 0.9 * FP32_MIN
        nisa.tensor_tensor(dst=values, data1=values, data2=raw, op=nl.add, engine=nisa.engine.vector)
    # Hidden keys are told by <=, which is false for NaN: a bias of NaN makes its rows NaN.
    hidden = _block_tile(env, "hidden", block, nl.uint8, nl.sbuf)
    nisa.tensor_scalar(dst=hidden, data=raw, op0=nl.less_equal, operand0=limit)
    lowest = _block_tile(env, "lowest", block, nl.float32, nl.sbuf)
    nisa.memset(dst=lowest, value=FP32_MIN)
    nisa.tensor_copy_predicated(dst=values, src=lowest, predicate=hidden)
    return values


def _block_tile(env, name, block, dtype, buffer):
    """The block's tile of that name, [TILE, keys]."""
    tile = _tile(env, name, block["number"], (TILE, BLOCK), dtype, buffer)
    return tile[0:TILE, 0 : block["keys"]]


def _tile(env, name, number, shape, dtype, buffer):
    """One of the RING tiles of that name, by number; all that ask for it ask for the same shape."""
    tiles = env["tiles"]
    if name not in tiles:
        tiles[name] = []
    ring = tiles[name]
    if len(ring) <= number % RING:
        ring.append(nl.ndarray(shape, dtype=dtype, buffer=buffer))
    return ring[number % RING]
