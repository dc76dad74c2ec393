"""What the tests of several attention kernels share: the problem of a case of their grids, and its masks as NumPy arguments."""

import numpy as np

from nki_hf.problem import Problem

HIDDEN, LOWEST = np.float32(np.finfo(np.float32).min), np.float32(-1e38)


def problem_of_case(masks, *, heads, mask, head_dim, lengths, scale, **options):
    """The problem of a grid's case: `mask` names one of `masks`, which are functions of the two lengths."""
    return Problem(
        num_heads_q=heads[0],
        num_heads_kv=heads[1],
        seqlen_q=lengths[0],
        seqlen_kv=lengths[1],
        head_dim=head_dim[0],
        head_dim_v=head_dim[1],
        softmax_scale=scale,
        mask=masks[mask](*lengths),
        **options,
    )


def mask_arguments(inputs, *, bounds, extra=0):
    """lo, hi, bias and sink that a kernel gets, laid out by hand (the adapters have their own way and their own test).

    `bounds`: the kernel gets the mask's intervals as lo and hi; `extra`: keys of padding behind the bias.
    """
    case, mask, found = inputs.problem, inputs.problem.mask, {}
    if bounds:
        edges = np.array([mask.interval(row, case.seqlen_kv) for row in range(case.seqlen_q)]).reshape(-1, 2)
        lo, hi = edges[None, :, 0], edges[None, :, 1]
        if mask.runtime_bounds:
            lo, hi = np.maximum(lo, inputs.lo), np.minimum(hi, inputs.hi)
        found |= {"lo": lo.astype(np.int32), "hi": hi.astype(np.int32)}
    if inputs.bias is not None:
        if mask.bias == "boolean":
            bias = inputs.bias.astype(np.uint8)
        else:
            bias = np.where(np.isneginf(inputs.bias), HIDDEN, np.maximum(inputs.bias, LOWEST)).astype(np.float32)
        found["bias"] = np.pad(bias, ((0, 0), (0, 0), (0, 0), (0, extra)))
    if inputs.sink is not None:
        found["sink"] = inputs.sink.reshape(1, -1)
    return found
