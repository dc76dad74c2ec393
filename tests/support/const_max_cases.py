"""Running flash_const_max on the simulator from NumPy inputs: what the tests of the kernel share."""

import numpy as np
from kernel_cases import mask_arguments

from nki_hf.chips import get_chip
from nki_hf.kernels.flash_const_max.kernel import flash_const_max, flash_const_max_loop
from nki_hf.kernels.flash_const_max.plan import plan_const_max
from nki_hf.sim import SimOptions, launch


def kernel_arguments(inputs, plan):
    """The kernel's tensors and constants, laid out by hand in NumPy."""
    arguments = {"q": inputs.q.swapaxes(2, 3), "k": inputs.k.swapaxes(2, 3), "v": inputs.v}
    arguments |= mask_arguments(inputs, bounds=plan.bounds)
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
