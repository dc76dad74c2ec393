"""What each row sees, as the gathers and the scores need it: indices of the keys that are read, and the mask of every key.

Everything is float32 on the way, exact because keys are below 2^24.
"""

from nki_hf.lang import nisa, nl

TILE = 128
HIDE = -1.0e30
"""Added to hidden scores, in bfloat16: far below any score, and finite."""
FAR = 33554432.0
"""2^25: further than any key."""


def number_keys(env):
    """First keys of the partitions of all chunks, counted from the first visible one: float32 [TILE, entries, chunks]."""
    entries, chunks, step = env["lo"].shape[0], env["chunks"], env["per_partition"]
    env["grid"] = nl.ndarray((TILE, entries, chunks), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=env["grid"], pattern=[[0, entries], [TILE * step, chunks]], offset=0, channel_multiplier=step)


def load_bounds(env):
    """`lo` and `hi` on every partition, [TILE, entries, seqlen_q] int32, and the indices of all gathers.

    Partition p of chunk c reads from key `start + (TILE c + p) * per_partition`, or from as far before the end of the cache as
    it must; out of bounds where no row sees that far.
    """
    entries, seqlen_q, chunks = env["lo"].shape[0], env["lo"].shape[1], env["chunks"]
    step = env["per_partition"]
    edges = []
    for given in (env["lo"], env["hi"]):
        edge = nl.ndarray((TILE, entries, seqlen_q), dtype=nl.int32, buffer=nl.sbuf)
        pattern = [[0, TILE], [seqlen_q, entries], [1, seqlen_q]]
        nisa.dma_copy(dst=edge, src=given.ap(pattern=pattern, offset=0))
        edges.append(edge)
    lower, upper = edges[0], edges[1]
    env["lower"] = lower
    env["upper"] = upper
    start, stop = lower.reshape((TILE, entries * seqlen_q)), upper.reshape((TILE, entries * seqlen_q))
    if seqlen_q > 1:
        # A row without keys must not widen what is read.
        empty = nl.ndarray((TILE, entries, seqlen_q), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=empty, data1=lower, data2=upper, op=nl.greater_equal, engine=nisa.engine.vector)
        starts = nl.ndarray((TILE, entries, seqlen_q), dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(dst=starts, data=empty, op0=nl.multiply, operand0=FAR, op1=nl.add, operand1=lower)
        stops = nl.ndarray((TILE, entries, seqlen_q), dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(dst=stops, data=empty, op0=nl.multiply, operand0=-FAR, op1=nl.add, operand1=upper)
        start = nl.ndarray((TILE, entries), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=start, op=nl.minimum, data=starts, axis=2)
        stop = nl.ndarray((TILE, entries), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=stop, op=nl.maximum, data=stops, axis=2)

    grid = env["grid"]
    spread = start.ap(pattern=[[entries, TILE], [1, entries], [0, chunks]], offset=0)
    nominal = nl.ndarray((TILE, entries, chunks), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=nominal, data1=grid, data2=spread, op=nl.add, engine=nisa.engine.vector)
    ends = stop.ap(pattern=[[entries, TILE], [1, entries], [0, chunks]], offset=0)
    behind = nl.ndarray((TILE, entries, chunks), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=behind, data1=nominal, data2=ends, op=nl.greater_equal, engine=nisa.engine.vector)
    keys = nl.ndarray((TILE, entries, chunks), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=keys, data=nominal, op0=nl.minimum, operand0=float(env["k"].shape[2] - step))
    env["index"] = nl.ndarray((TILE, entries, chunks), dtype=nl.int32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(dst=env["index"], data=behind, op0=nl.multiply, operand0=FAR, op1=nl.add, operand1=keys)
    env["nominal"] = nominal
    env["keys"] = keys
    env["masks"] = [None] * entries


def index_of(env, load):
    """The indices of one load, int32 [TILE, 1]."""
    entry = min(load["batch"], env["lo"].shape[0] - 1)
    return env["index"][0:TILE, entry, load["chunk"] : load["chunk"] + 1]


def mask_of(env, batch):
    """bfloat16 [TILE, key tiles, seqlen_q] of a batch entry: HIDE where the row does not see the key, else 0."""
    entry = min(batch, env["lo"].shape[0] - 1)
    if env["masks"][entry] != None:  # noqa: E711
        return env["masks"][entry]
    entries, seqlen_q, chunks, step = env["lo"].shape[0], env["lo"].shape[1], env["chunks"], env["per_partition"]
    tiles = chunks * step
    engine = nisa.engine.gpsimd
    number = nl.ndarray((TILE, chunks, step), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=number, pattern=[[0, chunks], [1, step]], offset=0, channel_multiplier=0)
    first = env["keys"].ap(pattern=[[entries * chunks, TILE], [1, chunks], [0, step]], offset=entry * chunks)
    nisa.tensor_tensor(dst=number, data1=number, data2=first, op=nl.add, engine=engine)
    # Keys that an earlier partition has too, because this one had to start earlier than it should, count as behind.
    begin = env["nominal"].ap(pattern=[[entries * chunks, TILE], [1, chunks], [0, step]], offset=entry * chunks)
    again = nl.ndarray((TILE, chunks, step), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=again, data1=number, data2=begin, op=nl.less, engine=engine)
    nisa.scalar_tensor_tensor(dst=number, data=again, op0=nl.multiply, operand0=FAR, op1=nl.add, operand1=number)
    each = number.ap(pattern=[[tiles, TILE], [1, tiles], [0, seqlen_q]], offset=0)
    pattern = [[entries * seqlen_q, TILE], [0, tiles], [1, seqlen_q]]
    below = nl.ndarray((TILE, tiles, seqlen_q), dtype=nl.bfloat16, buffer=nl.sbuf)
    above = nl.ndarray((TILE, tiles, seqlen_q), dtype=nl.bfloat16, buffer=nl.sbuf)
    lower, upper = (
        env["lower"].ap(pattern=pattern, offset=entry * seqlen_q),
        env["upper"].ap(pattern=pattern, offset=entry * seqlen_q),
    )
    nisa.tensor_tensor(dst=below, data1=each, data2=lower, op=nl.less, engine=engine)
    nisa.tensor_tensor(dst=above, data1=each, data2=upper, op=nl.greater_equal, engine=engine)
    nisa.tensor_tensor(dst=below, data1=below, data2=above, op=nl.maximum, engine=engine)
    mask = nl.ndarray((TILE, tiles, seqlen_q), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=mask, data=below, op0=nl.multiply, operand0=HIDE, engine=nisa.engine.vector)
    env["masks"][entry] = mask
    return mask
