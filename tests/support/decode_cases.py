"""Running flash_decode on the simulator from NumPy inputs: what the tests of the kernel share."""

from dataclasses import replace

import numpy as np

from nki_hf.chips import get_chip
from nki_hf.kernels.flash_decode.kernel import flash_decode
from nki_hf.kernels.flash_decode.plan import decode_reasons, plan_decode
from nki_hf.problem import Problem
from nki_hf.sim import SimOptions, launch
from nki_hf.testing import allowed_error, assert_matches_reference, attention_inputs


def problem(**changes):
    sizes = {
        "batch": 1,
        "num_heads_q": 4,
        "num_heads_kv": 2,
        "seqlen_q": 1,
        "seqlen_kv": 200,
        "head_dim": 64,
        "head_dim_v": 64,
        "dtype": "float32",
    }
    return Problem(**{**sizes, **changes})


def bounds_of(inputs):
    """`lo` and `hi` int32 [batch or 1, seqlen_q] from the static and the run-time part of the mask."""
    case, mask = inputs.problem, inputs.problem.mask
    edges = np.array([mask.interval(row, case.seqlen_kv) for row in range(case.seqlen_q)]).reshape(-1, 2)
    lo, hi = edges[None, :, 0], edges[None, :, 1]
    if mask.runtime_bounds:
        lo, hi = np.maximum(lo, inputs.lo), np.minimum(hi, inputs.hi)
    return lo.astype(np.int32), hi.astype(np.int32)


def kernel_arguments(inputs, plan, filler=0.0):
    """The kernel's tensors and constants; the cache is filled up to the bucket with `filler`."""
    extra = plan.seqlen_kv - inputs.problem.seqlen_kv
    k, v = (
        np.pad(item.astype(np.float32), ((0, 0), (0, 0), (0, extra), (0, 0)), constant_values=filler).astype(item.dtype)
        for item in (inputs.k, inputs.v)
    )
    lo, hi = bounds_of(inputs)
    sink = {} if inputs.sink is None else {"sink": inputs.sink.reshape(1, -1)}
    return {"q": inputs.q, "k": k, "v": v, "lo": lo, "hi": hi, **sink, **plan.constants()}


def run(inputs, chip="trn2", lnc=1, plan=None, filler=0.0, **options):
    """The launch of a call, and its plan."""
    plan = plan or plan_decode(inputs.problem, get_chip(chip))
    options = SimOptions(chip=get_chip(chip), **options)
    return launch(flash_decode, (), kernel_arguments(inputs, plan, filler), options=options, lnc=lnc), plan


def outputs(inputs, chip="trn2", lnc=1, plan=None, filler=0.0):
    """Output `[batch, num_heads_q, seqlen_q, head_dim_v]` and lse of a call."""
    out, lse = run(inputs, chip, lnc, plan, filler)[0].outputs
    return out.swapaxes(1, 2), lse


def check(case, chip="trn2", lnc=1, distribution="normal", seed=0):
    """Compare a problem's random call with the oracle; returns output, lse and inputs."""
    assert decode_reasons(case, get_chip(chip)) == ()
    inputs = attention_inputs(case, seed=seed, distribution=distribution)
    out, lse = outputs(inputs, chip, lnc)
    try:
        assert_matches_reference(inputs, out, lse)
    except AssertionError:
        if case.dtype != "float32":
            raise
        assert_matches_a_plain_run_in_some_order(inputs, out, lse)
    return out, lse, inputs


def assert_matches_a_plain_run_in_some_order(inputs, out, lse, orders=8):
    """The error of one plain float32 run is one draw of many: with the terms of its scores summed in another order it is up to
    ten times as large or small. The kernel's may be twice the largest of several orders, and rounding.
    """
    rng = np.random.default_rng(0)
    shuffled = [rng.permutation(inputs.problem.head_dim) for _ in range(orders)]
    limits = [allowed_error(replace(inputs, q=inputs.q[..., order], k=inputs.k[..., order])) for order in shuffled]
    for name, got, want, limit in zip(("out", "lse"), (out, lse), inputs.expected, np.max(limits, 0), strict=True):
        got = np.asarray(got, np.float64)
        same = got == want  # infinities
        error = np.abs(np.where(same, 0.0, got) - np.where(same, 0.0, want))
        assert error.max() <= limit, f"{name} is {error.max():.3g} from the reference: at most {limit:.3g} is allowed."
