"""flash_decode on values that are extreme, not finite or hidden, each against what the oracle or one row says."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from decode_cases import outputs, problem

from nki_hf.chips import CHIPS
from nki_hf.kernels import reference
from nki_hf.problem import Mask
from nki_hf.testing import assert_matches_reference, attention_inputs

BF16 = ml_dtypes.bfloat16


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 20.0, 50.0])
def test_scores_of_any_size_and_values_of_any_size(dtype, size):
    """Row maxima of up to hundreds of nats in one tile, |v| from the smallest to the largest: no silent failure."""
    case = problem(seqlen_kv=300, dtype=dtype, num_heads_q=8, seqlen_q=2)
    inputs = attention_inputs(case)
    scale = min(size, 40.0) if dtype == "float16" else size
    k = (inputs.k.astype(np.float32) * np.float32(scale)).astype(inputs.k.dtype)
    with np.errstate(over="ignore"):
        v = (inputs.v.astype(np.float32) * np.float32(1 / scale if dtype == "float16" else 1e25)).astype(inputs.v.dtype)
    v = np.where(np.isfinite(v.astype(np.float32)), v, inputs.v)
    inputs = dataclasses.replace(inputs, k=k, v=v)
    out, lse = outputs(inputs)
    assert_matches_reference(inputs, out, lse)


@pytest.mark.parametrize("size", [300.0, 3000.0, 20_000.0])
def test_a_key_that_outweighs_all_others_gives_its_value_exactly(size):
    """The maximum is not rounded: the probability of a score of thousands of nats is 1, and so is the sum."""
    case = problem(seqlen_kv=300, dtype="bfloat16", num_heads_q=2)
    inputs = attention_inputs(case)
    q, k = inputs.q.astype(np.float32), inputs.k.astype(np.float32) * 0.01
    for head in range(2):
        k[0, head, 77] = q[0, head, 0] * size / (case.scale * (q[0, head, 0] ** 2).sum())
    out, lse = outputs(dataclasses.replace(inputs, k=k.astype(inputs.k.dtype)))
    np.testing.assert_array_equal(out[0, :, 0], inputs.v[0, :, 77])
    np.testing.assert_allclose(lse, size, rtol=0.01)


@pytest.mark.parametrize("chip", list(CHIPS))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("heads_q", "seqlen_q"), [(4, 1), (8, 5), (40, 9)])
def test_what_is_not_finite_in_a_query_row_stays_in_that_row(heads_q, seqlen_q, dtype, chip):
    case = problem(num_heads_q=heads_q, num_heads_kv=2, seqlen_q=seqlen_q, seqlen_kv=300, dtype=dtype)
    inputs = attention_inputs(case)
    clean = outputs(inputs, chip)
    for bad in (np.nan, np.inf):
        q = inputs.q.copy()
        q[0, 1, 0, 7] = bad
        found = outputs(dataclasses.replace(inputs, q=q), chip)
        assert not np.isfinite(found[0][0, 1, 0].astype(np.float32)).any()
        for one, other in zip(found, clean, strict=True):
            one[0, 1, 0] = other[0, 1, 0]
            np.testing.assert_array_equal(one, other)


def test_an_infinite_key_is_no_key_for_rows_that_it_points_away_from():
    """Its score is -inf there, as in a softmax that is written out."""
    case = problem(num_heads_q=8, num_heads_kv=1, seqlen_q=2, seqlen_kv=300)
    inputs = attention_inputs(case)
    k = inputs.k.copy()
    k[0, 0, 150, 3] = np.inf
    out, lse = outputs(dataclasses.replace(inputs, k=k))
    without = np.delete(np.arange(300), 150)
    scores = np.einsum("hqd,kd->hqk", inputs.q[0].astype(np.float64), inputs.k[0, 0, without].astype(np.float64)) * case.scale
    away = inputs.q[0, :, :, 3] < 0
    assert 0 < away.sum() < away.size
    weights = np.exp(scores)
    expected = weights @ inputs.v[0, 0, without] / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(out[0][away], expected[away], atol=1e-5)
    np.testing.assert_allclose(lse[0][away], np.log(weights.sum(-1))[away], atol=1e-5)


def _split(size):
    """A float32 as the sum of three numbers of bfloat16."""
    parts, rest = [], float(np.float32(size))
    for _ in range(3):
        parts.append(float(BF16(rest)))
        rest -= parts[-1]
    return parts


@pytest.mark.parametrize("chip", list(CHIPS))
@pytest.mark.parametrize("seqlen_q", [1, 8])
@pytest.mark.parametrize(
    ("dtype", "scale", "softcap"),
    [
        ("bfloat16", 1.0, None),
        ("bfloat16", -0.125, None),
        ("float32", 1e-20, None),
        ("float32", 1e6, None),
        ("bfloat16", 1.0, 20.0),
        ("float32", 1e-3, 1e6),
    ],
)
def test_a_hidden_key_counts_for_nothing_whatever_its_score(dtype, scale, softcap, seqlen_q, chip):
    """What is added to hide a key must not cancel with its score. The values of all visible keys are 1."""
    keys, lo, hi = 400, 64, 192
    case = problem(
        num_heads_q=2,
        num_heads_kv=1,
        seqlen_q=seqlen_q,
        seqlen_kv=keys,
        head_dim=8,
        head_dim_v=8,
        dtype=dtype,
        softmax_scale=scale,
        softcap=softcap,
        mask=Mask(runtime_bounds=True),
    )
    inputs = attention_inputs(case)
    hidden = (np.arange(keys) < lo) | (np.arange(keys) >= hi)
    for size in (1e28, float(BF16(1e30)), 3.0e38, float(ml_dtypes.finfo(BF16).max)):
        inputs.q[:], inputs.k[:], inputs.v[:] = 0, 0, 1
        inputs.q[..., :3], inputs.k[:, :, hidden, :3] = _split(size), 1
        inputs.k[:, :, 1::2] *= -1
        inputs.v[:, :, hidden] = 1000
        inputs.lo[:], inputs.hi[:] = lo, hi
        out, lse = outputs(inputs, chip)
        assert (out == 1).all(), size
        np.testing.assert_allclose(lse, np.log(hi - lo), rtol=1e-6)


@pytest.mark.parametrize("chip", list(CHIPS))
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("size", [-1e28, -1e30, -3e38], ids=["1e28", "1e30", "3e38"])
def test_a_visible_key_counts_however_low_its_score(size, sink, lnc, chip):
    """All scores of a row are the same: the output is the mean of the values, beside a sink that is as low."""
    case = problem(
        num_heads_q=2, num_heads_kv=1, seqlen_q=2, seqlen_kv=2100, head_dim=8, head_dim_v=8, softmax_scale=0.5, sink=sink
    )
    inputs = attention_inputs(case)
    inputs.q[:], inputs.k[:] = 0, 0
    inputs.q[..., :3], inputs.k[..., :3] = _split(size), 1
    if sink:
        inputs.sink[:] = 1.8 * size * 0.5
    out, lse = outputs(inputs, chip, lnc)
    np.testing.assert_allclose(out, inputs.v.astype(np.float64).mean(2, keepdims=True).repeat(2, 1).repeat(2, 2), atol=1e-6)
    np.testing.assert_allclose(lse, 0.5 * size, rtol=1e-6)


SINKS = ((-np.inf, -3.4e38, -3e38), (-2e38, -1e30, -1e28), (-1e27, -1e8, 3e38), (np.inf, np.nan, 2.0))


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(("scale", "softcap"), [(None, None), (1e-9, None), (1e5, None), (None, 3.0)])
def test_rows_with_and_without_keys_beside_a_sink_of_any_value(scale, softcap, lnc, chip):
    """One kv head, so that two cores share its chunks; a sequence without keys, and one whose first row alone has none."""
    mask = Mask(q_offset=2297, ahead=1, runtime_bounds=True)
    case = problem(
        batch=3,
        num_heads_q=3,
        num_heads_kv=1,
        seqlen_q=2,
        seqlen_kv=2300,
        sink=True,
        mask=mask,
        softmax_scale=scale,
        softcap=softcap,
        head_dim=16,
        head_dim_v=16,
    )
    lo, hi = np.zeros((3, 2), np.int32), np.array([[0, 2300], [0, 0], [70, 300]], np.int32)
    inputs = dataclasses.replace(attention_inputs(case), lo=lo, hi=hi)
    for sinks in SINKS:
        given = dataclasses.replace(inputs, sink=np.array(sinks, np.float32))
        out, lse = outputs(given, chip, lnc)
        with np.errstate(invalid="ignore"):  # of a sink of inf
            want, want_lse = reference.attention(case, given.q, given.k, given.v, lo=lo, hi=hi, sink=given.sink)
        np.testing.assert_allclose(out, want, atol=2e-3 if scale == 1e5 else 2e-5)
        # Without keys the lse is the sink; the kernel calls what is near float32's lowest -inf.
        want_lse = np.where(want_lse < -2.4e38, -np.inf, want_lse)
        np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=1e-5)
