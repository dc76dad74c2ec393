"""How `nki_hf verify` judges an output and makes its inputs: wrong outputs of every kind must fail."""

import numpy as np
import pytest

from nki_hf.problem import Problem
from nki_hf.testing import DISTRIBUTIONS, attention_inputs
from nki_hf.tools.verify_inputs import array_inputs
from nki_hf.tools.verify_judge import judge, row_error

SHAPE = (2, 4, 256, 32)  # [batch, heads, seqlen, head_dim]


@pytest.fixture
def reference(rng):
    return rng.standard_normal(SHAPE)


def wrong(reference, how):
    out = reference.copy()
    if how == "zeros":
        out[...] = 0
    elif how == "nan":
        out[1, 2, 3, 4] = np.nan
    elif how == "scaled":
        out *= 1.5
    elif how == "swapped heads":
        out = out[:, [1, 0, 2, 3]]
    elif how == "truncated tail":
        out[:, :, -3:] = 0
    return out


@pytest.mark.parametrize(
    ("how", "verdict"),
    [("zeros", "all zero"), ("nan", "not finite"), ("scaled", "magnitude"), ("swapped heads", "rows"),
     ("truncated tail", "rows"), ("nothing", "pass")],
)  # fmt: skip
def test_five_wrong_outputs_fail_and_the_right_one_passes(reference, how, verdict):
    found = judge(wrong(reference, how), reference, tolerance=0.01)
    assert (found.verdict, found.passed) == (verdict, verdict == "pass")


def test_nan_in_both_is_no_agreement(reference):
    broken = wrong(reference, "nan")
    assert judge(broken, broken, tolerance=0.01).verdict == "reference"


def test_a_cosine_of_one_does_not_excuse_the_magnitude(reference):
    found = judge(1.5 * reference, reference, tolerance=0.01)
    assert found.verdict == "magnitude"
    assert found.cosine == pytest.approx(1.0)
    assert found.magnitude == pytest.approx(1.5)


def test_worst_row_and_tile_are_named(reference):
    out = reference.copy()
    out[1, 2, 200] *= 1.2
    found = judge(out, reference, tolerance=0.01)
    assert found.verdict == "rows"
    assert found.worst_row == (1, 2, 200)
    assert found.worst_tile == (1, 2, 128)
    assert found.row_error == pytest.approx(0.2)


def test_one_wrong_row_of_ten_thousand_is_seen(rng):
    reference = rng.standard_normal((10_000, 64))
    out = reference.copy()
    out[9_876] = reference[9_875]
    found = judge(out, reference, tolerance=0.05)
    assert (found.verdict, found.worst_row) == ("rows", (9_876,))
    assert found.cosine > 0.9998


def test_never_written_elements_are_a_verdict_of_their_own(reference):
    unwritten = np.zeros(SHAPE, bool)
    unwritten[0, 1, 5] = True
    found = judge(reference, reference, tolerance=0.01, unwritten=unwritten)
    assert found.verdict == "never written"
    assert "[0, 1, 5, 0]" in found.detail


@pytest.mark.parametrize("shape", [(2, 4, 256), (2, 4, 256, 31)])
def test_another_shape_fails(reference, shape):
    assert judge(np.zeros(shape), reference, tolerance=0.01).verdict == "shape"


def test_a_reference_of_zeros_asks_for_zeros():
    assert judge(np.zeros((4, 4)), np.zeros((4, 4)), tolerance=0.01).passed
    assert judge(np.eye(4) * 1e-30, np.zeros((4, 4)), tolerance=0.01).verdict == "magnitude"


def test_equal_infinities_agree_and_others_do_not(rng):
    reference = rng.standard_normal((4, 8))
    reference[1, 2] = -np.inf
    assert judge(reference, reference, tolerance=1e-6).passed
    assert row_error(reference, reference).max() == 0
    out = reference.copy()
    out[1, 2] = np.inf
    assert judge(out, reference, tolerance=1e-6).verdict == "not finite"


def test_row_error_is_relative_to_the_row_but_not_for_rows_that_are_nearly_zero(rng):
    reference = np.ones((3, 4))
    reference[2] = 1e-9
    assert row_error(reference + 1e-9, reference).max() < 1e-6


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_generated_arrays_are_what_their_name_says_and_repeat_with_the_seed(distribution):
    shapes = {"x": (96, 40), "y": (7,)}
    first, again, other = (array_inputs(shapes, distribution, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first["x"], again["x"])
    assert not np.array_equal(first["x"], other["x"])
    x = first["x"]
    assert {
        "normal": 0.9 < x.std() < 1.1,
        "wide": 9 < x.std() < 11,
        "outlier_key": np.linalg.norm(x, axis=1).max() > 50 * np.median(np.linalg.norm(x, axis=1)),
        "equal": len(np.unique(x)) == 1,
        "negative": (x < 0).all(),
    }[distribution]


@pytest.mark.parametrize("distribution", ["equal", "negative", "outlier_key"])
def test_attention_distributions_shape_the_scores(distribution):
    problem = Problem(batch=1, num_heads_q=2, num_heads_kv=1, seqlen_q=8, seqlen_kv=64, head_dim=16, head_dim_v=16)
    inputs = attention_inputs(problem, distribution=distribution)
    scores = inputs.q.astype(float) @ inputs.k.astype(float).swapaxes(-1, -2)
    if distribution == "equal":
        np.testing.assert_allclose(scores, scores[..., :1] * np.ones(64))
    elif distribution == "negative":
        assert (scores < 0).all()
    else:
        assert np.abs(scores).max() > 20 * np.median(np.abs(scores))
