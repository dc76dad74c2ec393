"""Running flash_prefill on the simulator from NumPy inputs: what the tests of the kernel share."""

import numpy as np
from kernel_cases import mask_arguments

from nki_hf.chips import get_chip
from nki_hf.kernels.flash_prefill import flash_prefill
from nki_hf.kernels.flash_prefill.plan import plan_prefill, prefill_reasons
from nki_hf.problem import Problem
from nki_hf.sim import SimOptions, launch
from nki_hf.testing import assert_matches_reference, attention_inputs


def problem(**changes):
    sizes = {
        "batch": 1,
        "num_heads_q": 2,
        "num_heads_kv": 1,
        "seqlen_q": 200,
        "seqlen_kv": 200,
        "head_dim": 64,
        "head_dim_v": 64,
        "dtype": "float32",
    }
    return Problem(**{**sizes, **changes})


def kernel_arguments(inputs, plan):
    """The kernel's tensors and constants, laid out by hand in NumPy (the adapters have their own way and their own test)."""
    extra = plan.seqlen_kv - inputs.problem.seqlen_kv
    k = np.pad(inputs.k, ((0, 0), (0, 0), (0, extra), (0, 0)))
    v = np.pad(inputs.v, ((0, 0), (0, 0), (0, extra), (0, 0)))
    arguments = {"q": inputs.q.swapaxes(2, 3), "k": k.swapaxes(2, 3), "v": v}
    arguments |= mask_arguments(inputs, bounds=plan.bounds, extra=extra)
    return {name: np.ascontiguousarray(array) for name, array in arguments.items()} | plan.constants()


def run(inputs, chip="trn2", lnc=1, plan=None, **options):
    """The launch of a call, and its plan."""
    plan = plan or plan_prefill(inputs.problem, get_chip(chip), lnc)
    options = SimOptions(chip=get_chip(chip), **options)
    return launch(flash_prefill, (), kernel_arguments(inputs, plan), options=options, lnc=lnc), plan


def outputs(inputs, chip="trn2", lnc=1, plan=None):
    """Output `[batch, num_heads_q, seqlen_q, head_dim_v]` and lse of a call."""
    out, lse = run(inputs, chip, lnc, plan)[0].outputs
    return out.swapaxes(1, 2), lse


def check(case, chip="trn2", lnc=1, distribution="normal", seed=0):
    """Compare a problem's random call with the oracle; returns output, lse and inputs."""
    assert prefill_reasons(case, get_chip(chip)) == ()
    inputs = attention_inputs(case, seed=seed, distribution=distribution)
    out, lse = outputs(inputs, chip, lnc)
    assert_matches_reference(inputs, out, lse)
    return out, lse, inputs
