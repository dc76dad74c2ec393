"""One query tile of one head with its exact row maximum: for tiles whose rows fail the certificate of the constant shift.

Queries on partitions, two passes over all keys: the first finds the row maximum and the sum of exp(score - maximum), the second
sums the product of these exps with v. There they are scaled by the power of two that makes their sum 1/4 to 1, so that the
product is no larger than the largest |v|: no row overflows or vanishes where the inputs are finite.

Where a tile lies is said by `place`: element offsets into the flattened tensors, either numbers or, in a loop at run time,
registers. So the tile is always TILE rows: the last one of a head starts early enough, and of fewer queries in all the rest is
padding.
"""

from nki_hf.kernels.flash_const_max.exact_blocks import (
    BLOCK,
    CHUNK,
    exponentials,
    load,
    lower_shift,
    multiply,
    scores,
    turn,
    weigh,
)
from nki_hf.kernels.flash_const_max.places import at
from nki_hf.lang import nisa, nl

TILE = 128
FP32_MIN = -3.4028235e38
LOG_2 = 0.6931471805599453
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
        "q": (batch * q.shape[1] + head) * q.shape[2] * seqlen_q + row,
        "k": head_kv * k.shape[2] * seqlen_kv,
        "v": head_kv * seqlen_kv * v.shape[3],
        "out": ((batch * seqlen_q + row) * out.shape[2] + head) * out.shape[3],
        "lse": (batch * q.shape[1] + head) * seqlen_q + row,
        "bounds": 0,
        "bias": 0,
        "sink": head,
        "registers": None,
        "position": row,
    }
    if env["lo"] != None:  # noqa: E711
        place["bounds"] = min(batch, env["lo"].shape[0] - 1) * seqlen_q + row
    if env["bias"] != None:  # noqa: E711
        place["bias"] = min(batch, env["bias"].shape[0] - 1) * seqlen_kv
    return place


def exact_tile(env, place):
    """Compute, and write over, the rows of `out` and `lse` at `place`."""
    q, width, seqlen_kv = env["q"], env["v"].shape[3], env["k"].shape[3]
    rows = min(TILE, q.shape[3])
    env["tiles"] = {}
    env["bounds"] = _bounds(env, place, rows)
    queries = _queries(env, place, rows)
    top = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    shift = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    sink = None
    nisa.memset(dst=top, value=LOWEST)
    if env["sink"] != None:  # noqa: E711
        sink = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=sink, src=at(env, "sink", place, "sink", [[0, TILE], [1, 1]], 0))
        nisa.tensor_tensor(dst=top, data1=top, data2=sink, op=nl.maximum, engine=nisa.engine.vector)
    _open_total(total, sink, top, shift)
    blocks = _blocks(seqlen_kv)
    for i in range(len(blocks) + 1):
        if i < len(blocks):
            _load_ahead(env, place, blocks, i, False)
            scores(env, place, queries, blocks[i], True)
            before = shift
            if i > 0:
                before = blocks[i - 1]["shift"]
            lower_shift(env, blocks[i], before)
        if i >= 1:
            weigh(env, blocks[i - 1], total)
    nisa.tensor_scalar(dst=top, data=blocks[len(blocks) - 1]["shift"], op0=nl.multiply, operand0=-1.0)
    part = _part(total)

    _open_total(total, sink, top, shift)
    result = nl.ndarray((TILE, width), dtype=nl.float32, buffer=nl.psum)
    blocks = _blocks(seqlen_kv)
    # Each part of a block's work stands a block behind the part before it, so that engines do not wait for each other.
    for i in range(len(blocks) + 3):
        if i < len(blocks):
            _load_ahead(env, place, blocks, i, True)
            scores(env, place, queries, blocks[i], False)
        if i >= 1 and i - 1 < len(blocks):
            exponentials(env, blocks[i - 1], shift)
        if i >= 2 and i - 2 < len(blocks):
            turn(env, blocks[i - 2], part, total)
        if i >= 3:
            multiply(blocks[i - 3], result)
    _write(env, place, rows, result, part, total, top)


def _open_total(total, sink, top, shift):
    """`shift` = -top, and `total` = what the sink, if there is one, has of the sum."""
    nisa.tensor_scalar(dst=shift, data=top, op0=nl.multiply, operand0=-1.0)
    if sink != None:  # noqa: E711
        nisa.activation(dst=total, op=nl.exp, data=sink, bias=shift, scale=1.0)
    else:
        nisa.memset(dst=total, value=0.0)


