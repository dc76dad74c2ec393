"""Hidden keys of a block of scores, a row per partition: selected away, with the row maximum of what is left."""

from nki_hf.lang import nisa, nl

FP32_MIN = -3.4028235e38


def select(predicate, scores, top):
    """Scores [rows, width] where the predicate holds, float32's lowest value elsewhere, and their row maximum in `top`."""
    chosen = nl.ndarray(scores.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.select_reduce(
        dst=chosen,
        predicate=predicate,
        on_true=scores,
        on_false=FP32_MIN,
        reduce_res=top,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
        reduce_op=nl.maximum,
    )
    return chosen


def select_between(scores, key, lower, upper, top, has_ranges):
    """Scores of keys within `lower <= key < upper` of their row, the first being `key`; else and `top` as `select`.

    `lower`, `upper`: float32 [rows, 1]; `has_ranges`: the chip has range_select (NeuronCore-v3 on).
    """
    rows, width = scores.shape
    if has_ranges:
        chosen = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.range_select(
            dst=chosen,
            on_true_tile=scores,
            comp_op0=nl.greater_equal,
            comp_op1=nl.less,
            bound0=lower,
            bound1=upper,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
            reduce_res=top,
            reduce_op=nl.maximum,
            range_start=key,
            on_false_value=FP32_MIN,
        )
        return chosen
    keys = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=keys, pattern=[[1, width]], offset=key, channel_multiplier=0)
    above = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=above, data=keys, op0=nl.greater_equal, operand0=lower)
    inside = nl.ndarray((rows, width), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(dst=inside, data=keys, op0=nl.less, operand0=upper, op1=nl.multiply, operand1=above)
    return select(inside, scores, top)
