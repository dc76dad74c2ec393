"""The end of a block and of a segment: normalise, log-sum-exp, and the certificate of the shift.

Slot `head of the group * query tiles + query tile` of a segment is a column of its statistics, [TILE rows, slots] float32:
`sums` (row sums), `totals` (with the sink, and 1 for rows without keys), `probes` (sums of the accumulators, which are finite if
all of them are).
"""

from nki_hf.lang import nisa, nl

TILE = 128
FP32_MIN = -3.4028235e38
SUM_MIN = 1.0
"""As under the exact row maximum: what is flushed to zero (below 2^-126) weighs less than that of the sum."""
SUM_MAX = 1.0e37
"""No probability, and no partial sum, has overflowed bfloat16 or float32."""


def open_segment(env, segment):
    """Places for the statistics of all query tiles of the segment's heads."""
    tiles = segment["end"] - segment["begin"]
    segment["tiles"] = tiles
    shape = (TILE, env["group_size"], tiles)
    segment["sums"] = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    segment["totals"] = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    segment["probes"] = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    segment["empty"] = _empty_rows(env, segment)


def _empty_rows(env, segment):
    """float32 [TILE, tiles]: 1 for rows without visible keys; None if there are none."""
    tiles, begin = segment["tiles"], segment["begin"] * TILE
    if env["lo"] != None:  # noqa: E711
        lo, hi = env["lo"], env["hi"]
        batch = min(segment["unit"] // env["k"].shape[1], lo.shape[0] - 1)
        seqlen_q = lo.shape[1]
        rows = min(tiles * TILE, seqlen_q - begin)
        full, rest = rows // TILE, rows % TILE
        edges = []
        for given in (lo, hi):
            raw = nl.ndarray((TILE, tiles), dtype=nl.int32, buffer=nl.sbuf)
            offset = batch * seqlen_q + begin
            if rest > 0:
                nisa.memset(dst=raw[0:TILE, full : full + 1], value=0)
                source = given.ap(pattern=[[1, rest], [1, 1]], offset=offset + full * TILE)
                nisa.dma_copy(dst=raw[0:rest, full : full + 1], src=source)
            if full > 0:
                nisa.dma_copy(dst=raw[0:TILE, 0:full], src=given.ap(pattern=[[1, TILE], [TILE, full]], offset=offset))
            edges.append(raw)
        empty = nl.ndarray((TILE, tiles), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=empty, data1=edges[0], data2=edges[1], op=nl.greater_equal, engine=nisa.engine.vector)
        return empty
    position, last = env["q_offset"] + begin, env["q_offset"] + min(begin + tiles * TILE, env["q"].shape[3]) - 1
    before = env["ahead"] != None and position + env["ahead"] <= 0  # noqa: E711
    behind = env["window"] != None and last - env["window"] + 1 >= env["k"].shape[3]  # noqa: E711
    if not before and not behind:
        return None
    rows = nl.ndarray((TILE, tiles), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=rows, pattern=[[TILE, tiles]], offset=position, channel_multiplier=1)
    empty = nl.ndarray((TILE, tiles), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=empty, value=0.0)
    if before:
        nisa.tensor_scalar(dst=empty, data=rows, op0=nl.less_equal, operand0=-float(env["ahead"]))
    if behind:
        limit = float(env["k"].shape[3] + env["window"] - 1)
        nisa.scalar_tensor_tensor(dst=empty, data=rows, op0=nl.greater_equal, operand0=limit, op1=nl.maximum, operand1=empty)
    return empty


def leave_accumulators(env, block, bank):
    """Copy one bank of accumulators to SBUF, so that the next block can have it; regions without keys become zeros."""
    heads, pieces, piece, columns = block["heads"], env["pieces"], env["piece"], env["v"].shape[3] + 1
    if block["kept"] == None:  # noqa: E711
        block["kept"] = nl.ndarray((TILE, block["tiles"] * heads, columns), dtype=nl.float32, buffer=nl.sbuf)
    tile, first = block["accumulators"][bank], bank * block["per_bank"]
    count = tile.shape[1]
    whole = pieces == 1
    for place in range(count):
        if not block["visited"][(first + place) // pieces // heads]:
            whole = False
    if whole:
        target = block["kept"][0:TILE, first : first + count, 0:columns]
        nisa.tensor_copy(dst=target, src=tile, engine=nisa.engine.vector)
    else:
        for place in range(count):
            column, begin = (first + place) // pieces, (first + place) % pieces * piece
            end = min(begin + piece, columns)
            target = block["kept"][0:TILE, column, begin:end]
            if block["visited"][column // heads]:
                nisa.tensor_copy(dst=target, src=tile[0:TILE, place, 0 : end - begin], engine=nisa.engine.vector)
            else:
                nisa.memset(dst=target, value=0.0, engine=nisa.engine.vector)
    block["accumulators"][bank] = None


def finish_block(env, block, segment):
    """Normalise the block's rows, write them, and keep their statistics in the segment's slots."""
    heads, tiles, width = block["heads"], block["tiles"], env["v"].shape[3]
    kept, first, g = block["kept"], block["tile"] - segment["begin"], block["g"]
    count = tiles * heads
    totals = nl.ndarray((TILE, tiles, heads), dtype=nl.float32, buffer=nl.sbuf)
    probes = nl.ndarray((TILE, tiles, heads), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=probes.reshape((TILE, count)), op=nl.add, data=kept, axis=(2,))
    nisa.tensor_copy(dst=totals.reshape((TILE, count)), src=kept[0:TILE, 0:count, width], engine=nisa.engine.vector)
    for h in range(heads):
        place = segment["sums"][0:TILE, g + h, first : first + tiles]
        nisa.tensor_copy(dst=place, src=totals[0:TILE, 0:tiles, h], engine=nisa.engine.vector)
        place = segment["probes"][0:TILE, g + h, first : first + tiles]
        nisa.tensor_copy(dst=place, src=probes[0:TILE, 0:tiles, h], engine=nisa.engine.vector)
        if env["sink"] != None:  # noqa: E711
            share = env["sink_sum"][0:TILE, block["head"] + h : block["head"] + h + 1]
            nisa.tensor_scalar(dst=totals[0:TILE, 0:tiles, h], data=totals[0:TILE, 0:tiles, h], op0=nl.add, operand0=share)
        elif segment["empty"] != None:  # noqa: E711
            nisa.tensor_tensor(
                dst=totals[0:TILE, 0:tiles, h], data1=totals[0:TILE, 0:tiles, h],
                data2=segment["empty"][0:TILE, first : first + tiles], op=nl.add, engine=nisa.engine.vector,
            )  # fmt: skip
        place = segment["totals"][0:TILE, g + h, first : first + tiles]
        nisa.tensor_copy(dst=place, src=totals[0:TILE, 0:tiles, h], engine=nisa.engine.vector)
    factors = nl.ndarray((TILE, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=factors, data=totals.reshape((TILE, count)))
    result = nl.ndarray((TILE, tiles, heads, width), dtype=env["out"].dtype, buffer=nl.sbuf)
    for c in range(count):
        nisa.tensor_scalar(
            dst=result[0:TILE, c // heads, c % heads, 0:width], data=kept[0:TILE, c, 0:width], op0=nl.multiply,
            operand0=factors[0:TILE, c : c + 1],
        )  # fmt: skip
    block["kept"] = None
    _write(env, block, result)


def _write(env, block, result):
    """The block's rows of `out`: whole query tiles with one transfer, a partial one with another."""
    out = env["out"]
    seqlen_q, num_heads_q, width = out.shape[1], out.shape[2], out.shape[3]
    heads, begin = block["heads"], block["tile"] * TILE
    rows = min(block["tiles"] * TILE, seqlen_q - begin)
    full, rest = rows // TILE, rows % TILE
    row = num_heads_q * width
    offset = (block["batch"] * seqlen_q + begin) * row + block["head"] * width
    if full > 0:
        target = out.ap(pattern=[[row, TILE], [TILE * row, full], [width, heads], [1, width]], offset=offset)
        nisa.dma_copy(dst=target, src=result[0:TILE, 0:full, 0:heads, 0:width])
    if rest > 0:
        target = out.ap(pattern=[[row, rest], [width, heads], [1, width]], offset=offset + full * TILE * row)
        nisa.dma_copy(dst=target, src=result[0:rest, full, 0:heads, 0:width])


def close_segment(env, segment):
    """Write lse and the number of failed rows of every query tile of the segment."""
    heads, tiles = env["group_size"], segment["tiles"]
    slots = heads * tiles
    _write_failed(env, segment, slots)
    columns = nl.ndarray((TILE, heads, tiles), dtype=nl.float32, buffer=nl.sbuf)
    flat = columns.reshape((TILE, slots))
    nisa.activation(dst=flat, op=nl.log, data=segment["totals"].reshape((TILE, slots)))
    nisa.tensor_scalar(dst=flat, data=flat, op0=nl.add, operand0=env["shift"])
    if segment["empty"] != None and env["sink"] == None:  # noqa: E711
        for h in range(heads):
            nisa.scalar_tensor_tensor(
                dst=columns[0:TILE, h, 0:tiles], data=segment["empty"], op0=nl.multiply, operand0=0.9 * FP32_MIN, op1=nl.add,
                operand1=columns[0:TILE, h, 0:tiles],
            )  # fmt: skip
    for begin in range(0, slots, TILE):
        end = min(begin + TILE, slots)
        bank = nl.ndarray((end - begin, TILE), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=bank, data=flat[0:TILE, begin:end], engine=nisa.engine.tensor)
        lowest = nl.ndarray((end - begin, TILE), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=lowest, data=bank, op0=nl.less, operand0=0.8 * FP32_MIN, op1=nl.multiply, operand1=FP32_MIN)
        lines = nl.ndarray((end - begin, TILE), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=lines, data1=bank, data2=lowest, op=nl.add, engine=nisa.engine.vector)
        # A row without keys: 1.9 times the lowest value overflows to -inf.
        _write_lse(env, segment, lines, begin, end)
    segment["sums"], segment["totals"], segment["probes"], segment["empty"] = None, None, None, None


def _write_lse(env, segment, lines, begin, end):
    """Rows `begin` to `end` of the segment's slots, each a query tile."""
    lse = env["lse"]
    seqlen_q, tiles = lse.shape[2], segment["tiles"]
    start = segment["unit"] * env["group_size"] * seqlen_q + segment["begin"] * TILE
    if seqlen_q == tiles * TILE:
        target = lse.ap(pattern=[[TILE, end - begin], [1, TILE]], offset=start + begin * TILE)
        nisa.dma_copy(dst=target, src=lines)
        return
    rows = min(tiles * TILE, seqlen_q - segment["begin"] * TILE)
    for h in range(begin // tiles, (end - 1) // tiles + 1):
        first, last = max(begin, h * tiles), min(end, (h + 1) * tiles)
        t = first - h * tiles
        offset = start + h * seqlen_q + t * TILE
        full = min(last - first, rows // TILE - t)
        if full > 0:
            target = lse.ap(pattern=[[TILE, full], [1, TILE]], offset=offset)
            nisa.dma_copy(dst=target, src=lines[first - begin : first - begin + full, 0:TILE])
        if full < last - first:
            rest = rows % TILE
            target = lse.ap(pattern=[[rest, 1], [1, rest]], offset=offset + full * TILE)
            nisa.dma_copy(dst=target, src=lines[first - begin + full : first - begin + full + 1, 0:rest])


def _write_failed(env, segment, slots):
    """Rows of each slot whose sum or accumulators fail the certificate, counted by a product with ones."""
    heads, tiles = env["group_size"], segment["tiles"]
    good = nl.ndarray((TILE, heads, tiles), dtype=nl.float32, buffer=nl.sbuf)
    flat = good.reshape((TILE, slots))
    sums, totals = segment["sums"].reshape((TILE, slots)), segment["totals"].reshape((TILE, slots))
    nisa.tensor_scalar(dst=flat, data=sums, op0=nl.greater_equal, operand0=SUM_MIN)
    if segment["empty"] != None:  # noqa: E711
        for h in range(heads):
            place = good[0:TILE, h, 0:tiles]
            nisa.tensor_tensor(dst=place, data1=place, data2=segment["empty"], op=nl.maximum, engine=nisa.engine.vector)
    nisa.scalar_tensor_tensor(dst=flat, data=totals, op0=nl.less_equal, operand0=SUM_MAX, op1=nl.multiply, operand1=flat)
    nisa.scalar_tensor_tensor(dst=flat, data=totals, op0=nl.greater_equal, operand0=1.0 / SUM_MAX, op1=nl.multiply, operand1=flat)
    finite = nl.ndarray((TILE, slots), dtype=nl.float32, buffer=nl.sbuf)
    probes = segment["probes"].reshape((TILE, slots))
    nisa.tensor_scalar(dst=finite, data=probes, op0=nl.multiply, operand0=0.0, op1=nl.equal, operand1=0.0)
    nisa.tensor_tensor(dst=flat, data1=flat, data2=finite, op=nl.multiply, engine=nisa.engine.vector)
    nisa.tensor_scalar(dst=flat, data=flat, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=1.0)
    rest = min(tiles * TILE, env["q"].shape[3] - segment["begin"] * TILE) % TILE
    if rest > 0:
        rows = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=rows, pattern=[[0, 1]], offset=0, channel_multiplier=1)
        nisa.tensor_scalar(dst=rows, data=rows, op0=nl.less, operand0=float(rest))
        place = good[0:TILE, 0:heads, tiles - 1 : tiles]
        nisa.tensor_scalar(dst=place, data=place, op0=nl.multiply, operand0=rows)
    ones = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.vector)
    counts = nl.ndarray((1, heads, tiles), dtype=nl.int32, buffer=nl.sbuf)
    line = counts.reshape((1, slots))
    for begin in range(0, slots, 512):
        end = min(begin + 512, slots)
        bank = nl.ndarray((1, end - begin), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=bank, stationary=ones, moving=flat[0:TILE, begin:end])
        nisa.tensor_copy(dst=line[0:1, begin:end], src=bank, engine=nisa.engine.vector)
    failed = env["failed"]
    offset = segment["unit"] * heads * failed.shape[2] + segment["begin"]
    target = failed.ap(pattern=[[slots, 1], [failed.shape[2], heads], [1, tiles]], offset=offset)
    nisa.dma_copy(dst=target, src=counts)
