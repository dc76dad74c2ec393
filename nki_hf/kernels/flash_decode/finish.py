"""The end of a row block: the two cores' halves are merged, the sink joins, rows are normalised and written; lse at the end."""

from nki_hf.kernels.flash_decode.loads import LOWEST
from nki_hf.lang import nisa, nl

TILE = 128
FP32_MIN = -3.4028235e38
EMPTY = 0.999 * LOWEST
"""Maxima below it are those of no keys: a product with the scale may round LOWEST."""
LEAST = 1.0e-30
"""What divides a row without keys."""
NO_KEYS = -3.3e38
"""Added to the maximum of a row without keys before the sink joins: below `NO_SINK`, and finite with what it is added to."""
NO_SINK = -3.0e38
"""Sinks are raised to this, so that -inf and what is near it has a weight of 1 in a row without keys, as any sink."""


def finish_block(env, block):
    """Normalise the rows of a block; sums go to the ledger, one column per block, where the maxima are (`stages.maximum`)."""
    rows, width, place = block["rows"], env["v"].shape[3], block["place"]
    total, top = block["accumulator"], block["maximum"]
    if block["shared"]:
        merged = _merged(env, block, total, top)
        total = merged[0]
        top = merged[1]
        nisa.tensor_scalar(dst=env["maxima"][0:rows, place : place + 1], data=top, op0=nl.multiply, operand0=env["slope"])
    sums = env["sums"][0:rows, place : place + 1]
    if block["sum"] == None:  # noqa: E711
        note_sums(env, block, total[0:rows, width : width + 1])
    if env["sink"] != None:  # noqa: E711
        total = _joined(env, block, total, top)
    target = env["normal"][0:rows, place, 0:width]
    nisa.tensor_scalar(dst=target, data=total[0:rows, 0:width], op0=nl.divide, operand0=sums, engine=nisa.engine.vector)
    if env["rest"] != None:  # noqa: E711
        rest = env["rest"][0:rows, place, 0:width]
        nisa.scalar_tensor_tensor(
            dst=rest, data=total[0:rows, 0:width], op0=nl.divide, operand0=sums, op1=nl.subtract, operand1=target
        )


def note_sums(env, block, total):
    """The sums of a block's rows go to the ledger, as what their outputs are divided by."""
    rows, place = block["rows"], block["place"]
    # Rows without keys have a sum of exactly 0, others of about 1 or more.
    nisa.tensor_scalar(dst=env["sums"][0:rows, place : place + 1], data=total, op0=nl.maximum, operand0=LEAST)


