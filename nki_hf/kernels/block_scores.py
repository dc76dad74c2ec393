"""A block of scores, a row of queries per partition, as the softmax sees it: its bias, its scale or cap, and its shift.

`env` of a kernel holds `scale`, `softcap` (None = off), `scaled` (the scores are multiplied by `scale` before the softmax) and
`additive` (the bias is added; else it says which keys are seen).
"""

from nki_hf.kernels.hidden import select
from nki_hf.lang import nisa, nl

FP32_MAX = 3.4028235e38
FP32_MIN = -3.4028235e38


def load_bias(bias, place, rows, width):
    """The bias [rows, width] of `place` = (batch, head, row, key), the first of each; axes of size 1 stand for all."""
    batch, head, row, key = place
    shape = bias.shape
    batch, head = min(batch, shape[0] - 1), min(head, shape[1] - 1)
    stride = shape[3]
    if shape[2] == 1:
        stride, row = 0, 0
    offset = ((batch * shape[1] + head) * shape[2] + row) * shape[3] + key
    tile = nl.ndarray((rows, width), dtype=bias.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=bias.ap(pattern=[[stride, rows], [1, width]], offset=offset))
    return tile


def scale_or_cap(env, scores):
    """Scores with their scale, or the tanh of capped ones; and the number that both are still to be multiplied by."""
    if env["softcap"] != None:  # noqa: E711  (NKI's front end knows no `is`)
        capped = nl.ndarray(scores.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=capped, op=nl.tanh, data=scores, scale=env["scale"] / env["softcap"])
        return capped, env["softcap"]
    if env["scaled"] and not env["additive"]:
        scaled = nl.ndarray(scores.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=scaled, op=nl.copy, data=scores, scale=env["scale"])
        return scaled, env["scale"]
    return scores, env["scale"]


def with_bias(env, scores, factor, bias, top):
    """Scores times `factor` plus an additive bias, or those that a boolean one shows; hidden ones and `top` as `select`."""
    predicate = bias
    if env["additive"]:
        biased = nl.ndarray(scores.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(dst=biased, data=scores, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=bias)
        scores = biased
        # Hidden keys are selected away as well, so that a NaN under a hidden key stays there. A NaN in the bias hides nothing.
        predicate = nl.ndarray(scores.shape, dtype=nl.uint8, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=predicate, data=bias, op0=nl.not_equal, operand0=FP32_MIN)
    return select(predicate, scores, top)


def next_shift(top, slope, before):
    """What a block's exponentials are relative to, -slope * running maximum [rows, 1]; `before`: that of the block before.

    Clamped, so that a row without visible keys so far keeps it finite.
    """
    shift = nl.ndarray(top.shape, dtype=nl.float32, buffer=nl.sbuf)
    if before == None:  # noqa: E711
        nisa.tensor_scalar(dst=shift, data=top, op0=nl.multiply, operand0=-slope, op1=nl.minimum, operand1=FP32_MAX)
    else:
        nisa.scalar_tensor_tensor(dst=shift, data=top, op0=nl.multiply, operand0=-slope, op1=nl.minimum, operand1=before)
    return shift
