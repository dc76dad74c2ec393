"""The verdict: right output passes, nonsense fails, each kind with its own remark."""

import numpy as np
import pytest

from nki_hf.tools.model_bench.accuracy import MAX_WORST_ROW_RATIO, Baseline, baseline, compare

NOISE = 0.01
EAGER = Baseline(rms_error=NOISE, worst_row_rms=2 * NOISE)


@pytest.fixture
def reference(rng):
    return rng.standard_normal((2, 24, 16)).astype(np.float32)


@pytest.fixture
def valid():
    return np.ones((2, 24), bool)


def _noisy(reference, rng, rms):
    noise = rng.standard_normal(reference.shape)
    return reference + noise * rms / np.sqrt(np.mean(noise**2))


def test_error_of_the_size_of_eager_passes(reference, valid, rng):
    found = compare(_noisy(reference, rng, NOISE), reference, valid=valid, against=EAGER)
    assert found.passed
    assert found.rms_ratio == pytest.approx(1.0, rel=1e-5)
    assert found.remark == ""


def test_the_limit_is_one_and_a_half_times_eager(reference, valid, rng):
    for factor, passes in ((1.49, True), (1.51, False)):
        found = compare(_noisy(reference, rng, factor * NOISE), reference, valid=valid, against=EAGER)
        assert found.passed is passes


def _swapped_heads(out):
    return np.concatenate([out[..., 8:], out[..., :8]], axis=-1)


def _truncated_tail(out):
    out = out.copy()
    out[:, -1] = 0
    return out


@pytest.mark.parametrize(
    ("spoil", "remark"),
    [
        (np.zeros_like, "all zeros"),
        (lambda out: out * 1.5, "times that of eager"),
        (_swapped_heads, "times that of eager"),
        (_truncated_tail, "times that of eager"),
        (lambda out: np.full_like(out, np.nan), "48 of 48 rows are not finite, first: prompt 0, token 0"),
        (lambda out: out[:, :-1], "shape [2, 23, 16], the reference [2, 24, 16]"),
    ],
    ids=["zeros", "scaled", "swapped_heads", "truncated_tail", "nan", "short"],
)
def test_nonsense_fails_and_is_named(reference, valid, spoil, remark):
    found = compare(spoil(reference), reference, valid=valid, against=EAGER)
    assert not found.passed
    assert remark in found.remark


def test_nan_in_both_fails(reference, valid):
    broken = reference.copy()
    broken[0, 3] = np.nan
    assert not compare(broken, broken, valid=valid, against=EAGER).passed


def test_cosine_is_blind_to_scale_and_does_not_decide(reference, valid):
    found = compare(reference * 1.5, reference, valid=valid, against=EAGER)
    assert found.cosine == pytest.approx(1.0)
    assert not found.passed


def test_figures_match_their_definitions(reference, valid, rng):
    out = _noisy(reference, rng, 0.1).astype(np.float32)
    out[1, 7] += 3
    found = compare(out, reference, valid=valid, against=EAGER)
    error = out.astype(np.float64) - reference
    assert found.mse == pytest.approx(np.mean(error**2))
    assert found.max_abs == pytest.approx(np.abs(error).max())
    assert found.worst_row == (1, 7)
    assert found.worst_row_rms == pytest.approx(np.sqrt(np.mean(error[1, 7] ** 2)))
    assert found.rms_error == pytest.approx(np.sqrt(np.mean(error**2)))
    assert found.rms_ratio == pytest.approx(found.rms_error / NOISE)
    assert found.worst_row_ratio == pytest.approx(found.worst_row_rms / (2 * NOISE))


def test_padding_rows_do_not_count(reference, valid):
    out = reference.copy()
    out[0, :5] = np.nan
    valid[0, :5] = False
    assert compare(out, reference, valid=valid, against=EAGER).passed


def test_nothing_to_compare_is_no_pass(reference, valid):
    assert not compare(reference, reference, valid=~valid, against=EAGER).passed


def test_the_baseline_is_eagers_error_over_all_rows_and_in_its_worst(reference, valid, rng):
    eager = _noisy(reference, rng, NOISE)
    eager[1, 5] += 0.5
    eager[0, 0] += 10
    valid[0, 0] = False
    error = eager.astype(np.float64) - reference
    found = baseline(eager, reference, valid=valid)
    assert found.rms_error == pytest.approx(np.sqrt(np.mean(error[valid] ** 2)))
    assert found.worst_row_rms == pytest.approx(np.sqrt(np.mean(error[1, 5] ** 2)))


def _zero(out, row):
    out[row] = 0


def _negate(out, row):
    out[row] *= -1


def _halve(out, row):
    out[row] *= 0.5


def _of_another_token(out, row):
    out[row] = out[row[0], row[1] - 1]


@pytest.mark.parametrize("spoil", [_zero, _negate, _halve, _of_another_token])
@pytest.mark.parametrize(("batch", "tokens", "wrong"), [(1, 16384, 4), (1, 16384, 1), (1, 2048, 1), (4, 512, 1)])
def test_a_few_wrong_rows_among_thousands_fail_and_are_named(rng, spoil, batch, tokens, wrong):
    """The RMS error over all rows does not see them: 4 rows of zeros among 16,384 raise it by a fraction."""
    reference = rng.standard_normal((batch, tokens, 16)).astype(np.float32)
    valid = np.ones((batch, tokens), bool)
    eager, right = (_noisy(reference, rng, 0.02) for _ in range(2))
    against = baseline(eager, reference, valid=valid)
    assert compare(right, reference, valid=valid, against=against).passed
    for row in rng.choice(np.arange(1, tokens), wrong, replace=False):
        spoil(right, (batch - 1, row))
    found = compare(right, reference, valid=valid, against=against)
    assert not found.passed
    assert found.worst_row_ratio > MAX_WORST_ROW_RATIO
    assert f"prompt {found.worst_row[0]}, token {found.worst_row[1]} has" in found.remark or found.rms_ratio > 1.5
    assert found.worst_row[0] == batch - 1


def test_the_limit_of_a_row_is_twice_eagers_worst(reference, valid):
    for factor, passes in ((1.99, True), (2.01, False)):
        out = reference.copy()
        out[1, 7] += factor * EAGER.worst_row_rms
        found = compare(out, reference, valid=valid, against=Baseline(rms_error=1.0, worst_row_rms=EAGER.worst_row_rms))
        assert found.passed is passes
