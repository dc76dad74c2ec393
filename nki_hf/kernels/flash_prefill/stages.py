"""The five stages of a step of `flash_prefill`, one score block of a query tile: scores, shift, exp, turn, output."""

from nki_hf.kernels.flash_prefill.finish import finish_row
from nki_hf.kernels.flash_prefill.loads import chunk_of
from nki_hf.kernels.hidden import select, select_between
from nki_hf.lang import nisa, nl

TILE = 128
FP32_MAX = 3.4028235e38
FP32_MIN = -3.4028235e38


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
    bias = env["bias"]
    if bias != None:  # noqa: E711
        shape = bias.shape
        batch, head = min(block["batch"], shape[0] - 1), min(block["head"] + step["g"], shape[1] - 1)
        stride, row = shape[3], step["row"]
        if shape[2] == 1:
            stride, row = 0, 0
        offset = ((batch * shape[1] + head) * shape[2] + row) * shape[3] + step["key"]
        tile = nl.ndarray((rows, width), dtype=bias.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=bias.ap(pattern=[[stride, rows], [1, width]], offset=offset))
        work["bias"] = tile
    return work


def shift_stage(env, step, work, block):
    """Stage 2: the mask, and what the exponentials are relative to: shift = -slope * running maximum."""
    rows, slot, slope = step["rows"], step["slot"], env["slope"]
    if step["width"] == 0:
        return
    scores, top = _masked(env, step, work, block)
    work["scores"] = scores
    # Clamped, so that a row without visible keys so far keeps it finite.
    shift = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    shifts = block["shift"]
    before = shifts[slot]
    if step["first"]:
        nisa.tensor_scalar(dst=shift, data=top, op0=nl.multiply, operand0=-slope, op1=nl.minimum, operand1=FP32_MAX)
    else:
        nisa.scalar_tensor_tensor(dst=shift, data=top, op0=nl.multiply, operand0=-slope, op1=nl.minimum, operand1=before)
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
    rows, width, scores, bias = step["rows"], step["width"], work["scores"], work["bias"]
    top = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    factor = env["scale"]
    if env["softcap"] != None:  # noqa: E711
        capped = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=capped, op=nl.tanh, data=scores, scale=env["scale"] / env["softcap"])
        scores, factor = capped, env["softcap"]
    elif env["scaled"] and not env["additive"]:
        scaled = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=scaled, op=nl.copy, data=scores, scale=env["scale"])
        scores = scaled
    predicate = bias
    if env["additive"]:
        biased = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(dst=biased, data=scores, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=bias)
        scores = biased
        # Hidden keys are selected away as well, so that a NaN under a hidden key stays there. A NaN in the bias hides nothing.
        predicate = nl.ndarray((rows, width), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=predicate, data=bias, op0=nl.not_equal, operand0=FP32_MIN)
    if bias != None:  # noqa: E711
        scores = select(predicate, scores, top)
    if step["edge"]:
        bounds = block["bounds"]
        lower, upper = bounds[step["t"]]
        scores = select_between(scores, step["key"], lower, upper, top, env["has_ranges"])
    elif bias == None:  # noqa: E711
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=scores, axis=(1,))
    return scores, top


def turn_stage(step, work):
    """Stage 4: the probabilities with keys on partitions, [TILE, key tiles, rows made even]."""
    width, probabilities = step["width"], work["probabilities"]
    if width == 0:
        return
    rows, tiles = probabilities.shape[0], (width + TILE - 1) // TILE
    bank = nl.ndarray((TILE, tiles, rows), dtype=probabilities.dtype, buffer=nl.psum)
    for c in range(tiles):
        keys = min(TILE, width - c * TILE)
        source = probabilities[0:rows, c * TILE : c * TILE + keys]
        nisa.nc_transpose(dst=bank[0:keys, c, 0:rows], data=source, engine=nisa.engine.tensor)
    turned = nl.ndarray((TILE, tiles, rows), dtype=probabilities.dtype, buffer=nl.sbuf)
    full, rest = width // TILE, width % TILE
    if full > 0:
        nisa.activation(dst=turned[0:TILE, 0:full, 0:rows], op=nl.copy, data=bank[0:TILE, 0:full, 0:rows])
    if rest > 0:
        nisa.activation(dst=turned[0:rest, full, 0:rows], op=nl.copy, data=bank[0:rest, full, 0:rows])
    work["turned"] = turned
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
