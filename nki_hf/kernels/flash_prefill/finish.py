"""What ends a row of `flash_prefill`: the sink joins its sum, its output is normalised and written."""

from nki_hf.kernels.flash_prefill.row_statistics import empty_above
from nki_hf.lang import nisa, nl

FP32_MAX = 3.4028235e38


def finish_row(env, step, block, result):
    """Normalise a row tile of one head into the block's output tile; its last head writes that to HBM."""
    rows, slot, t, g, out = step["rows"], step["slot"], step["t"], step["g"], env["out"]
    width_v = out.shape[3]
    outputs, rests = block["out"], block["rest"]
    if outputs[t] == None:  # noqa: E711
        outputs[t] = nl.ndarray((rows, block["heads"], width_v), dtype=out.dtype, buffer=nl.sbuf)
        if env["out_rest"] != None:  # noqa: E711
            rests[t] = nl.ndarray((rows, block["heads"], width_v), dtype=nl.float32, buffer=nl.sbuf)
    tile, rest, final_shifts, final_totals = outputs[t], rests[t], block["shifts"], block["totals"]
    place = tile[0:rows, g, 0:width_v]
    if rest != None:  # noqa: E711
        place = rest[0:rows, g, 0:width_v]
    final_shift, final_total = final_shifts[0:rows, slot : slot + 1], final_totals[0:rows, slot : slot + 1]
    head, negative_sink = block["head"] + g, env["negative_sink"]
    if result == None:  # noqa: E711
        nisa.memset(dst=place, value=0.0)
        nisa.memset(dst=final_total, value=1.0)
        if negative_sink == None:  # noqa: E711
            nisa.memset(dst=final_shift, value=FP32_MAX)
        else:
            nisa.tensor_copy(dst=final_shift, src=negative_sink[0:rows, head : head + 1])
    else:
        shifts, totals, accumulators = block["shift"], block["total"], block["accumulator"]
        shift, total = shifts[slot], totals[slot]
        factor = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        if negative_sink == None:  # noqa: E711
            # The largest term of a row is 1, so only a row without visible keys can sum to less.
            nisa.tensor_scalar(dst=final_total, data=total, op0=nl.maximum, operand0=0.5)
            nisa.tensor_copy(dst=final_shift, src=shift, engine=nisa.engine.vector)
            nisa.reciprocal(dst=factor, data=final_total)
            nisa.scalar_tensor_tensor(
                dst=factor, data=shift, op0=nl.less, operand0=empty_above(env), op1=nl.multiply, operand1=factor
            )
        else:
            _join_sink(env, rows, head, shift, total, final_shift, final_total, factor)
        nisa.activation(dst=place, op=nl.copy, data=result, scale=factor)
        shifts[slot] = None
        totals[slot] = None
        accumulators[slot] = None
    if g == block["heads"] - 1:
        row, first, batch, target = step["row"], block["head"], block["batch"], env["out_rest"]
        if rest != None:  # noqa: E711
            nisa.tensor_copy(dst=tile, src=rest, engine=nisa.engine.gpsimd)
            nisa.tensor_tensor(dst=rest, data1=rest, data2=tile, op=nl.subtract, engine=nisa.engine.gpsimd)
            nisa.dma_copy(dst=target[batch, row : row + rows, first : first + block["heads"], 0:width_v], src=rest)
        nisa.dma_copy(dst=out[batch, row : row + rows, first : first + block["heads"], 0:width_v], src=tile)
        outputs[t] = None
        rests[t] = None


def _join_sink(env, rows, head, shift, total, final_shift, final_total, factor):
    """The sink joins the denominator: total' = total * exp(m - m') + exp(sink - m') with m' = max(m, sink), m = -shift."""
    sinks, negative_sinks = env["sink"], env["negative_sink"]
    sink, negative = sinks[0:rows, head : head + 1], negative_sinks[0:rows, head : head + 1]
    nisa.tensor_tensor(dst=final_shift, data1=shift, data2=negative, op=nl.minimum)
    keep = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=keep, op=nl.exp, data=shift, bias=final_shift, scale=-1.0)
    weight = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=weight, op=nl.exp, data=sink, bias=final_shift, scale=1.0)
    nisa.scalar_tensor_tensor(dst=final_total, data=total, op0=nl.multiply, operand0=keep, op1=nl.add, operand1=weight)
    nisa.reciprocal(dst=factor, data=final_total)
    nisa.tensor_tensor(dst=factor, data1=factor, data2=keep, op=nl.multiply)
