"""Scores and probabilities of one step of `flash_backward`, by the arithmetic of the forward kernel, and the row statistics."""

from nki_hf.kernels.block_scores import load_bias, next_shift, scale_or_cap, with_bias
from nki_hf.kernels.flash_backward.tiles import add_share
from nki_hf.kernels.hidden import select_between
from nki_hf.lang import nisa, nl

TILE = 128
FP32_MAX = 3.4028235e38


def products(env, step, tile, run, block):
    """Scores = q k^T and dprobs = dout v^T, both [rows, width] in PSUM, and the load of the bias that goes with them."""
    work = {
        "scores": None,
        "dprobs": None,
        "bias": None,
        "slope": None,
        "probs": None,
        "dscores": None,
        "turned": None,
    }
    rows, width = step_shape(step, tile)
    work["scores"] = _product(run["q_turned"], block["k_turned"], tile["slot"] * TILE, rows, step["place"], width)
    work["dprobs"] = _product(run["dout_turned"], block["v_turned"], tile["slot"] * TILE, rows, step["place"], width)
    if env["bias"] != None:  # noqa: E711  (NKI's front end knows no `is`)
        place = (tile["batch"], tile["head"], tile["row"], step["key"])
        work["bias"] = load_bias(env["bias"], place, rows, width)
    return work


def step_shape(step, tile):
    """Rows and keys of a step."""
    return tile["rows"], step["width"]


def _product(left, right, row, rows, place, width):
    result = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.psum)
    for d in range(len(left)):
        queries, keys = left[d], right[d]
        depth = keys.shape[0]
        nisa.nc_matmul(dst=result, stationary=queries[0:depth, row : row + rows], moving=keys[0:depth, place : place + width])
    return result


def mask_scores(env, step, tile, work):
    """Turn a step's scores into those that the softmax sees (times `slope`), hidden ones at float32's lowest value; with a cap
    also find 1 - tanh^2. Returns their row maximum [rows, 1], which holds something if there is a mask or the step `gathers`.
    """
    rows, width = step_shape(step, tile)
    bias = work["bias"]
    scores, factor = scale_or_cap(env, work["scores"])
    if env["softcap"] != None and not step["statistics"]:  # noqa: E711
        slope = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=slope, data1=scores, data2=scores, op=nl.multiply)
        nisa.tensor_scalar(dst=slope, data=slope, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=1.0)
        work["slope"] = slope
    top = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    if bias != None:  # noqa: E711
        scores = with_bias(env, scores, factor, bias, top)
    if step["edge"]:
        lower, upper = tile["lower"], tile["upper"]
        scores = select_between(scores, step["key"], lower, upper, top, env["has_ranges"])
    elif bias == None and step["gathers"]:  # noqa: E711
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=scores, axis=(1,))
    work["scores"] = scores
    return top


def probabilities(env, step, tile, work, dtype):
    """P [rows, width]: exp of scores against the row's shift, times the row's factor, and at most 1: rounded twice, a score may
    lie above its row's lse, and no probability does. Twice: for dS, and in `dtype` for dv.

    Where q, dout and dq of the row have what is left of its factor, both are P but for that: the digits of exp, which a factor
    would round once more, alike in all rows that have it alike. Where the kernel finds it itself, that of dS is float32.
    """
    rows, width = step_shape(step, tile)
    scores = work["scores"]
    probs = nl.ndarray((rows, width), dtype=dtype, buffer=nl.sbuf)
    if env["recompute"]:
        exact = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=exact, op=nl.exp, data=scores, bias=tile["shift"], scale=env["slope"])
        nisa.tensor_scalar(dst=exact, data=exact, op0=nl.multiply, operand0=tile["factor"])
        if dtype == nl.float32:
            return exact, exact
        nisa.tensor_copy(dst=probs, src=exact, engine=nisa.engine.gpsimd)
        return exact, probs
    nisa.activation(dst=probs, op=nl.exp, data=scores, bias=tile["shift"], scale=env["slope"])
    if tile["factor"] == None:  # noqa: E711
        nisa.tensor_scalar(dst=probs, data=probs, op0=nl.minimum, operand0=1.0)
    else:
        nisa.tensor_scalar(
            dst=probs, data=probs, op0=nl.multiply, operand0=tile["power"], op1=nl.minimum, operand1=tile["most"]
        )
    return probs, probs


