"""Running flash_const_max on the simulator from NumPy inputs: what the tests of the kernel share."""

import numpy as np

from nki_hf.chips import get_chip
from nki_hf.kernels.flash_const_max.kernel import flash_const_max, flash_const_max_loop
from nki_hf.kernels.flash_const_max.plan import plan_const_max
from nki_hf.sim import SimOptions, launch

HIDDEN, LOWEST = np.float32(np.finfo(np.float32).min), np.float32(-1e38)


def kernel_arguments(inputs, plan):
    """The kernel's tensors and constants, laid out by hand in NumPy."""
    case, mask = inputs.problem, inputs.problem.mask
    arguments = {"q": inputs.q.swapaxes(2, 3), "k": inputs.k.swapaxes(2, 3), "v": inputs.v}
    if plan.bounds:
        edges = np.array([mask.interval(row, case.seqlen_kv) for row in range(case.seqlen_q)]).reshape(-1, 2)
        lo, hi = edges[None, :, 0], edges[None, :, 1]
        if mask.runtime_bounds:
            lo, hi = np.maximum(lo, inputs.lo), np.minimum(hi, inputs.hi)
        arguments |= {"lo": lo.astype(np.int32), "hi": hi.astype(np.int32)}
    if inputs.bias is not None:
        if mask.bias == "boolean":
            arguments["bias"] = inputs.bias.astype(np.uint8)
        else:
            values = np.where(np.isneginf(inputs.bias), HIDDEN, np.maximum(inputs.bias, LOWEST))
            arguments["bias"] = values.astype(np.float32)
    if inputs.sink is not None:
        arguments["sink"] = inputs.sink.reshape(1, -1)
    return {name: np.ascontiguousarray(array) for name, array in arguments.items()} | plan.constants() | {"count_failed": True}


def outputs(inputs, chip="trn2", lnc=1, plan=None, **options):
    """Output `[batch, num_heads_q, seqlen_q, head_dim_v]`, lse, and failed rows per query tile of a call."""
    plan = plan or plan_const_max(inputs.problem, get_chip(chip), lnc)
    options = SimOptions(chip=get_chip(chip), events=False, **options)
    out, lse, failed = launch(flash_const_max, (), kernel_arguments(inputs, plan), options=options, lnc=lnc).outputs
    return out.swapaxes(1, 2), lse, failed


def exact_outputs(inputs, tiles, chip="trn2"):
    """Output and lse of a call whose query tiles `(batch, head, tile)` are computed with their exact row maximum."""
    plan = plan_const_max(inputs.problem, get_chip(chip))
    options = SimOptions(chip=get_chip(chip), events=False, uninitialized="error")
    arguments = kernel_arguments(inputs, plan) | {"exact": tuple(tiles)}
    out, lse, _ = launch(flash_const_max, (), arguments, options=options).outputs
    return out.swapaxes(1, 2), lse


def loop_outputs(inputs, chip="trn2", lnc=1, **options):
    """Output, lse and failed rows of the entry whose failed tiles are computed again in a loop at run time."""
    plan = plan_const_max(inputs.problem, get_chip(chip), lnc)
    options = SimOptions(chip=get_chip(chip), events=False, **options)
    found = launch(flash_const_max_loop, (), kernel_arguments(inputs, plan), options=options, lnc=lnc)
    out, lse, failed = found.outputs
    return out.swapaxes(1, 2), lse, failed
