"""What `flash_decode` reads from HBM: chunks of keys and values into a ring of buffers, queries, sinks."""

from nki_hf.kernels.flash_decode.bounds import index_of
from nki_hf.lang import nisa, nl

TILE = 128
LOWEST = -1.0e28
"""The maximum of no keys: above hidden scores, below all others."""


def open_buffers(env):
    """The rings of buffers, for the chunks that are loaded ahead, this one and the one before."""
    step, count = env["per_partition"], min(len(env["loads"]), env["prefetch"] + 2)
    env["rings"] = {"k": _ring(env, "k", count), "v": _ring(env, "v", count)}
    width = step * max(env["k"].shape[3], env["v"].shape[3])
    env["zeros"] = nl.ndarray((TILE, width), dtype=env["k"].dtype, buffer=nl.sbuf)
    nisa.memset(dst=env["zeros"], value=0.0, engine=nisa.engine.vector)


def _ring(env, name, count):
    """`count` buffers of one chunk."""
    ring = []
    for _ in range(count):
        ring.append(nl.ndarray((TILE, env["per_partition"] * env[name].shape[3]), dtype=env[name].dtype, buffer=nl.sbuf))
    return ring


def zero_buffers(env, begin, end):
    """Zero buffers `begin` to `end` of both rings: what a gather leaves out is multiplied by 0 and must be finite.

    By copies, which take the Vector engine half the time of setting 16-bit memory; the Scalar engine has nothing to do yet.
    """
    keys, values = env["rings"]["k"], env["rings"]["v"]
    for n in range(begin, min(end, len(keys))):
        zeros = env["zeros"][0:TILE, 0 : keys[n].shape[1]]
        if n == 0:
            nisa.activation(dst=keys[n], op=nl.copy, data=zeros)
        else:
            nisa.tensor_copy(dst=keys[n], src=zeros, engine=nisa.engine.vector)
        zeros = env["zeros"][0:TILE, 0 : values[n].shape[1]]
        if n < 2:
            nisa.activation(dst=values[n], op=nl.copy, data=zeros)
        else:
            nisa.tensor_copy(dst=values[n], src=zeros, engine=nisa.engine.vector)


def load_chunk(env, name, number):
    """Gather keys or values of one chunk: `per_partition` rows in a row on each partition, nothing where no row sees so far."""
    if number < 0 or number >= len(env["loads"]):
        return
    load, given, ring = env["loads"][number], env[name], env["rings"][name]
    tile = ring[number % len(ring)]
    load[name] = tile
    rows, width = given.shape[0] * given.shape[1] * given.shape[2], given.shape[3]
    source = given.reshape((rows, width)).ap(
        pattern=[[width, TILE], [1, env["per_partition"] * width]], offset=load["unit"] * given.shape[2] * width,
        vector_offset=index_of(env, load), indirect_dim=0,
    )  # fmt: skip
    nisa.dma_copy(dst=tile, src=source, oob_mode=nisa.oob_mode.skip)


def load_constants(env):
    """The identity (which turns), its negative, ones, and the sinks as rows of each block."""
    env["ones"] = nl.ndarray((TILE, TILE), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=env["ones"], value=1.0, engine=nisa.engine.gpsimd)
    env["identity"] = _diagonal(env["ones"])
    less = nl.ndarray((TILE, TILE), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=less, value=-1.0, engine=nisa.engine.gpsimd)
    env["negative"] = _diagonal(less)
    env["one"] = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=env["one"], value=1.0, engine=nisa.engine.gpsimd)
    env["lowest"] = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=env["lowest"], value=LOWEST, engine=nisa.engine.gpsimd)
    columns = len(env["blocks"])
    env["sums"] = nl.ndarray((TILE, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=env["sums"], value=1.0, engine=nisa.engine.gpsimd)
    env["normal"] = nl.ndarray((env["block_rows"], columns, env["v"].shape[3]), dtype=env["out"].dtype, buffer=nl.sbuf)
    env["maxima"] = nl.ndarray((TILE, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=env["maxima"], value=0.0, engine=nisa.engine.gpsimd)


def _diagonal(values):
    """`values` where they lie on the diagonal, else 0."""
    diagonal = nl.ndarray((TILE, TILE), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.affine_select(
        dst=diagonal, pattern=[[-1, TILE]], offset=0, channel_multiplier=1, on_true_tile=values, on_false_value=0.0,
        cmp_op=nl.equal,
    )  # fmt: skip
    return diagonal


def load_queries(env):
    """Queries as [head_dim piece, rows of this core's units]: read in rows, 128 at a time, and turned."""
    q, segments = env["q"], env["segments"]
    head_dim, rows = q.shape[3], env["rows"]
    env["queries"] = []
    flat = q.reshape((q.shape[0] * q.shape[1] * q.shape[2], head_dim))
    for d in range(0, head_dim, TILE):
        depth = min(TILE, head_dim - d)
        env["queries"].append(nl.ndarray((depth, len(segments) * rows), dtype=q.dtype, buffer=nl.sbuf))
    for s in range(len(segments)):
        segments[s]["column"] = s * rows
    # Whole units follow each other in HBM, a unit that is left over need not.
    begin = 0
    while begin < len(segments):
        end = begin + 1
        while end < len(segments) and segments[end]["unit"] == segments[end - 1]["unit"] + 1:
            end = end + 1
        _turned(env, flat, segments[begin]["unit"] * rows, begin * rows, (end - begin) * rows)
        begin = end


def _turned(env, flat, source, target, count):
    """Turn `count` rows of `flat` from `source` on into columns from `target` on."""
    head_dim = flat.shape[1]
    for row in range(0, count, TILE):
        size = min(TILE, count - row)
        even = size + size % 2  # PSUM is written in whole words
        lines = nl.ndarray((even, head_dim), dtype=flat.dtype, buffer=nl.sbuf)
        if size < even:
            nisa.memset(dst=lines, value=0.0, engine=nisa.engine.gpsimd)
        nisa.dma_copy(dst=lines[0:size, 0:head_dim], src=flat[source + row : source + row + size, 0:head_dim])
        for n in range(len(env["queries"])):
            piece = env["queries"][n]
            depth = piece.shape[0]
            bank = nl.ndarray((depth, even), dtype=flat.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=bank, data=lines[0:even, n * TILE : n * TILE + depth], engine=nisa.engine.tensor)
            nisa.tensor_scalar(
                dst=piece[0:depth, target + row : target + row + size], data=bank[0:depth, 0:size], op0=nl.multiply,
                operand0=env["factor"], engine=nisa.engine.vector,
            )  # fmt: skip
