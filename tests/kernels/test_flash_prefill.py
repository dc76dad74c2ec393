"""flash_prefill against the float64 oracle, over its whole envelope, on all chips and on one and two cores."""

import random

import numpy as np
import pytest
from allpairspy import AllPairs
from kernel_cases import problem_of_case
from prefill_cases import check, problem, run

from nki_hf.chips import CHIPS
from nki_hf.problem import Mask, Problem
from nki_hf.testing import DISTRIBUTIONS, assert_matches_reference, attention_inputs

MASKS = {
    "none": lambda sq, skv: Mask(),
    "causal": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1),
    "causal_top": lambda sq, skv: Mask(ahead=1),
    "window": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1, window=100),
    "two_sided": lambda sq, skv: Mask(q_offset=skv - sq, ahead=40, window=70),
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


def grid_case(*, chip, lnc, distribution, **case):
    check(problem_of_case(MASKS, **case), chip, lnc, distribution)


PAIRWISE = [tuple(case) for case in AllPairs(list(AXES.values()))]


@pytest.mark.parametrize("case", PAIRWISE, ids=lambda case: "-".join(str(value).replace(" ", "") for value in case))
def test_every_pair_of_options_matches_the_reference(case):
    grid_case(**dict(zip(AXES, case, strict=True)))


DRAW = random.Random(20)
# The product of all axes has three million members: a sample of it.
ANY = [{name: DRAW.choice(values) for name, values in AXES.items()} for _ in range(1500)]


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, len(ANY), 50))
def test_any_combination_of_options_matches_the_reference(start):
    for case in ANY[start : start + 50]:
        grid_case(**case)


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e9, 1e30])
def test_rows_without_keys_have_an_lse_of_minus_infinity_at_every_scale(scale):
    lse = check(problem(seqlen_q=130, seqlen_kv=100, softmax_scale=scale, mask=Mask(q_offset=-60, ahead=1)))[1]
    assert np.isneginf(lse[..., :60]).all()
    assert np.isfinite(lse[..., 60:]).all()


def test_a_long_call_matches_the_reference():
    check(
        Problem(
            batch=1,
            num_heads_q=2,
            num_heads_kv=1,
            seqlen_q=2300,
            seqlen_kv=2300,
            head_dim=64,
            head_dim_v=64,
            dtype="bfloat16",
            mask=Mask(ahead=1),
        ),
        lnc=2,
    )


@pytest.mark.parametrize("lnc", [1, 2])
def test_row_statistics_are_the_largest_score_and_the_sum_relative_to_it(lnc):
    inputs = attention_inputs(problem(seqlen_q=67, seqlen_kv=150, mask=Mask(q_offset=-20, ahead=1), row_statistics=True))
    out, lse, row_shift, row_sum = run(inputs, lnc=lnc)[0].outputs
    assert_matches_reference(inputs, out.swapaxes(1, 2), lse)
    assert row_shift.dtype == row_sum.dtype == np.float32
    scores = inputs.q.astype(np.float64) @ inputs.k.astype(np.float64).swapaxes(2, 3) / 8  # two heads share the keys of one
    seen = np.arange(150) <= np.arange(67)[:, None] - 20
    largest = np.where(seen, scores, -np.inf).max(-1)
    np.testing.assert_allclose(row_shift, largest, rtol=0, atol=1e-5)
    assert (row_sum > 0).all()
    sums = np.where(seen, np.exp(scores - np.where(np.isinf(largest), 0.0, largest)[..., None]), 0.0).sum(-1)
    np.testing.assert_allclose(row_sum[..., 20:], sums[..., 20:], rtol=1e-5)