def write_rows(env, stop_at):
    """Write the rows of all finished blocks before number `stop_at`: those of a sequence that start at the same row of their
    unit go with one transfer.

    Not before all loads are on their way, since a transfer that waits for its rows would hold up the loads behind it.
    """
    blocks, width, heads_kv = env["blocks"], env["v"].shape[3], env["k"].shape[1]
    seqlen_q, num_heads_q, group_size = env["q"].shape[2], env["q"].shape[1], env["group_size"]
    per_unit = (group_size + env["heads"] - 1) // env["heads"]
    n = env["written"]
    while n < stop_at:
        first = blocks[n]
        stop = n + 1
        if per_unit == 1:
            while stop < stop_at:
                item = blocks[stop]
                follows = item["unit"] == first["unit"] + stop - n and item["batch"] == first["batch"]
                if not follows or item["shared"] != first["shared"]:  # the second core writes no shared rows
                    break
                stop = stop + 1
        if not (first["shared"] and env["program"] == 1):
            rows = first["rows"]
            head = first["unit"] % heads_kv * group_size + first["row"] // seqlen_q
            offset = (first["batch"] * seqlen_q * num_heads_q + head) * width
            pattern = [
                [width, rows // seqlen_q],
                [num_heads_q * width, seqlen_q],
                [group_size * width, stop - n],
                [1, width],
            ]
            nisa.dma_copy(dst=env["out"].ap(pattern=pattern, offset=offset), src=env["normal"][0:rows, n:stop, 0:width])
            if env["rest"] != None:  # noqa: E711
                nisa.dma_copy(dst=env["out_rest"].ap(pattern=pattern, offset=offset), src=env["rest"][0:rows, n:stop, 0:width])
        n = stop
    env["written"] = n


def _joined(env, block, total, top):
    """The sink joins: the maximum becomes that of both, and the sum gets the sink's share.

    One of the two weights is 1, whatever the sink: without that a row without keys would be 0 / 0.
    """
    rows, seqlen_q, place, width = block["rows"], env["q"].shape[2], block["place"], env["v"].shape[3]
    head = block["unit"] % env["k"].shape[1] * env["group_size"] + block["row"] // seqlen_q
    sink = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    source = env["sink"].ap(pattern=[[1, rows // seqlen_q], [0, seqlen_q], [1, 1]], offset=head)
    nisa.dma_copy(dst=sink, src=source)
    before, sums = env["maxima"][0:rows, place : place + 1], env["sums"][0:rows, place : place + 1]
    empty = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=empty, data=top, op0=nl.less, operand0=EMPTY, op1=nl.multiply, operand1=NO_KEYS)
    nisa.tensor_tensor(dst=before, data1=before, data2=empty, op=nl.add, engine=nisa.engine.vector)
    after = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(dst=after, data=sink, op0=nl.maximum, operand0=NO_SINK, op1=nl.maximum, operand1=before)
    weights = nl.ndarray((rows, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=weights[0:rows, 0:1], data1=before, data2=after, op=nl.subtract, engine=nisa.engine.vector)
    nisa.scalar_tensor_tensor(
        dst=weights[0:rows, 1:2], data=sink, op0=nl.maximum, operand0=NO_SINK, op1=nl.subtract, operand1=after
    )
    nisa.activation(dst=weights, op=nl.exp, data=weights)
    joined = nl.ndarray((rows, width + 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=joined, data=total, op0=nl.multiply, operand0=weights[0:rows, 0:1])
    nisa.tensor_tensor(
        dst=sums, data1=joined[0:rows, width : width + 1], data2=weights[0:rows, 1:2], op=nl.add, engine=nisa.engine.vector
    )
    nisa.tensor_copy(dst=before, src=after, engine=nisa.engine.vector)
    return joined


def _merged(env, block, own, top):
    """Both cores' accumulators relative to the larger maximum, added in the order of the cores."""
    rows, width, program = block["rows"], env["v"].shape[3], env["program"]
    mine = nl.ndarray((rows, width + 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=mine[0:rows, 0 : width + 1], src=own, engine=nisa.engine.vector)
    nisa.tensor_copy(dst=mine[0:rows, width + 1 : width + 2], src=top, engine=nisa.engine.vector)
    other = nl.ndarray((rows, width + 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.sendrecv(src=mine, dst=other, send_to_rank=1 - program, recv_from_rank=1 - program, pipe_id=0)
    first, second = mine, other
    if program == 1:
        first, second = other, mine
    after = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    weights = nl.ndarray((rows, 2), dtype=nl.float32, buffer=nl.sbuf)
    edge = width + 1
    nisa.tensor_tensor(
        dst=after,
        data1=first[0:rows, edge : edge + 1],
        data2=second[0:rows, edge : edge + 1],
        op=nl.maximum,
        engine=nisa.engine.vector,
    )
    for n in range(2):
        given = first
        if n == 1:
            given = second
        nisa.tensor_tensor(
            dst=weights[0:rows, n : n + 1],
            data1=given[0:rows, edge : edge + 1],
            data2=after,
            op=nl.subtract,
            engine=nisa.engine.vector,
        )
    nisa.activation(dst=weights, op=nl.exp, data=weights, scale=env["slope"])
    scaled = nl.ndarray((rows, edge), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=scaled, data=second[0:rows, 0:edge], op0=nl.multiply, operand0=weights[0:rows, 1:2])
    total = nl.ndarray((rows, edge), dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=total, data=first[0:rows, 0:edge], op0=nl.multiply, operand0=weights[0:rows, 0:1], op1=nl.add, operand1=scaled
    )
    return total, after


def lse_offsets(env):
    """What the logarithms of the sums are added to: the maxima, or -inf for rows without keys. Needs no sums."""
    tops = nl.ndarray((TILE, len(env["blocks"])), dtype=nl.float32, buffer=nl.sbuf)
    lowest = EMPTY * env["slope"]
    if env["sink"] != None:  # noqa: E711
        lowest = 5.0 / 6.0 * NO_SINK
    # Twice the lowest value overflows to -inf.
    nisa.tensor_scalar(dst=tops, data=env["maxima"], op0=nl.less, operand0=lowest, op1=nl.multiply, operand1=FP32_MIN)
    nisa.scalar_tensor_tensor(dst=tops, data=tops, op0=nl.multiply, operand0=2.0, op1=nl.add, operand1=env["maxima"])
    return tops


def write_statistics(env, tops):
    """The lse of all rows, maximum + log(sum); rows without keys get -inf, or the sink (-inf if it is below 5/6 of `NO_SINK`).
    Where gradients are wanted, maxima and sums as well.

    Written where they lie, rows on partitions: few enough for their 4 bytes each to cost less than a transpose.
    """
    columns = len(env["blocks"])
    lines = nl.ndarray((TILE, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=lines, op=nl.log, data=env["sums"])
    nisa.tensor_tensor(dst=lines, data1=lines, data2=tops, op=nl.add, engine=nisa.engine.vector)
    _write_columns(env, env["lse"], lines)
    if env["row_shift"] != None:  # noqa: E711
        _write_columns(env, env["row_shift"], tops)
        _write_columns(env, env["row_sum"], env["sums"])


def _write_columns(env, array, lines):
    """Write a number per row, [rows, blocks], into `[batch, num_heads_q, seqlen_q]`."""
    blocks, per_unit, columns = env["blocks"], env["rows"], len(env["blocks"])
    n = 0
    while n < columns:
        first = blocks[n]
        size, stop = first["rows"], n + 1
        at = first["unit"] * per_unit + first["row"]
        while stop < columns:  # blocks of equal size that follow each other in HBM
            item = blocks[stop]
            same = item["rows"] == size and item["shared"] == first["shared"]
            if not same or item["unit"] * per_unit + item["row"] != at + (stop - n) * size:
                break
            stop = stop + 1
        if not (first["shared"] and env["program"] == 1):
            target = array.ap(pattern=[[1, size], [size, stop - n]], offset=at)
            nisa.dma_copy(dst=target, src=lines[0:size, n:stop], engine=env["rings"][1])
        n = stop
