"""How `nki_hf verify` judges an output and makes its inputs: wrong outputs of every kind must fail."""

import numpy as np
import pytest

from nki_hf.problem import Problem
from nki_hf.testing import DISTRIBUTIONS, attention_inputs
from nki_hf.tools.shape import problem_of
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
    [
        ("zeros", "all zero"),
        ("nan", "not finite"),
        ("scaled", "magnitude"),
        ("swapped heads", "rows"),
        ("truncated tail", "rows"),
        ("nothing", "pass"),
    ],
)
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


def test_references_of_long_calls_are_kept_checked_and_made_again(tmp_path, monkeypatch):
    from nki_hf.tools import verify_oracle

    monkeypatch.setattr(verify_oracle, "_WORTH", 1)
    monkeypatch.setattr(verify_oracle, "_folder", lambda: tmp_path)
    problem = problem_of("hq=2,hkv=1,sq=96,d=16,causal")
    inputs = attention_inputs(problem, seed=3)
    want = inputs.expected[0]
    first = verify_oracle.oracle(inputs)
    np.testing.assert_array_equal(first.out, want)
    (file,) = tmp_path.glob("*.ref")

    monkeypatch.setattr(verify_oracle, "_computed", lambda _: pytest.fail("it is read, not computed"))
    again = verify_oracle.oracle(attention_inputs(problem, seed=3))
    np.testing.assert_array_equal(again.out, want)
    assert again.errors == first.errors

    monkeypatch.undo()
    monkeypatch.setattr(verify_oracle, "_WORTH", 1)
    monkeypatch.setattr(verify_oracle, "_folder", lambda: tmp_path)
    data = bytearray(file.read_bytes())
    data[-9] ^= 1
    file.write_bytes(data)
    np.testing.assert_array_equal(verify_oracle.oracle(inputs).out, want)
    verify_oracle.oracle(attention_inputs(problem, seed=4))
    assert len(list(tmp_path.glob("*.ref"))) == 2

    monkeypatch.setattr(verify_oracle, "_KEPT_BYTES", 0)
    verify_oracle.oracle(attention_inputs(problem, seed=5))
    assert not list(tmp_path.glob("*.ref"))


@pytest.mark.parametrize(
    "shape", ["sq=300,causal,d=16", "sq=300,window=70,d=16", "sq=40,skv=300,causal,d=16", "hq=2,hkv=1,sq=64,skv=32,d=16"]
)
def test_blocks_of_rows_leave_out_only_keys_that_none_of_them_sees(shape, monkeypatch):
    from nki_hf.kernels import reference

    inputs = attention_inputs(problem_of(shape), seed=2)
    problem = inputs.problem
    q, k, v = (np.asarray(item, np.float64) for item in (inputs.q, inputs.k, inputs.v))
    k, v = (np.repeat(item, problem.group_size, axis=1) for item in (k, v))
    scores = np.where(reference.visible_keys(problem), q @ k.swapaxes(-1, -2) * problem.scale, -np.inf)
    top = scores.max(-1, keepdims=True)
    power = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = power.sum(-1, keepdims=True)
    want = power @ v / np.where(total == 0, 1, total)
    monkeypatch.setattr(reference, "_BLOCK", 1 << 12)  # several blocks
    np.testing.assert_allclose(reference.attention(problem, inputs.q, inputs.k, inputs.v)[0], want, rtol=1e-12, atol=1e-14)


def test_a_wrong_row_is_not_called_a_wrong_size():
    """One row in eight is another one's, three times as large: the size is off by the way."""
    reference = np.random.default_rng(0).standard_normal((8, 64))
    output = reference.copy()
    output[5] = 3 * reference[2]
    found = judge(output, reference, tolerance=0.01)
    assert found.verdict == "rows"
    assert found.detail.startswith("row [5] is off by")
    assert "times as large" in found.detail
    assert judge(1.5 * reference, reference, tolerance=0.01).detail == "the output is 1.5 times as large as the reference"


@pytest.mark.parametrize("wrong", [slice(200, 260), slice(0, 1), slice(3000, 4096)])
def test_a_size_that_a_wrong_row_changes_by_the_way_is_not_said(wrong):
    """The output is 1.0001 times as large, and no factor is missing."""
    reference = np.random.default_rng(0).standard_normal((128, 4096))
    output = reference.copy()
    output[88, wrong] += 0.3
    found = judge(output, reference, tolerance=2e-5)
    assert (found.verdict, found.worst_row) == ("rows", (88,))
    assert "row [88] is off by" in found.detail
    assert "times as large" not in found.detail


def test_places_of_a_part_are_those_of_the_whole():
    reference = np.random.default_rng(0).standard_normal((1, 128, 64))
    output = reference.copy()
    output[0, 89] += 1
    assert judge(output, reference, tolerance=0.01, first=(3, 2176, 0)).detail.startswith("row [3, 2265] is off by")
    output[0, 89, 5] = np.nan
    assert judge(output, reference, tolerance=0.01, first=(3, 2176)).detail.endswith("the first at [3, 2265, 5]")
