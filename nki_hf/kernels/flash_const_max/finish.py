"""The end of a block: its rows are normalised, written in packs, and leave their statistics in the slots of a ledger.

A ledger is [TILE rows, slots] float32: `sums` (row sums), `totals` (with the sink, and 1 for rows without keys), `probes`
(sums of the normalised row, which are finite if all of it is) and `empty` (1 for rows without keys, None if no segment has
such rows).
"""

from nki_hf.kernels.flash_const_max.certificate import write_failed
from nki_hf.kernels.flash_const_max.lse import write_lse
from nki_hf.lang import nisa, nl

TILE = 128


def finish_block(env, number):
    """Normalise the rows of a block; write its pack if it is the last of it, and its ledger if it is the last of that."""
    blocks, segments = env["blocks"], env["segments"]
    block = blocks[number]
    pack = blocks[block["pack"]]
    segment = segments[block["segment"]]
    ledger = env["ledgers"][segment["ledger"]]
    if block["tile"] == segment["begin"] and block["g"] == 0:
        if block["segment"] == ledger["first"]:
            _open_ledger(env, ledger)
        _open_segment(env, ledger, segment)
    if block["place"] == 0:
        _open_pack(env, pack)
    _normalise(env, block, pack, segment, ledger)
    block["accumulators"] = None
    block["q"] = None
    if block["place"] == pack["packed"] - 1:
        _write_pack(env, pack)
    last = block["tile"] + block["tiles"] == segment["end"] and block["g"] + block["heads"] == env["group_size"]
    if last and block["segment"] == ledger["last"]:
        _close_ledger(env, ledger, segments)


def _open_ledger(env, ledger):
    """Places for the statistics of all rows of the ledger's segments."""
    slots = ledger["slots"]
    ledger["sums"] = nl.ndarray((TILE, slots), dtype=nl.float32, buffer=nl.sbuf)
    ledger["probes"] = nl.ndarray((TILE, env["pieces"], slots), dtype=nl.float32, buffer=nl.sbuf)
    ledger["totals"] = ledger["sums"]
    ledger["empty"] = None
    if env["sink"] != None or env["may_be_empty"]:  # noqa: E711
        ledger["totals"] = nl.ndarray((TILE, slots), dtype=nl.float32, buffer=nl.sbuf)
    if env["may_be_empty"]:
        ledger["empty"] = nl.ndarray((TILE, slots), dtype=nl.float32, buffer=nl.sbuf)


def _close_ledger(env, ledger, segments):
    """Write lse and the number of failed rows of every query tile."""
    write_failed(env, ledger, segments)
    write_lse(env, ledger, segments)
    ledger["sums"] = None
    ledger["totals"] = None
    ledger["probes"] = None
    ledger["empty"] = None


def _open_segment(env, ledger, segment):
    """Which rows of the segment see no key, for the slots of each of its heads."""
    if not env["may_be_empty"]:
        return
    tiles = segment["tiles"]
    empty = _empty_rows(env, segment)
    for g in range(env["group_size"]):
        first = segment["slot"] + g * tiles
        nisa.tensor_copy(dst=ledger["empty"][0:TILE, first : first + tiles], src=empty, engine=nisa.engine.vector)


def _empty_rows(env, segment):
    """float32 [TILE, tiles]: 1 for rows without visible keys."""
    tiles, begin = segment["tiles"], segment["begin"] * TILE
    if env["lo"] != None:  # noqa: E711
        rows = segment["rows"]
        if rows["empty"] == None:  # noqa: E711
            rows["empty"] = nl.ndarray((TILE, tiles), dtype=nl.float32, buffer=nl.sbuf)
            lower, upper = rows["edges"][0:TILE, 0, 0:tiles], rows["edges"][0:TILE, 1, 0:tiles]
            nisa.tensor_tensor(dst=rows["empty"], data1=lower, data2=upper, op=nl.greater_equal, engine=nisa.engine.vector)
        return rows["empty"]
    empty = nl.ndarray((TILE, tiles), dtype=nl.float32, buffer=nl.sbuf)
    positions = nl.ndarray((TILE, tiles), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=positions, pattern=[[TILE, tiles]], offset=env["q_offset"] + begin, channel_multiplier=1)
    nisa.memset(dst=empty, value=0.0)
    if env["ahead"] != None:  # noqa: E711
        nisa.tensor_scalar(dst=empty, data=positions, op0=nl.less_equal, operand0=-float(env["ahead"]))
    if env["window"] != None:  # noqa: E711
        limit = float(env["k"].shape[3] + env["window"] - 1)
        nisa.scalar_tensor_tensor(
            dst=empty, data=positions, op0=nl.greater_equal, operand0=limit, op1=nl.maximum, operand1=empty
        )
    return empty


def _open_pack(env, pack):
    """The rows of a pack as they are written, [TILE, query tiles, heads, head_dim_v]."""
    shape = (TILE, pack["tiles"], pack["packed"] * pack["heads"], env["v"].shape[3])
    pack["rows"] = nl.ndarray(shape, dtype=env["out"].dtype, buffer=nl.sbuf)
    pack["rest"] = None
    if env["out_rest"] != None:  # noqa: E711
        pack["rest"] = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)


