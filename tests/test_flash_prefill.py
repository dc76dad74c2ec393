"""flash_prefill against the float64 oracle, over its whole envelope, on all chips and on one and two cores."""

import numpy as np
import pytest
from allpairspy import AllPairs

from nki_hf.chips import CHIPS, get_chip
from nki_hf.kernels.flash_prefill import flash_prefill
from nki_hf.kernels.prefill_plan import plan_prefill, prefill_reasons
from nki_hf.problem import Mask, Problem
from nki_hf.sim import SimOptions, launch
from nki_hf.testing import DISTRIBUTIONS, assert_matches_reference, attention_inputs

HIDDEN, LOWEST = np.float32(np.finfo(np.float32).min), np.float32(-1e38)


def kernel_arguments(inputs, plan):
    """The kernel's tensors and constants, laid out by hand in NumPy (the adapters have their own way and their own test)."""
    problem, mask = inputs.problem, inputs.problem.mask
    extra = plan.seqlen_kv - problem.seqlen_kv
    k = np.pad(inputs.k, ((0, 0), (0, 0), (0, extra), (0, 0)))
    v = np.pad(inputs.v, ((0, 0), (0, 0), (0, extra), (0, 0)))
    arguments = {"q": inputs.q.swapaxes(2, 3), "k": k.swapaxes(2, 3), "v": v}
    if plan.bounds:
        edges = np.array([mask.interval(row, problem.seqlen_kv) for row in range(problem.seqlen_q)]).reshape(-1, 2)
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


def run(inputs, chip="trn2", lnc=1, **options):
    plan = plan_prefill(inputs.problem, get_chip(chip), lnc)
    result = launch(
        flash_prefill, (), kernel_arguments(inputs, plan), options=SimOptions(chip=get_chip(chip), **options), lnc=lnc
    )
    return result, plan


def check(problem, chip="trn2", lnc=1, distribution="normal", seed=0):
    assert prefill_reasons(problem, get_chip(chip)) == ()
    inputs = attention_inputs(problem, seed=seed, distribution=distribution)
    result, _ = run(inputs, chip, lnc)
    out, lse = result.outputs
    assert_matches_reference(inputs, out.swapaxes(1, 2), lse)
    return out, lse, inputs


def problem(**changes):
    sizes = {
        "batch": 1, "num_heads_q": 2, "num_heads_kv": 1, "seqlen_q": 200, "seqlen_kv": 200, "head_dim": 64, "head_dim_v": 64,
        "dtype": "float32",
    }  # fmt: skip
    return Problem(**{**sizes, **changes})


# ---- the grid -------------------------------------------------------------------------------------------------------

MASKS = {
    "none": lambda sq, skv: Mask(),
    "causal": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1),
    "causal_top": lambda sq, skv: Mask(ahead=1),
    "window": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1, window=100),
    "two_sided": lambda sq, skv: Mask(q_offset=skv - sq, ahead=40, window=70),
    "rows": lambda sq, skv: Mask(rows=tuple((min(skv, i // 50 * 50), min(skv, i // 50 * 50 + 50)) for i in range(sq))),
    "bounds": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1, runtime_bounds=True),
    "boolean": lambda sq, skv: Mask(bias="boolean", bias_batch=True, bias_rows=True),
    "boolean_keys": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1, bias="boolean", bias_batch=True),
    "additive": lambda sq, skv: Mask(bias="additive", bias_heads=True, bias_rows=True),
    "additive_causal": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1, bias="additive", bias_rows=True),
}
AXES = {
    "dtype": ("bfloat16", "float16", "float32"),
    "heads": ((2, 2), (4, 2), (3, 1)),
    "batch": (1, 2),
    "mask": tuple(MASKS),
    "softcap": (None, 5.0),
    "sink": (False, True),
    "scale": (None, 0.3, 1.7),
    "head_dim": ((64, 64), (80, 80), (128, 128), (192, 128), (256, 256), (8, 72)),
    "lengths": ((1, 1), (1, 129), (113, 203), (128, 128), (257, 1023), (150, 70), (40, 700)),
    "chip": tuple(CHIPS),
    "lnc": (1, 2),
    "distribution": DISTRIBUTIONS,
}


def grid_case(dtype, heads, batch, mask, softcap, sink, scale, head_dim, lengths, chip, lnc, distribution):
    case = Problem(
        batch=batch, num_heads_q=heads[0], num_heads_kv=heads[1], seqlen_q=lengths[0], seqlen_kv=lengths[1],
        head_dim=head_dim[0], head_dim_v=head_dim[1], dtype=dtype, softmax_scale=scale, mask=MASKS[mask](*lengths),
        softcap=softcap, sink=sink,
    )  # fmt: skip
    check(case, chip, lnc, distribution)


PAIRWISE = [tuple(case) for case in AllPairs(list(AXES.values()))]


@pytest.mark.parametrize("case", PAIRWISE, ids=lambda case: "-".join(str(value).replace(" ", "") for value in case))
def test_every_pair_of_options_matches_the_reference(case):
    grid_case(*case)
