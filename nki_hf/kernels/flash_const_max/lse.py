"""Log-sum-exp of the rows of a ledger: shift + log(total), turned so that it is written in rows.

A backward kernel gets the shift and the total: they, not lse, say how the weights of a row were rounded.
"""

from nki_hf.lang import nisa, nl

TILE = 128
FP32_MIN = -3.4028235e38


def write_lse(env, ledger, segments):
    """Write lse of every row of the ledger's segments; rows without keys get -inf, or the sink. Where gradients are wanted,
    shift and total as well.
    """
    slots = ledger["slots"]
    columns = nl.ndarray((TILE, slots), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=columns, op=nl.log, data=ledger["totals"])
    nisa.tensor_scalar(dst=columns, data=columns, op0=nl.add, operand0=env["shift"])
    hidden = env["may_be_empty"] and env["sink"] == None  # noqa: E711
    if hidden:
        nisa.scalar_tensor_tensor(
            dst=columns, data=ledger["empty"], op0=nl.multiply, operand0=0.9 * FP32_MIN, op1=nl.add, operand1=columns
        )
    for begin in range(0, slots, TILE):
        end = min(begin + TILE, slots)
        bank = nl.ndarray((end - begin, TILE), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=bank, data=columns[0:TILE, begin:end], engine=nisa.engine.tensor)
        lines = nl.ndarray((end - begin, TILE), dtype=nl.float32, buffer=nl.sbuf)
        lowest = None
        if hidden:
            lowest = nl.ndarray((end - begin, TILE), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=lowest, data=bank, op0=nl.less, operand0=0.8 * FP32_MIN, op1=nl.multiply, operand1=FP32_MIN)
            # 1.9 times the lowest value overflows to -inf.
            nisa.tensor_tensor(dst=lines, data1=bank, data2=lowest, op=nl.add, engine=nisa.engine.vector)
        else:
            nisa.tensor_copy(dst=lines, src=bank, engine=nisa.engine.vector)
        _write_lines(env, env["lse"], ledger, segments, lines, begin, end)
        if env["row_shift"] != None:  # noqa: E711
            shifts = nl.ndarray((end - begin, TILE), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=shifts, value=env["shift"], engine=nisa.engine.gpsimd)
            if hidden:
                for _ in range(2):
                    nisa.tensor_tensor(dst=shifts, data1=shifts, data2=lowest, op=nl.add, engine=nisa.engine.vector)
            _write_lines(env, env["row_shift"], ledger, segments, shifts, begin, end)
            nisa.nc_transpose(dst=bank, data=ledger["totals"][0:TILE, begin:end], engine=nisa.engine.tensor)
            totals = nl.ndarray((end - begin, TILE), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=totals, src=bank, engine=nisa.engine.vector)
            _write_lines(env, env["row_sum"], ledger, segments, totals, begin, end)


def _write_lines(env, array, ledger, segments, lines, begin, end):
    """Slots `begin` to `end`, a query tile each: with one transfer where whole units of whole tiles follow each other."""
    seqlen_q, tiles, group_size = array.shape[2], len(env["spans"]), env["group_size"]
    first, last = segments[ledger["first"]], segments[ledger["last"]]
    if seqlen_q == tiles * TILE and first["tiles"] == tiles and last["tiles"] == tiles:
        offset = (first["unit"] * group_size * tiles + begin) * TILE
        nisa.dma_copy(dst=array.ap(pattern=[[TILE, end - begin], [1, TILE]], offset=offset), src=lines)
        return
    for s in range(ledger["first"], ledger["last"] + 1):
        segment = segments[s]
        size = segment["tiles"]
        rows = min(size * TILE, seqlen_q - segment["begin"] * TILE)
        for g in range(group_size):
            slot = segment["slot"] + g * size
            start, stop = max(begin, slot), min(end, slot + size)
            if start < stop:
                t = start - slot
                offset = (segment["unit"] * group_size + g) * seqlen_q + (segment["begin"] + t) * TILE
                full = min(stop - start, rows // TILE - t)
                place = start - begin
                if full > 0:
                    target = array.ap(pattern=[[TILE, full], [1, TILE]], offset=offset)
                    nisa.dma_copy(dst=target, src=lines[place : place + full, 0:TILE])
                if full < stop - start:
                    rest = rows % TILE
                    target = array.ap(pattern=[[rest, 1], [1, rest]], offset=offset + full * TILE)
                    nisa.dma_copy(dst=target, src=lines[place + full : place + full + 1, 0:rest])