def score_gradients(env, tile, work, probs, dst):
    """`dst` = (dprobs - delta) * P. In float32 dlse joins after the difference, which is exactly 0 in a row with one key that
    matters: what is left is dlse, and from a delta far above it dlse would have been taken with that delta's rounding.
    """
    dprobs, q = work["dprobs"], env["q"]
    dtype = q.dtype
    if tile["dlse"] != None and tile["centre"] != None and dtype == nl.float32:  # noqa: E711
        nisa.tensor_scalar(dst=dst, data=dprobs, op0=nl.subtract, operand0=tile["centre"], op1=nl.add, operand1=tile["dlse"])
        nisa.tensor_tensor(dst=dst, data1=dst, data2=probs, op=nl.multiply)
    else:
        nisa.scalar_tensor_tensor(
            dst=dst, data=dprobs, op0=nl.subtract, operand0=tile["delta"], op1=nl.multiply, operand1=probs
        )


def gather_statistics(env, step, tile, work):
    """Online softmax over a step's keys: minus the maximum, the row sum, and the row sum of weights * dP, all [rows, 1]."""
    rows, width = step_shape(step, tile)
    top = mask_scores(env, step, tile, work)
    scores, before = work["scores"], tile["shift"]
    slope = env["slope"]
    shift = next_shift(top, slope, before)
    weights = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=weights,
        op=nl.exp,
        data=scores,
        bias=shift,
        scale=slope,
        reduce_op=nl.add,
        reduce_res=total,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    product = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=product, data1=weights, data2=work["dprobs"], op=nl.multiply)
    weighted = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=weighted, op=nl.add, data=product, axis=(1,))
    if before != None:  # noqa: E711
        keep = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=keep, op=nl.exp, data=before, bias=shift, scale=-1.0)
        nisa.scalar_tensor_tensor(dst=total, data=tile["total"], op0=nl.multiply, operand0=keep, op1=nl.add, operand1=total)
        nisa.scalar_tensor_tensor(
            dst=weighted, data=tile["weighted"], op0=nl.multiply, operand0=keep, op1=nl.add, operand1=weighted
        )
    tile["shift"] = shift
    tile["total"] = total
    tile["weighted"] = weighted


def end_statistics(env, tile):
    """1 / row sum, the sink included, and delta = rowsum(P * dP) - dlse; rows without keys have the factor 0."""
    rows = tile["rows"]
    if tile["shift"] == None:  # noqa: E711
        _no_statistics(tile)
    shift, total, factor = tile["shift"], tile["total"], nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    share = None
    if env["sinks"] == None:  # noqa: E711
        slope = env["slope"]
        if slope > 1.0:
            slope = 1.0
        # Shifts of rows whose every score is hidden lie above this; the largest weight of a row is 1, so its sum is, too.
        nisa.tensor_scalar(dst=total, data=total, op0=nl.maximum, operand0=0.5)
        nisa.reciprocal(dst=factor, data=total)
        nisa.scalar_tensor_tensor(
            dst=factor, data=shift, op0=nl.less, operand0=0.9 * FP32_MAX * slope, op1=nl.multiply, operand1=factor
        )
    else:
        sinks, head = env["sinks"], tile["head"]
        sink = sinks[0:rows, head : head + 1]
        joined = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(dst=joined, data=sink, op0=nl.multiply, operand0=-1.0, op1=nl.minimum, operand1=shift)
        keep = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=keep, op=nl.exp, data=shift, bias=joined, scale=-1.0)
        share = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=share, op=nl.exp, data=sink, bias=joined, scale=1.0)
        nisa.scalar_tensor_tensor(dst=total, data=total, op0=nl.multiply, operand0=keep, op1=nl.add, operand1=share)
        nisa.reciprocal(dst=factor, data=total)
        nisa.tensor_tensor(dst=share, data1=share, data2=factor, op=nl.multiply)
        nisa.tensor_tensor(dst=tile["weighted"], data1=tile["weighted"], data2=keep, op=nl.multiply)
        tile["shift"] = joined
    delta = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=delta, data1=tile["weighted"], data2=factor, op=nl.multiply)
    tile["centre"] = delta
    if tile["dlse"] != None:  # noqa: E711
        delta = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=delta, data1=tile["centre"], data2=tile["dlse"], op=nl.subtract)
    tile["factor"] = factor
    tile["delta"] = delta
    tile["total"] = None
    tile["weighted"] = None
    if share != None:  # noqa: E711
        add_share(env, tile, share)


def _no_statistics(tile):
    """Those of rows that visit no key."""
    rows = tile["rows"]
    shift = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=shift, value=FP32_MAX)
    total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
    weighted = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=weighted, value=0.0)
    tile["shift"] = shift
    tile["total"] = total
    tile["weighted"] = weighted
