"""What `flash_decode` reads from HBM: chunks of keys and values into a ring of buffers, queries, sinks."""

from nki_hf.kernels.flash_decode.bounds import starts_of
from nki_hf.kernels.flash_decode.work import PAIR, PAIRS, VALUES
from nki_hf.lang import nisa, nl

TILE = 128
SOON = 3
"""Buffers of values that are cleared when they are loaded; the others are cleared before, by GpSimd."""
LOWEST = -3.3895313892515355e38
"""The maximum of no keys: above hidden scores, which are -inf, and below all others; bfloat16 holds it, so that the passes of a
float32 product do."""


def open_buffers(env):
    """The rings of buffers: of keys for the chunks that are loaded ahead, this one and the one before; of values also
    for those that still wait.
    """
    ahead, loads = env["prefetch"], len(env["loads"])
    env["spare"] = 0
    env["clears_keys"] = nisa.engine.vector
    if env["lo"].shape[0] > 1:
        env["spare"] = 1
    if nisa.get_nc_version() >= nisa.nc_version.gen3:
        env["clears_keys"] = nisa.engine.gpsimd  # not before, where it and Vector take turns at their port
    keys, values = ahead + 1 + env["together"] + env["spare"], ahead + VALUES + env["spare"]
    env["buffers"] = {"k": _buffers(env, "k", min(loads, keys)), "v": _buffers(env, "v", min(loads, values))}
    env["loaded"] = 0
    env["cleared"] = len(env["buffers"]["v"])
    env["zero"] = nl.ndarray((TILE, 1), dtype=env["v"].dtype, buffer=nl.sbuf)
    nisa.memset(dst=env["zero"], value=0.0, engine=nisa.engine.vector)
    # Not by Vector, which finds out where the first transfer begins.
    _clear(env, env["buffers"]["k"][0])


def _clear(env, tile):
    """Zeros into a buffer, on Scalar."""
    nisa.activation(dst=tile, op=nl.copy, data=env["zero"].ap(pattern=[[1, TILE], [0, tile.shape[1]]], offset=0))


def _buffers(env, name, count):
    """`count` buffers of one chunk."""
    found = []
    for _ in range(count):
        found.append(nl.ndarray((TILE, env["per_partition"] * env[name].shape[3]), dtype=env[name].dtype, buffer=nl.sbuf))
    return found


def clear_values(env):
    """Zeros into the buffers of values that are loaded later, by GpSimd, which has nothing else to do. Not where it and Vector
    take turns at their port to SBUF, up to NeuronCore-v2.
    """
    buffers = env["buffers"]["v"]
    if nisa.get_nc_version() >= nisa.nc_version.gen3:
        env["cleared"] = min(SOON, len(buffers))
        for n in range(SOON, len(buffers)):
            nisa.memset(dst=buffers[n], value=0.0, engine=nisa.engine.gpsimd)


def load_keys(env, number):
    """The keys of one chunk, and the registers that say where it begins."""
    if number >= len(env["loads"]):
        return
    load, buffers = env["loads"][number], env["buffers"]["k"]
    load["starts"] = starts_of(env, load)
    load["k"] = buffers[number % len(buffers)]
    if 0 < number and number < len(buffers):
        nisa.memset(dst=load["k"], value=0.0, engine=nisa.engine.vector)
    _load(env, env["k"], load["k"], load, 0)
    _forget(env, buffers, number + 1, env["clears_keys"])


def load_values(env, closed, opened):
    """The values of further chunks: into buffers of chunks before `closed`, up to chunk `opened`."""
    buffers = env["buffers"]["v"]
    free = len(buffers)
    if free < len(env["loads"]):  # else no buffer is ever another load's
        free = free - env["spare"]
    stop = min(min(closed + free, opened + 1), len(env["loads"]))
    for number in range(env["loaded"], stop):
        load = env["loads"][number]
        load["v"] = buffers[number % len(buffers)]
        if number < env["cleared"]:
            _clear(env, load["v"])
        _load(env, env["v"], load["v"], load, 1)
        _forget(env, buffers, number + 1, nisa.engine.vector)
    env["loaded"] = max(env["loaded"], stop)


def _forget(env, buffers, number, engine):
    """Zeros into the buffer of load `number` where it holds keys of another sequence: where bounds differ by sequence, the
    transfer may leave some of them, and 0 times their inf or NaN would reach this one's rows. One load early, so that neither
    the engine nor the transfer waits; hence the spare buffer.
    """
    loads, count = env["loads"], len(buffers)
    if env["spare"] == 0 or number < count or number >= len(loads):
        return
    if loads[number - count]["batch"] != loads[number]["batch"]:
        nisa.memset(dst=buffers[number % count], value=0.0, engine=engine)


