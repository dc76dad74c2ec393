"""flash_const_max against the float64 oracle, over its whole envelope, on all chips and on one and two cores."""

import random
from dataclasses import replace

import numpy as np
import pytest
from allpairspy import AllPairs
from const_max_cases import outputs
from kernel_cases import problem_of_case

from nki_hf.chips import CHIPS, get_chip
from nki_hf.kernels.flash_const_max.plan import const_max_reasons, plan_const_max
from nki_hf.kernels.flash_const_max.tuning import tuning_of
from nki_hf.problem import Mask, Problem
from nki_hf.testing import assert_matches_reference, attention_inputs, plain_attention

MASKS = {
    "none": lambda sq, skv: Mask(),
    "causal": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1),
    "causal_top": lambda sq, skv: Mask(ahead=1),
    "window": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1, window=100),
    "two_sided": lambda sq, skv: Mask(q_offset=skv - sq, ahead=40, window=70),
    "bounds": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1, runtime_bounds=True),
    "bounds_alone": lambda sq, skv: Mask(runtime_bounds=True),
    "boolean_keys": lambda sq, skv: Mask(q_offset=skv - sq, ahead=1, bias="boolean", bias_batch=True),
    "additive_keys": lambda sq, skv: Mask(bias="additive"),
}
AXES = {
    "heads": ((2, 2), (4, 2), (3, 1), (8, 1)),
    "batch": (1, 2),
    "mask": tuple(MASKS),
    "sink": (False, True),
    "scale": (None, 0.3, -0.2),
    "head_dim": ((64, 64), (80, 80), (128, 128), (192, 128), (256, 256), (8, 72), (320, 512)),
    "lengths": ((1, 1), (1, 129), (113, 203), (128, 128), (257, 1023), (150, 70), (40, 700), (600, 600)),
    "chip": tuple(CHIPS),
    "lnc": (1, 2),
    "distribution": ("normal", "outlier_key", "equal", "negative"),
    "copied": (0, 1, 2, 4),
}


def grid_case(heads, batch, mask, sink, scale, head_dim, lengths, chip, lnc, distribution, copied):
    case = problem_of_case(
        MASKS,
        heads=heads,
        batch=batch,
        mask=mask,
        sink=sink,
        scale=scale,
        head_dim=head_dim,
        lengths=lengths,
    )
    # Dispatch gives calls of few rows to another kernel; this one computes them as well.
    assert {reason.field for reason in const_max_reasons(case, get_chip(chip))} <= {"seqlen_q"}
    inputs = attention_inputs(case, distribution=distribution)
    tuning = replace(tuning_of(case, get_chip(chip)), copied=copied)
    plan = plan_const_max(case, get_chip(chip), lnc, tuning)
    out, lse, failed = outputs(inputs, chip, lnc, plan, uninitialized="error")
    if failed.any():
        # What failed is not this kernel's result: only the other query tiles are held to the oracle.
        rows = np.repeat(failed > 0, 128, axis=2)[:, :, : case.seqlen_q]
        want, want_lse = inputs.expected
        out = np.where(rows[..., None], want, out)
        lse = np.where(rows, want_lse, lse)
        assert distribution != "normal" or case.mask.bias is not None
    want_lse = inputs.expected[1]
    close = np.abs(lse - np.where(np.isinf(want_lse), 0, want_lse)) <= 4e-3  # a sum of rounded probabilities
    assert_matches_reference(inputs, out, np.where(close, want_lse, lse))


PAIRWISE = [tuple(case) for case in AllPairs(list(AXES.values()))]


@pytest.mark.parametrize("case", PAIRWISE, ids=lambda case: "-".join(str(value).replace(" ", "") for value in case))
def test_every_pair_of_options_matches_the_reference(case):
    grid_case(*case)


@pytest.mark.parametrize("rows", [33, 128, 129])
@pytest.mark.parametrize("mask", ["none", "causal", "window"])
@pytest.mark.parametrize("distribution", ["normal", "outlier_key"])
def test_heads_whose_keys_take_two_transfers_at_the_start(rows, mask, distribution):
    """The second transfer must not be taken for all that the heads behind it need."""
    for keys in (513, 700, 1025):
        grid_case((2, 2), 2, mask, False, None, (8, 8), (rows, keys), "trn2", 1, distribution, 0)


