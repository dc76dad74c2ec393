"""flash_backward against the float64 oracle, over its whole envelope, on all chips and on one and two cores."""

import itertools
import random

import pytest
from backward_bar import above_by_luck
from backward_cases import check
from kernel_cases import problem_of_case

from nki_hf.chips import CHIPS
from nki_hf.problem import Mask, Problem
from nki_hf.testing import DISTRIBUTIONS

MASKS = {
    "none": lambda sq, skv: Mask(),
    "causal": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1),
    "causal_top": lambda sq, skv: Mask(ahead=1),
    "window": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1, window=100),
    "two_sided": lambda sq, skv: Mask(q_offset=skv - sq, ahead=40, window=70),
    "bounds": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1, runtime_bounds=True),
    "nothing_seen": lambda sq, skv: Mask(ahead=1, q_offset=-sq),
    "boolean": lambda sq, skv: Mask(bias="boolean", bias_batch=True, bias_rows=True),
    "boolean_keys": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1, bias="boolean", bias_batch=True),
    "additive": lambda sq, skv: Mask(bias="additive", bias_heads=True, bias_rows=True),
    "additive_causal": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1, bias="additive", bias_rows=True),
    "additive_keys": lambda sq, skv: Mask(bias="additive", bias_batch=True),
    "additive_all": lambda sq, skv: Mask(window=60, bias="additive", bias_batch=True, bias_heads=True, bias_rows=True),
}
AXES = {
    "dtype": ("bfloat16", "float16", "float32"),
    "heads": ((2, 2), (4, 2), (3, 1)),
    "batch": (1, 2),
    "mask": tuple(MASKS),
    "softcap": (None, 5.0),
    "sink": (False, True),
    "scale": (None, 0.3, 1.7, -0.5, 0.0),
    "head_dim": ((64, 64), (80, 80), (128, 128), (192, 128), (256, 256), (8, 72), (64, 144)),
    "lengths": (
        *((1, 1), (1, 129), (113, 203), (128, 128), (150, 70), (40, 300), (257, 130)),
        *((70, 1), (40, 2), (140, 3), (64, 4)),  # rows of few keys
    ),
    "chip": tuple(CHIPS),
    "lnc": (1, 2),
    "distribution": DISTRIBUTIONS,
    "with_lse": (False, True),
    "weight": (None, None, None, None, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999),  # of one key in each row, if it is to have one
}


def grid_case(*, chip, lnc, distribution, with_lse, weight, seed, **case):
    return check(problem_of_case(MASKS, **case), chip, lnc, distribution, seed, with_lse, weight)


DRAW = random.Random(18)
ANY = [{name: DRAW.choice(values) for name, values in AXES.items()} for _ in range(5000)]


@pytest.mark.parametrize("start", range(0, 200, 10))
def test_random_problems_match_the_reference(start):
    for number in range(start, start + 10):
        grid_case(**ANY[number], seed=number)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(200, 5000, 100))
def test_any_problem_matches_the_reference(start):
    found = [(ANY[number]["dtype"], grid_case(**ANY[number], seed=number)) for number in range(start, start + 100)]
    # Luck that a single problem may have, a hundred of them do not.
    for kind in itertools.product(AXES["dtype"], ("dq", "dk", "dv", "d_sink", "d_bias")):
        ratios = [each[kind[1]] for dtype, each in found if dtype == kind[0] and kind[1] in each]
        above = sum(ratio > 1.5 for ratio, _ in ratios)
        assert len(ratios) < 4 or above <= above_by_luck(ratios, 1.5), (kind, ratios)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("mask", ["causal", "window"])
def test_long_calls_over_several_blocks_match_the_reference(dtype, mask):
    check(
        Problem(
            batch=1,
            num_heads_q=2,
            num_heads_kv=1,
            seqlen_q=700,
            seqlen_kv=1300,
            head_dim=64,
            head_dim_v=64,
            dtype=dtype,
            mask=MASKS[mask](700, 1300),
        ),
    )
