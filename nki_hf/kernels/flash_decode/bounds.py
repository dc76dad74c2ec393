"""What each row sees, as the loads and the scores need it: where each transfer begins, and the mask of every key.

Everything is float32 on the way, exact because keys are below 2^24.
"""

from nki_hf.lang import nisa, nl

TILE = 128
QUARTER = 32
"""Partitions of a quarter of the tail."""
HIDE = -3.3895313892515355e38
"""bfloat16's lowest number. Twice it, beyond float32, is added to hidden scores: however large one is, it becomes -inf."""
FAR = 33554432.0
"""2^25: further than any key."""


def number_keys(env):
    """What does not depend on the live length, float32, while that is on its way.

    `pieces` [TILE, entries, chunks]: where each chunk and each quarter of the tail begins, counted from the first visible key;
    of the tail, as if all chunks before it were whole. `ends` [TILE, entries, chunks - 1]: where whole chunks end.
    """
    entries, chunks, step = env["lo"].shape[0], env["chunks"], env["per_partition"]
    env["ends"] = None
    if chunks > 1:
        env["ends"] = nl.ndarray((TILE, entries, chunks - 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=env["ends"], pattern=[[0, entries], [TILE * step, chunks - 1]], offset=TILE * step, channel_multiplier=0)
    env["pieces"] = nl.ndarray((TILE, entries, chunks), dtype=nl.float32, buffer=nl.sbuf)
    for begin in range(0, TILE, QUARTER):
        nisa.iota(
            dst=env["pieces"][begin : begin + QUARTER, 0:entries, 0:chunks],
            pattern=[[0, entries], [TILE * step, chunks]],
            offset=begin * step,
            channel_multiplier=0,
        )


def load_bounds(env):
    """`lo` and `hi` on every partition, [TILE, entries, seqlen_q] int32."""
    entries, seqlen_q = env["lo"].shape[0], env["lo"].shape[1]
    edges = []
    for n in range(2):
        given = env["lo"]
        if n == 1:
            given = env["hi"]
        edge = nl.ndarray((TILE, entries, seqlen_q), dtype=nl.int32, buffer=nl.sbuf)
        pattern = [[0, TILE], [seqlen_q, entries], [1, seqlen_q]]
        nisa.dma_copy(dst=edge, src=given.ap(pattern=pattern, offset=0), engine=env["rings"][n])
        edges.append(edge)
    env["lower"] = edges[0]
    env["upper"] = edges[1]
    return edges


def place_chunks(env, edges):
    """Where all transfers begin, from the first visible key and the end of the last one: whole chunks.

    A chunk is read whole where it ends before the last visible key. What is left, 1 to `128 * per_partition` keys, is the tail,
    chunk `chunks - 1` of the program whatever its place: it is read by quarters, as far as a row sees. `first` is the first key
    of each, as far before its beginning as the end of the cache asks for; `begin` is that beginning, and far away where nothing
    is to be read; `index` is `first`, and out of bounds there.
    """
    entries, chunks = env["lo"].shape[0], env["chunks"]
    span = _span(env, edges[0], edges[1])
    env["start"] = span[0]
    env["length"] = nl.ndarray((TILE, entries), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=env["length"], data1=span[1], data2=span[0], op=nl.subtract, engine=nisa.engine.vector)
    for name in ("behind", "first", "begin"):
        env[name] = nl.ndarray((TILE, entries, chunks), dtype=nl.float32, buffer=nl.sbuf)
    env["index"] = nl.ndarray((TILE, entries, chunks), dtype=nl.int32, buffer=nl.sbuf)
    env["beyond"] = _beyond(env["k"])
    env["masks"] = [None] * entries
    if chunks > 1:
        whole = env["behind"][0:TILE, 0:entries, 0 : chunks - 1]
        lengths = env["length"].ap(pattern=[[entries, TILE], [1, entries], [0, chunks - 1]], offset=0)
        nisa.tensor_tensor(dst=whole, data1=env["ends"], data2=lengths, op=nl.greater_equal, engine=nisa.engine.vector)
        _place(env, 0, chunks - 1)


def place_tail(env):
    """What `place_chunks` leaves to do: the tail begins behind the chunks that are read whole."""
    entries, chunks, step = env["lo"].shape[0], env["chunks"], env["per_partition"]
    last = chunks - 1
    tail = env["pieces"][0:TILE, 0:entries, last]
    if chunks > 1:
        short = nl.ndarray((TILE, entries), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=short, op=nl.add, data=env["behind"][0:TILE, 0:entries, 0:last], axis=2)
        nisa.scalar_tensor_tensor(
            dst=tail, data=short, op0=nl.multiply, operand0=-float(TILE * step), op1=nl.add, operand1=tail
        )
    nisa.tensor_tensor(
        dst=env["behind"][0:TILE, 0:entries, last],
        data1=tail,
        data2=env["length"],
        op=nl.greater_equal,
        engine=nisa.engine.vector,
    )
    _place(env, last, chunks)


def _place(env, begin, end):
    """Chunks `begin` to `end` of `first`, `begin` and `index`, from `pieces`, `start` and `behind`."""
    entries, count = env["lo"].shape[0], end - begin
    behind = env["behind"][0:TILE, 0:entries, begin:end]
    first = env["first"][0:TILE, 0:entries, begin:end]
    starts = env["start"].ap(pattern=[[entries, TILE], [1, entries], [0, count]], offset=0)
    nisa.tensor_tensor(
        dst=first, data1=env["pieces"][0:TILE, 0:entries, begin:end], data2=starts, op=nl.add, engine=nisa.engine.vector
    )
    if end == env["chunks"]:
        nisa.scalar_tensor_tensor(
            dst=env["begin"][0:TILE, 0:entries, begin:end],
            data=behind,
            op0=nl.multiply,
            operand0=FAR,
            op1=nl.add,
            operand1=first,
        )
        last = float(env["k"].shape[2] - QUARTER * env["per_partition"])
        nisa.tensor_scalar(dst=first, data=first, op0=nl.minimum, operand0=last)
    nisa.scalar_tensor_tensor(
        dst=env["index"][0:TILE, 0:entries, begin:end],
        data=behind,
        op0=nl.multiply,
        operand0=env["beyond"],
        op1=nl.add,
        operand1=first,
    )
    if end < env["chunks"]:
        nisa.scalar_tensor_tensor(
            dst=env["begin"][0:TILE, 0:entries, begin:end],
            data=behind,
            op0=nl.multiply,
            operand0=FAR,
            op1=nl.add,
            operand1=first,
        )


def _span(env, lower, upper):
    """The first key that any row of each batch entry sees, and the end of the last one: [TILE, entries]."""
    entries, seqlen_q = env["lo"].shape[0], env["lo"].shape[1]
    if seqlen_q == 1:
        return lower.reshape((TILE, entries)), upper.reshape((TILE, entries))
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
    return start, stop


def _beyond(cache):
    """A power of two that is no row of the cache, whichever unit it is counted from: exact in float32."""
    rows, power = cache.shape[0] * cache.shape[1] * cache.shape[2], 1
    while power < rows:
        power = power * 2
    return float(power)


def starts_of(env, load):
    """Registers with the index of each transfer of a load: one for a whole chunk, one for each quarter of the tail."""
    entry, chunk, count = min(load["batch"], env["lo"].shape[0] - 1), load["chunk"], 1
    if chunk == env["chunks"] - 1:
        count = TILE // QUARTER
    starts = []
    for n in range(count):
        start = nisa.register_alloc()
        nisa.register_load(dst=start, src=env["index"][n * QUARTER : n * QUARTER + 1, entry, chunk : chunk + 1])
        starts.append(start)
    return starts


def number_rows(env):
    """The keys of each partition, counted from the beginning of its quarter: float32 [TILE, per_partition]."""
    step = env["per_partition"]
    env["within"] = nl.ndarray((TILE, step), dtype=nl.float32, buffer=nl.sbuf)
    for begin in range(0, TILE, QUARTER):
        nisa.iota(dst=env["within"][begin : begin + QUARTER, 0:step], pattern=[[1, step]], offset=0, channel_multiplier=step)


def mask_of(env, batch):
    """bfloat16 [TILE, key tiles, seqlen_q] of a batch entry: HIDE where the row does not see the key, else 0."""
    entry = min(batch, env["lo"].shape[0] - 1)
    if env["masks"][entry] != None:  # noqa: E711
        return env["masks"][entry]
    entries, seqlen_q, chunks, step = env["lo"].shape[0], env["lo"].shape[1], env["chunks"], env["per_partition"]
    tiles = chunks * step
    engine = nisa.engine.gpsimd
    number = nl.ndarray((TILE, chunks, step), dtype=nl.float32, buffer=nl.sbuf)
    within = env["within"].ap(pattern=[[step, TILE], [0, chunks], [1, step]], offset=0)
    first = env["first"].ap(pattern=[[entries * chunks, TILE], [1, chunks], [0, step]], offset=entry * chunks)
    nisa.tensor_tensor(dst=number, data1=within, data2=first, op=nl.add, engine=engine)
    # Keys that an earlier quarter has too, because this one had to start earlier than it should, count as behind.
    begin = env["begin"].ap(pattern=[[entries * chunks, TILE], [1, chunks], [0, step]], offset=entry * chunks)
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
