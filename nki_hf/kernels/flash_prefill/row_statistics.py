"""Row statistics of a block of `flash_prefill`, written when its last row is done: lse; row_shift and row_sum for gradients."""

from nki_hf.lang import nisa, nl

TILE = 128
FP32_MAX = 3.4028235e38
FP32_MIN = -3.4028235e38


def empty_above(env):
    """Shifts of rows whose every score is hidden lie above this; a real score cannot get there."""
    slope = env["slope"]
    if slope > 1.0:
        slope = 1.0
    return 0.9 * FP32_MAX * slope


def write_statistics(env, block):
    """Write lse = log(total) - shift of all slots, turned so that it is written in rows; empty rows become -inf. Where
    gradients are wanted, the row maxima and the row sums as well.
    """
    lse, slots = env["lse"], block["heads"] * block["tiles"]
    columns = nl.ndarray((TILE, slots), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=columns, op=nl.log, data=block["totals"])
    nisa.tensor_tensor(dst=columns, data1=columns, data2=block["shifts"], op=nl.subtract)
    bank = nl.ndarray((slots, TILE), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=bank, data=columns, engine=nisa.engine.tensor)
    lowest = nl.ndarray((slots, TILE), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=lowest, data=bank, op0=nl.less, operand0=-empty_above(env), op1=nl.multiply, operand1=FP32_MIN)
    lines = nl.ndarray((slots, TILE), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=lines, data1=bank, data2=lowest, op=nl.add)
    nisa.tensor_tensor(dst=lines, data1=lines, data2=lowest, op=nl.add)  # twice the lowest value overflows to -inf
    _write_lines(block, lse, lines)
    if env["row_shift"] != None:  # noqa: E711
        _write_shift_and_sum(env, block, lowest)
    block["q"] = None
    block["shifts"] = None
    block["totals"] = None
    block["bounds"] = None


def _write_shift_and_sum(env, block, lowest):
    """Write the row maxima, -inf where `lowest` is, and the row sums."""
    slots = block["heads"] * block["tiles"]
    bank = nl.ndarray((slots, TILE), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=bank, data=block["shifts"], engine=nisa.engine.tensor)
    tops = nl.ndarray((slots, TILE), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=tops, data1=lowest, data2=bank, op=nl.subtract)
    nisa.tensor_tensor(dst=tops, data1=tops, data2=lowest, op=nl.add)
    _write_lines(block, env["row_shift"], tops)
    bank = nl.ndarray((slots, TILE), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=bank, data=block["totals"], engine=nisa.engine.tensor)
    sums = nl.ndarray((slots, TILE), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=sums, src=bank, engine=nisa.engine.vector)
    _write_lines(block, env["row_sum"], sums)


def _write_lines(block, array, lines):
    """Write a number per row of the block, `[heads * tiles, TILE]`, into `[batch, num_heads_q, seqlen_q]`."""
    heads, seqlen_q = array.shape[1], array.shape[2]
    begin = block["tile"] * TILE
    rows = min(block["tiles"] * TILE, seqlen_q - begin)
    full, rest = rows // TILE, rows % TILE
    for g in range(block["heads"]):
        line = g * block["tiles"]
        offset = (block["batch"] * heads + block["head"] + g) * seqlen_q + begin
        if full > 0:
            target = array.ap(pattern=[[TILE, full], [1, TILE]], offset=offset)
            nisa.dma_copy(dst=target, src=lines[line : line + full, 0:TILE])
        if rest > 0:
            target = array.ap(pattern=[[rest, 1], [1, rest]], offset=offset + full * TILE)
            nisa.dma_copy(dst=target, src=lines[line + full : line + full + 1, 0:rest])
