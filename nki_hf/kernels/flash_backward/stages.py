"""Stages of a step of `flash_backward` after its products: gradients of the scores, of keys and values, and of queries."""

from nki_hf.kernels.flash_backward.scores import probabilities, score_gradients, step_shape
from nki_hf.kernels.turned import copy_turned, turn
from nki_hf.lang import nisa, nl

TILE = 128


def gradient_stage(env, step, tile, work):
    """Stage 2: probabilities, and dS = P * (dprobs - delta), through the cap times 1 - tanh^2."""
    rows, width = step_shape(step, tile)
    exact, probs = probabilities(env, step, tile, work, env["q"].dtype)
    even = rows + rows % 2
    dscores = nl.ndarray((even, width), dtype=env["q"].dtype, buffer=nl.sbuf)
    if rows % 2 == 1:
        nisa.memset(dst=dscores, value=0.0, engine=nisa.engine.gpsimd)
    place = dscores[0:rows, 0:width]
    if work["slope"] == None:  # noqa: E711
        score_gradients(env, tile, work, exact, place)
    else:
        capped = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        score_gradients(env, tile, work, exact, capped)
        nisa.tensor_tensor(dst=place, data1=capped, data2=work["slope"], op=nl.multiply)
    work["probs"] = probs
    work["dscores"] = dscores
    work["scores"] = None
    work["dprobs"] = None
    work["bias"] = None
    work["slope"] = None


def key_stage(step, tile, run, block, work):
    """Stage 3: dv += P^T dout and dk += dS^T q of the step's key tiles, and dS with keys on partitions."""
    rows, width = step_shape(step, tile)
    queries, grads, probs, dscores, slot = run["q"], run["dout"], work["probs"], work["dscores"], tile["slot"]
    head_dim, width_v = queries.shape[2], grads.shape[2]
    if block["dk"] == None:  # noqa: E711
        tiles = (block["keys"] + TILE - 1) // TILE
        block["dk"] = nl.ndarray((TILE, tiles, head_dim), dtype=nl.float32, buffer=nl.psum)
        block["dv"] = nl.ndarray((TILE, tiles, width_v), dtype=nl.float32, buffer=nl.psum)
        block["begun"] = [False] * tiles
    dk, dv, begun = block["dk"], block["dv"], block["begun"]
    count, first = (width + TILE - 1) // TILE, step["place"] // TILE
    # Two loops alike but for their operands: reports tell the products by their lines.
    for c in range(count):
        keys = min(TILE, width - c * TILE)
        nisa.nc_matmul(
            dst=dv[0:keys, first + c, 0:width_v],
            stationary=probs[0:rows, c * TILE : c * TILE + keys],
            moving=grads[0:rows, slot, 0:width_v],
            accumulate=begun[first + c],
        )
    bank = turn(dscores, width)
    for c in range(count):
        keys = min(TILE, width - c * TILE)
        nisa.nc_matmul(
            dst=dk[0:keys, first + c, 0:head_dim],
            stationary=dscores[0:rows, c * TILE : c * TILE + keys],
            moving=queries[0:rows, slot, 0:head_dim],
            accumulate=begun[first + c],
        )
        begun[first + c] = True
    work["turned"] = copy_turned(bank, width)
    work["probs"] = None
    work["dscores"] = None


def query_stage(step, tile, block, work):
    """Stage 4: dS k, added to the rows' sum."""
    rows, width = step_shape(step, tile)
    keys_first, turned = block["k"], work["turned"]
    head_dim, first = keys_first.shape[2], step["place"] // TILE
    result = nl.ndarray((rows, head_dim), dtype=nl.float32, buffer=nl.psum)
    for c in range((width + TILE - 1) // TILE):
        keys = min(TILE, width - c * TILE)
        nisa.nc_matmul(dst=result, stationary=turned[0:keys, c, 0:rows], moving=keys_first[0:keys, first + c, 0:head_dim])
    if tile["dq"] == None:  # noqa: E711
        total = nl.ndarray((rows, head_dim), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=total, src=result, engine=nisa.engine.vector)
        tile["dq"] = total
    else:
        nisa.tensor_tensor(dst=tile["dq"], data1=tile["dq"], data2=result, op=nl.add)
    work["turned"] = None