@pytest.mark.parametrize("bounds", ["hidden", "one_key", "edges", "far", "crossed", "all"])
@pytest.mark.parametrize("scale", [None, -0.2])
def test_bounds_at_the_edges_of_what_one_mask_covers(bounds, scale):
    """Masks of bounds per row are made 1,024 keys at a time, from the middle and the size of what is seen of them."""
    rows, keys = 128, 2300
    case = Problem(
        batch=1,
        num_heads_q=1,
        num_heads_kv=1,
        seqlen_q=rows,
        seqlen_kv=keys,
        head_dim=8,
        head_dim_v=8,
        softmax_scale=scale,
        mask=Mask(runtime_bounds=True),
    )
    inputs = attention_inputs(case)
    row = np.arange(rows)
    step = row * keys // rows
    edges = np.array([0, 1, 1023, 1024, 1025, 2047, 2048, 2049, keys - 1, keys])
    lo, hi = {
        "hidden": (step, step),
        "one_key": (step, step + 1),
        "edges": (edges[row % 10], np.maximum(edges[row % 10], edges[(row // 10) % 10])),
        "far": (np.full(rows, -(2**23)), np.where(row % 2, 2**23, row)),
        "crossed": (step + 50, step),
        "all": (0 * row, 0 * row + keys),
    }[bounds]
    inputs.lo[:], inputs.hi[:] = lo, hi
    out, lse, failed = outputs(inputs, uninitialized="error")
    assert not failed.any()
    scores = (inputs.q.astype(np.float64) @ inputs.k.astype(np.float64).swapaxes(2, 3))[0, 0] * case.scale
    seen = (np.arange(keys) >= lo[:, None]) & (np.arange(keys) < hi[:, None])
    weights = np.where(seen, np.exp(scores), 0.0)
    total = weights.sum(1, keepdims=True)
    want = weights @ inputs.v[0, 0].astype(np.float64) / np.where(total > 0, total, 1)
    spread = weights @ np.abs(inputs.v[0, 0].astype(np.float64)) / np.where(total > 0, total, 1)
    assert (np.abs(out[0, 0].astype(np.float64) - want) <= 3 * 2.0**-8 * spread).all()
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(lse[0, 0], np.log(total[:, 0]), atol=4e-3)


DRAW = random.Random(20)
ANY = [{name: DRAW.choice(values) for name, values in AXES.items()} for _ in range(1000)]


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, len(ANY), 50))
def test_any_combination_of_options_matches_the_reference(start):
    for case in ANY[start : start + 50]:
        grid_case(**case)


@pytest.mark.parametrize("causal", [False, True])
def test_the_error_is_at_most_that_of_a_plain_bfloat16_run(causal):
    case = Problem(
        batch=1,
        num_heads_q=1,
        num_heads_kv=1,
        seqlen_q=1024,
        seqlen_kv=1024,
        head_dim=128,
        head_dim_v=128,
        mask=Mask(ahead=1 if causal else None),
    )
    inputs = attention_inputs(case)
    out, lse, failed = outputs(inputs)
    want, want_lse = inputs.expected
    plain, _ = plain_attention(inputs)
    assert not failed.any()
    assert np.square(out - want).mean() <= np.square(plain - want).mean()
    errors = np.abs(lse - want_lse)[0, 0]
    assert errors.max() <= 4e-3  # a row of one key has the rounding of one bfloat16 probability
    assert errors[64:].max() <= 1e-3


@pytest.mark.parametrize("score", [-31.0, 0.0, 45.0])
def test_equal_scores_in_the_band_pass_and_lse_is_theirs(score):
    case = Problem(
        batch=1, num_heads_q=1, num_heads_kv=1, seqlen_q=128, seqlen_kv=256, head_dim=8, head_dim_v=8, softmax_scale=1.0
    )
    inputs = attention_inputs(case)
    inputs.q[:], inputs.k[:] = 0, 0
    inputs.q[..., 0], inputs.k[..., 0] = score, 1
    _, lse, failed = outputs(inputs)
    assert not failed.any()
    assert np.abs(lse - (score + np.log(256))).max() <= 4e-3


@pytest.mark.parametrize("score", [-45.0, 70.0])
def test_scores_outside_of_the_band_are_counted_row_by_row(score):
    case = Problem(
        batch=1, num_heads_q=2, num_heads_kv=1, seqlen_q=200, seqlen_kv=256, head_dim=8, head_dim_v=8, softmax_scale=1.0
    )
    inputs = attention_inputs(case)
    inputs.q[:], inputs.k[:] = 0, 0
    inputs.k[..., 0] = 1
    inputs.q[0, 1, 3, 0] = inputs.q[0, 1, 190, 0] = inputs.q[0, 1, 199, 0] = score
    _, _, failed = outputs(inputs)
    assert failed.tolist() == [[[0, 0], [1, 2]]]