def _load(env, given, tile, load, ring):
    """One chunk of `given`, `per_partition` rows in a row on each partition: nothing where no row sees so far.

    Every buffer is zeroed before its first load: what a transfer leaves out is multiplied by 0 and must be finite. The quarters
    of a tail go through both rings.
    """
    starts = load["starts"]
    rows, width = given.shape[0] * given.shape[1] * given.shape[2], given.shape[3]
    run, size = env["per_partition"] * width, TILE // len(starts)
    flat, offset = given.reshape((rows, width)), load["unit"] * given.shape[2] * width
    for n in range(len(starts)):
        source = flat.ap(pattern=[[run, size], [1, run]], offset=offset, scalar_offset=starts[n], indirect_dim=0)
        nisa.dma_copy(
            dst=tile[n * size : (n + 1) * size, 0:run],
            src=source,
            oob_mode=nisa.oob_mode.skip,
            engine=env["rings"][(ring + n) % 2],
        )


def load_constants(env):
    """Twice the identity (which adds masks), minus ones, and what the ledger of rows begins with."""
    twos = nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=twos, value=2.0, engine=nisa.engine.gpsimd)
    env["twice_identity"] = _diagonal(twos, nl.bfloat16)
    env["minus_ones"] = nl.ndarray((TILE, TILE), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=env["minus_ones"], value=-1.0, engine=nisa.engine.gpsimd)
    env["one"] = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=env["one"], value=1.0, engine=nisa.engine.gpsimd)
    env["lowest"] = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=env["lowest"], value=LOWEST, engine=nisa.engine.gpsimd)
    columns = len(env["blocks"])
    env["sums"] = nl.ndarray((TILE, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=env["sums"], value=1.0, engine=nisa.engine.gpsimd)
    env["normal"] = nl.ndarray((env["block_rows"], columns, env["v"].shape[3]), dtype=env["out"].dtype, buffer=nl.sbuf)
    if env["out_rest"] != None:  # noqa: E711
        env["rest"] = nl.ndarray(env["normal"].shape, dtype=nl.float32, buffer=nl.sbuf)
    env["maxima"] = nl.ndarray((TILE, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=env["maxima"], value=0.0, engine=nisa.engine.gpsimd)


def open_pairs(env):
    """Tiles for maxima and sums of few rows, [keys, maxima and sums]; what lies between them is turned too."""
    env["pairs"] = []
    if env["rows"] <= PAIR and nisa.get_nc_version() >= nisa.nc_version.gen4:
        for _ in range(PAIRS):
            pair = nl.ndarray((TILE, PAIR + env["rows"]), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=pair, value=0.0, engine=nisa.engine.gpsimd)
            env["pairs"].append(pair)


def _diagonal(values, dtype):
    """`values` where they lie on the diagonal, else 0."""
    diagonal = nl.ndarray((TILE, TILE), dtype=dtype, buffer=nl.sbuf)
    nisa.affine_select(
        dst=diagonal,
        pattern=[[-1, TILE]],
        offset=0,
        channel_multiplier=1,
        on_true_tile=values,
        on_false_value=0.0,
        cmp_op=nl.equal,
    )
    return diagonal


def load_queries(env):
    """Query rows of this core's units, up to 128 at a time.

    Whole units follow each other in HBM, one that is left over need not.
    """
    q, segments, rows = env["q"], env["segments"], env["rows"]
    head_dim = q.shape[3]
    flat = q.reshape((q.shape[0] * q.shape[1] * q.shape[2], head_dim))
    env["lines"] = []
    begin = 0
    while begin < len(segments):
        end = begin + 1
        while end < len(segments) and segments[end]["unit"] == segments[end - 1]["unit"] + 1:
            end = end + 1
        source, count = segments[begin]["unit"] * rows, (end - begin) * rows
        for row in range(0, count, TILE):
            size = min(TILE, count - row)
            even = size + size % 2  # PSUM is written in whole words
            lines = nl.ndarray((even, head_dim), dtype=q.dtype, buffer=nl.sbuf)
            if size < even:
                nisa.memset(dst=lines, value=0.0, engine=nisa.engine.gpsimd)
            nisa.dma_copy(
                dst=lines[0:size, 0:head_dim], src=flat[source + row : source + row + size, 0:head_dim], engine=env["rings"][0]
            )
            env["lines"].append({"tile": lines, "column": begin * rows + row, "size": size})
        begin = end


def turn_queries(env):
    """Queries as [head_dim piece, rows of this core's units]."""
    q, segments, rows = env["q"], env["segments"], env["rows"]
    head_dim = q.shape[3]
    for s in range(len(segments)):
        segments[s]["column"] = s * rows
    env["queries"] = []
    for d in range(0, head_dim, TILE):
        depth = min(TILE, head_dim - d)
        env["queries"].append(nl.ndarray((depth, len(segments) * rows), dtype=q.dtype, buffer=nl.sbuf))
    for n in range(len(env["lines"])):
        lines = env["lines"][n]
        tile, column, size = lines["tile"], lines["column"], lines["size"]
        even = tile.shape[0]
        for p in range(len(env["queries"])):
            piece = env["queries"][p]
            depth = piece.shape[0]
            bank = nl.ndarray((depth, even), dtype=q.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=bank, data=tile[0:even, p * TILE : p * TILE + depth], engine=nisa.engine.tensor)
            nisa.tensor_scalar(
                dst=piece[0:depth, column : column + size],
                data=bank[0:depth, 0:size],
                op0=nl.multiply,
                operand0=env["factor"],
                engine=nisa.engine.vector,
            )