def _fill_empty(total):
    """1 in place of the sums of rows without keys; returns float32 [TILE, 1], 1 for them."""
    empty = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=empty, data=total, op0=nl.equal, operand0=0.0)
    nisa.tensor_tensor(dst=total, data1=total, data2=empty, op=nl.add, engine=nisa.engine.vector)
    return empty


def _part(total):
    """float32 [TILE, 1]: the power of two that, times `total`, is 1/4 to 1. It changes no digit of what it scales."""
    _fill_empty(total)
    power = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    whole = nl.ndarray((TILE, 1), dtype=nl.int32, buffer=nl.sbuf)
    part = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    rounded = nl.ndarray((TILE, 1), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.activation(dst=power, op=nl.log, data=total)
    nisa.tensor_scalar(dst=whole, data=power, op0=nl.multiply, operand0=1.0 / LOG_2, op1=nl.add, operand1=0.5)
    nisa.tensor_copy(dst=power, src=whole, engine=nisa.engine.vector)
    nisa.activation(dst=rounded, op=nl.exp, data=power, scale=-LOG_2)  # bfloat16 drops what exp errs
    nisa.tensor_copy(dst=part, src=rounded, engine=nisa.engine.vector)
    return part


def _blocks(seqlen_kv):
    """The blocks of keys, first to last."""
    blocks = []
    for key in range(0, seqlen_kv, BLOCK):
        blocks.append({"number": len(blocks), "key": key, "keys": min(BLOCK, seqlen_kv - key), "loaded": None})
    return blocks


def _load_ahead(env, place, blocks, i, values):
    """Before the first block of a chunk of keys the chunk behind it is loaded (before the very first, both)."""
    per_chunk = CHUNK // BLOCK
    if i % per_chunk == 0:
        first = i + per_chunk
        if i == 0:
            first = 0
        for begin in range(first, min(i + 2 * per_chunk, len(blocks)), per_chunk):
            loaded = load(env, place, blocks[begin]["key"], values)
            for block in blocks[begin : begin + per_chunk]:
                block["loaded"] = loaded


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
        source = at(env, "q", place, "q", [[seqlen_q, depth], [1, rows]], d * seqlen_q)
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
            nisa.dma_copy(dst=raw[0:rows, 0:1], src=at(env, name, place, "bounds", [[1, rows], [1, 1]], 0))
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


def _write(env, place, rows, result, part, total, top):
    """Normalised rows, lse = top + log(total), and where gradients are wanted top, total and what the rows lost when they were
    rounded; rows without keys: zeros, -inf.
    """
    out, width = env["out"], env["v"].shape[3]
    empty = _fill_empty(total)
    factor = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=factor, data1=total, data2=part, op=nl.multiply, engine=nisa.engine.vector)
    nisa.reciprocal(dst=factor, data=factor)
    normal = nl.ndarray((TILE, width), dtype=out.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=normal, data=result, op0=nl.multiply, operand0=factor)
    target = at(env, "out", place, "out", [[out.shape[2] * width, rows], [1, width]], 0)
    nisa.dma_copy(dst=target, src=normal[0:rows, 0:width])
    if env["out_rest"] != None:  # noqa: E711
        rest = nl.ndarray((TILE, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(dst=rest, data=result, op0=nl.multiply, operand0=factor, op1=nl.subtract, operand1=normal)
        target = at(env, "out_rest", place, "out", [[out.shape[2] * width, rows], [1, width]], 0)
        nisa.dma_copy(dst=target, src=rest[0:rows, 0:width])
    column = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=column, op=nl.log, data=total)
    nisa.tensor_tensor(dst=column, data1=column, data2=top, op=nl.add, engine=nisa.engine.vector)
    _write_rows(env, place, rows, "lse", column, empty)
    if env["row_shift"] != None:  # noqa: E711
        _write_rows(env, place, rows, "row_shift", top, empty)
        nisa.dma_copy(dst=at(env, "row_sum", place, "lse", [[1, rows], [1, 1]], 0), src=total[0:rows, 0:1])


def _write_rows(env, place, rows, name, column, empty):
    """Write a number per row, -inf for rows without keys; `column` is changed."""
    for _ in range(2):  # twice the lowest value is -inf
        nisa.scalar_tensor_tensor(dst=column, data=empty, op0=nl.multiply, operand0=FP32_MIN, op1=nl.add, operand1=column)
    nisa.dma_copy(dst=at(env, name, place, "lse", [[1, rows], [1, 1]], 0), src=column[0:rows, 0:1])
