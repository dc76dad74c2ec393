"""The five stages of a step of `flash_prefill`, one score block of a query tile: scores, shift, exp, turn, output."""

from nki_hf.kernels.block_scores import load_bias, next_shift, scale_or_cap, with_bias
from nki_hf.kernels.flash_prefill.finish import finish_row
from nki_hf.kernels.flash_prefill.loads import chunk_of
from nki_hf.kernels.hidden import select_between
from nki_hf.kernels.turned import copy_turned, turn
from nki_hf.lang import nisa, nl

TILE = 128


def score_stage(env, step, block, section):
    """Stage 1: q.T @ k into one PSUM bank, and the load of the bias that goes with it."""
    work = {
        "scores": None,
        "bias": None,
        "before": None,
        "shift": None,
        "correction": None,
        "total": None,
        "probabilities": None,
        "turned": None,
    }
    rows, width = step["rows"], step["width"]
    if width == 0:
        return work
    scores = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.psum)
    number, place = chunk_of(section, step["key"])
    q_pieces = block["q"]
    k_pieces = section["k"][number]
    row = step["t"] * TILE
    for d in range(len(k_pieces)):
        queries, keys = q_pieces[d], k_pieces[d]
        depth = keys.shape[0]
        nisa.nc_matmul(
            dst=scores,
            stationary=queries[0:depth, step["g"], row : row + rows],
            moving=keys[0:depth, place : place + width],
        )
    work["scores"] = scores
    if env["bias"] != None:  # noqa: E711  (NKI's front end knows no `is`)
        place = (block["batch"], block["head"] + step["g"], step["row"], step["key"])
        work["bias"] = load_bias(env["bias"], place, rows, width)
    return work


def shift_stage(env, step, work, block):
    """Stage 2: the mask, and what the exponentials are relative to: shift = -slope * running maximum."""
    slot, shifts, before = step["slot"], block["shift"], None
    if step["width"] == 0:
        return
    scores, top = _masked(env, step, work, block)
    work["scores"] = scores
    if not step["first"]:
        before = shifts[slot]
    shift = next_shift(top, env["slope"], before)
    shifts[slot] = shift
    work["before"] = before
    work["shift"] = shift


def exp_stage(env, step, work):
    """Stage 3: probabilities with their row sum, and what corrects the earlier steps of these rows."""
    rows, width, shift, v = step["rows"], step["width"], work["shift"], env["v"]
    if width == 0:
        return
    if not step["first"]:
        correction = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=correction, op=nl.exp, data=work["before"], bias=shift, scale=-1.0)
        work["correction"] = correction
    total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    # An even number of rows, because their transposes are written to PSUM in whole words of 4 bytes.
    probabilities = nl.ndarray((rows + rows % 2, width), dtype=v.dtype, buffer=nl.sbuf)
    if rows % 2 == 1:
        nisa.memset(dst=probabilities, value=0.0, engine=nisa.engine.gpsimd)
    nisa.activation(
        dst=probabilities[0:rows, 0:width],
        op=nl.exp,
        data=work["scores"],
        bias=shift,
        scale=env["slope"],
        reduce_op=nl.add,
        reduce_res=total,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    work["probabilities"] = probabilities
    work["total"] = total
    work["scores"] = None
    work["before"] = None
    work["shift"] = None


def _masked(env, step, work, block):
    """The scores that the softmax sees (times `slope`) and their row maximum [rows, 1]."""
    bias = work["bias"]
    top = nl.ndarray((step["rows"], 1), dtype=nl.float32, buffer=nl.sbuf)
    scores, factor = scale_or_cap(env, work["scores"])
    if bias != None:  # noqa: E711
        scores = with_bias(env, scores, factor, bias, top)
    if step["edge"]:
        bounds = block["bounds"]
        lower, upper = bounds[step["t"]]
        scores = select_between(scores, step["key"], lower, upper, top, env["has_ranges"])
    elif bias == None:  # noqa: E711
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=scores, axis=(1,))
    return scores, top


def turn_stage(step, work):
    """Stage 4: the probabilities with keys on partitions, [TILE, key tiles, rows made even]."""
    width = step["width"]
    if width == 0:
        return
    work["turned"] = copy_turned(turn(work["probabilities"], width), width)
    work["probabilities"] = None


def output_stage(env, step, work, block, section):
    """Stage 5: probabilities @ v, added to the corrected accumulator; the last step of a row also writes it out."""
    rows, width, slot, v = step["rows"], step["width"], step["slot"], env["v"]
    width_v = v.shape[3]
    result = None
    if width > 0:
        result = nl.ndarray((rows, width_v), dtype=nl.float32, buffer=nl.psum)
        number, place = chunk_of(section, step["key"])
        values = section["v"][number]
        turned = work["turned"]
        for c in range((width + TILE - 1) // TILE):
            keys = min(TILE, width - c * TILE)
            nisa.nc_matmul(
                dst=result,
                stationary=turned[0:keys, c, 0:rows],
                moving=values[0:keys, place // TILE + c, 0:width_v],
            )
        totals, accumulators = block["total"], block["accumulator"]
        if step["first"]:
            totals[slot] = work["total"]
        else:
            running = totals[slot]
            nisa.scalar_tensor_tensor(
                dst=running, data=running, op0=nl.multiply, operand0=work["correction"], op1=nl.add, operand1=work["total"]
            )
        if step["first"] and not step["last"]:
            accumulator = nl.ndarray((rows, width_v), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=accumulator, src=result, engine=nisa.engine.vector)
            accumulators[slot] = accumulator
        elif not step["first"]:
            running = accumulators[slot]
            nisa.scalar_tensor_tensor(
                dst=running, data=running, op0=nl.multiply, operand0=work["correction"], op1=nl.add, operand1=result
            )
            result = running
    if step["last"]:
        finish_row(env, step, block, result)
