"""What `flash_prefill` reads from HBM: sinks, keys and values of a section, queries and row bounds of a block."""

from nki_hf.lang import nisa, nl

TILE = 128
CHUNK = 2048


def load_sink(env, sink):
    """The sinks on every partition, [TILE, num_heads_q], and their negatives."""
    heads = sink.shape[1]
    spread = nl.ndarray((TILE, heads), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=spread, src=sink.ap(pattern=[[0, TILE], [1, heads]], offset=0))
    negative = nl.ndarray((TILE, heads), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=negative, data=spread, op0=nl.multiply, operand0=-1.0)
    env["sink"] = spread
    env["negative_sink"] = negative


def load_section(env, section):
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


def chunk_of(section, key):
    """Which chunk of the section holds `key`, and the key's place in it; chunks lie on one grid, so the first tells all."""
    begins = section["begins"]
    number = key // CHUNK - begins[0] // CHUNK
    return number, key - begins[number]


def open_block(env, block):
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
