"""Running flash_prefill on the simulator from NumPy inputs: what the tests of the kernel share."""

import numpy as np

from nki_hf.chips import get_chip
from nki_hf.kernels.flash_prefill import flash_prefill
from nki_hf.kernels.flash_prefill.plan import plan_prefill, prefill_reasons
from nki_hf.problem import Problem
from nki_hf.sim import SimOptions, launch
from nki_hf.testing import assert_matches_reference, attention_inputs

HIDDEN, LOWEST = np.float32(np.finfo(np.float32).min), np.float32(-1e38)


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
    case, mask = inputs.problem, inputs.problem.mask
    extra = plan.seqlen_kv - case.seqlen_kv
    k = np.pad(inputs.k, ((0, 0), (0, 0), (0, extra), (0, 0)))
    v = np.pad(inputs.v, ((0, 0), (0, 0), (0, extra), (0, 0)))
    arguments = {"q": inputs.q.swapaxes(2, 3), "k": k.swapaxes(2, 3), "v": v}
    if plan.bounds:
        edges = np.array([mask.interval(row, case.seqlen_kv) for row in range(case.seqlen_q)]).reshape(-1, 2)
        lo, hi = edges[None, :, 0], edges[None, :, 1]
        if mask.runtime_bounds:
            lo, hi = np.maximum(lo, inputs.lo), np.minimum(hi, inputs.hi)
        arguments |= {"lo": lo.astype(np.int32), "hi": hi.astype(np.int32)}
    if inputs.bias is not None:
        if mask.bias == "boolean":
            bias = inputs.bias.astype(np.uint8)
        else:
            bias = np.where(np.isneginf(inputs.bias), HIDDEN, np.maximum(inputs.bias, LOWEST)).astype(np.float32)
        arguments["bias"] = np.pad(bias, ((0, 0), (0, 0), (0, 0), (0, extra)))
    if inputs.sink is not None:
        arguments["sink"] = inputs.sink.reshape(1, -1)
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