def _normalise(env, block, pack, segment, ledger):
    """Divide the block's rows by their totals; sums, totals and probes go to the ledger.

    Columns lie by query tile, then head, slots by head, then query tile.
    """
    heads, tiles, pieces, piece, width = block["heads"], block["tiles"], env["pieces"], env["piece"], env["v"].shape[3]
    _sums(env, block, segment, ledger)
    factors = nl.ndarray((TILE, heads, tiles), dtype=nl.float32, buffer=nl.sbuf)
    for h in range(heads):
        slot = _slot(block, segment, 0, h)
        sums, totals = ledger["sums"][0:TILE, slot : slot + tiles], ledger["totals"][0:TILE, slot : slot + tiles]
        if env["sink"] != None:  # noqa: E711
            head = block["head"] + h
            nisa.tensor_scalar(dst=totals, data=sums, op0=nl.add, operand0=env["sink_sum"][0:TILE, head : head + 1])
        elif env["may_be_empty"]:
            empty = ledger["empty"][0:TILE, slot : slot + tiles]
            nisa.tensor_tensor(dst=totals, data1=sums, data2=empty, op=nl.add, engine=nisa.engine.vector)
        nisa.reciprocal(dst=factors[0:TILE, h, 0:tiles], data=totals)
    for column in range(tiles * heads):
        t, h = column // heads, column % heads
        head, slot = block["place"] * heads + h, _slot(block, segment, t, h)
        for part in range(pieces):
            begin, end = part * piece, min(part * piece + piece, width)
            target, probe = pack["rows"][0:TILE, t, head, begin:end], ledger["probes"][0:TILE, part, slot : slot + 1]
            if block["visited"][t] and pack["rest"] != None:  # noqa: E711
                # A quotient, not a product: that of a row with one key is its value, bit by bit, and its rest 0.
                nisa.tensor_scalar_reduce(
                    dst=pack["rest"][0:TILE, t, head, begin:end],
                    data=_region(block, column * pieces + part, 0, end - begin),
                    op0=nl.divide,
                    operand0=ledger["totals"][0:TILE, slot : slot + 1],
                    reduce_op=nl.add,
                    reduce_res=probe,
                )
            elif block["visited"][t]:
                nisa.tensor_scalar_reduce(
                    dst=target,
                    data=_region(block, column * pieces + part, 0, end - begin),
                    op0=nl.multiply,
                    operand0=factors[0:TILE, h, t : t + 1],
                    reduce_op=nl.add,
                    reduce_res=probe,
                )
            else:
                if pack["rest"] != None:  # noqa: E711
                    target = pack["rest"][0:TILE, t, head, begin:end]
                nisa.memset(dst=target, value=0.0, engine=nisa.engine.vector)
                nisa.memset(dst=probe, value=0.0, engine=nisa.engine.vector)


def _sums(env, block, segment, ledger):
    """Copy the row sums: bank by bank where that is possible; 0 for query tiles without keys."""
    heads, tiles, pieces, width = block["heads"], block["tiles"], env["pieces"], env["v"].shape[3]
    place = width - (pieces - 1) * env["piece"]
    together = heads == 1 and pieces == 1
    for t in range(tiles):
        together = together and block["visited"][t]
    if together:
        for bank in range(len(block["accumulators"])):
            tile = block["accumulators"][bank]
            count, slot = tile.shape[1], _slot(block, segment, bank * block["per_bank"], 0)
            target = ledger["sums"][0:TILE, slot : slot + count]
            nisa.tensor_copy(dst=target, src=tile[0:TILE, 0:count, place], engine=nisa.engine.vector)
        return
    for column in range(tiles * heads):
        slot = _slot(block, segment, column // heads, column % heads)
        target = ledger["sums"][0:TILE, slot : slot + 1]
        if block["visited"][column // heads]:
            source = _region(block, column * pieces + pieces - 1, place, place + 1)
            nisa.tensor_copy(dst=target, src=source, engine=nisa.engine.vector)
        else:
            nisa.memset(dst=target, value=0.0, engine=nisa.engine.vector)


def _slot(block, segment, t, h):
    """The slot of query tile `t` of the block's head `h`."""
    return segment["slot"] + (block["g"] + h) * segment["tiles"] + block["tile"] - segment["begin"] + t


def _region(block, number, begin, end):
    """Columns of one accumulator."""
    bank = block["accumulators"][number // block["per_bank"]]
    return bank[0:TILE, number % block["per_bank"], begin:end]


def _write_pack(env, pack):
    """The pack's rows of `out` and `out_rest`; the latter's tile holds whole rows until then."""
    rows, rest = pack["rows"], pack["rest"]
    if rest != None:  # noqa: E711
        nisa.tensor_copy(dst=rows, src=rest, engine=nisa.engine.gpsimd)
        nisa.tensor_tensor(dst=rest, data1=rest, data2=rows, op=nl.subtract, engine=nisa.engine.gpsimd)
        _write_rows(env["out_rest"], pack, rest)
    _write_rows(env["out"], pack, rows)
    pack["rows"] = None
    pack["rest"] = None


def _write_rows(out, pack, tile):
    """Whole query tiles with one transfer, a partial one with another."""
    seqlen_q, num_heads_q, width = out.shape[1], out.shape[2], out.shape[3]
    heads, begin = pack["packed"] * pack["heads"], pack["tile"] * TILE
    rows = min(pack["tiles"] * TILE, seqlen_q - begin)
    full, rest = rows // TILE, rows % TILE
    row = num_heads_q * width
    offset = (pack["batch"] * seqlen_q + begin) * row + pack["head"] * width
    if full > 0:
        target = out.ap(pattern=[[row, TILE], [TILE * row, full], [1, heads * width]], offset=offset)
        nisa.dma_copy(dst=target, src=tile[0:TILE, 0:full, 0:heads, 0:width])
    if rest > 0:
        target = out.ap(pattern=[[row, rest], [1, heads * width]], offset=offset + full * TILE * row)
        nisa.dma_copy(dst=target, src=tile[0:rest, full, 0:heads, 0:width])
