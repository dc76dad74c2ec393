"""Failures that others reported of attention kernels, each with the smallest input and the right value."""

import dataclasses
import math

import numpy as np
import pytest
from prefill_cases import check, outputs, problem

from nki_hf.problem import Mask, Problem
from nki_hf.testing import DISTRIBUTIONS, AttentionInputs, assert_matches_reference, attention_inputs


def one_head(q, k, v, **changes):
    """Inputs of one batch item and head from 2-D arrays; `changes` go to the problem, arrays to the inputs."""
    arrays = {name: changes.pop(name) for name in ("bias", "sink") if name in changes}
    q, k, v = (np.asarray(array, np.float32)[None, None] for array in (q, k, v))
    sizes = {
        "num_heads_q": 1,
        "seqlen_q": q.shape[2],
        "seqlen_kv": k.shape[2],
        "head_dim": q.shape[3],
        "head_dim_v": v.shape[3],
    }
    return AttentionInputs(problem=problem(**{**sizes, **changes}), q=q, k=k, v=v, **arrays)


def with_rows(inputs, rows):
    """The inputs with these bounds `(lo, hi)` of each query row."""
    lo, hi = np.array(rows, np.int32).T[:, None]
    return dataclasses.replace(inputs, lo=lo, hi=hi)


def weights_of(scores, **changes):
    """Attention weights and lse of one row whose unscaled scores are given: k holds them, v is the identity."""
    scores = np.asarray(scores, np.float32)
    inputs = one_head([[1.0]], scores[:, None], np.eye(len(scores)), softmax_scale=1.0, **changes)
    out, lse = outputs(inputs)
    return out[0, 0, 0], lse[0, 0, 0]


def test_softcap_applies_after_the_scale_and_before_the_mask():
    weights, _ = weights_of([10.0, 0.0], softcap=5.0)
    np.testing.assert_allclose(weights, [0.99200, 0.00800], atol=5e-5)


def test_the_sink_takes_its_share_and_no_value():
    weights, lse = weights_of([0.0, 0.0, 0.0])
    np.testing.assert_allclose(weights, [1 / 3] * 3, rtol=1e-6)
    np.testing.assert_allclose(lse, math.log(3), rtol=1e-6)
    weights, lse = weights_of([0.0, 0.0, 0.0], sink=np.zeros(1, np.float32))
    np.testing.assert_allclose(weights, [0.25] * 3, rtol=1e-6)
    np.testing.assert_allclose(lse, math.log(4), rtol=1e-6)


def test_each_query_head_has_its_own_unscaled_sink():
    sizes = {"num_heads_q": 4, "num_heads_kv": 2, "seqlen_q": 130, "seqlen_kv": 130, "softmax_scale": 0.01}
    mask = Mask(ahead=1, window=4)
    out, _, inputs = check(problem(**sizes, mask=mask, sink=True))
    without = outputs(attention_inputs(problem(**sizes, mask=mask)))[0]
    # Scores are near 0, so a row of four keys keeps 4 / (4 + exp(sink)) of its output.
    share = np.median(out / without, axis=(0, 2, 3))
    np.testing.assert_allclose(share, 4 / (4 + np.exp(inputs.sink)), rtol=0.02)


def test_the_scale_does_not_touch_the_bias():
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 4, 16))
    bias = np.array([-1.0, 0, 0, 0], np.float32).reshape(1, 1, 1, 4)
    inputs = one_head(q, k, v, bias=bias, softmax_scale=0.1, mask=Mask(bias="additive"))
    scores = q.astype(np.float32) @ k.T.astype(np.float32) * 0.1 + bias[0, 0]
    want = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(outputs(inputs)[0][0, 0], want, atol=1e-6)


@pytest.mark.parametrize("scale", [144**-0.5, 1.0, 3.0, -0.5, 0.0])
def test_a_scale_that_is_not_the_default_is_honoured(scale):
    check(problem(seqlen_q=130, seqlen_kv=140, head_dim=128, softmax_scale=scale, mask=Mask(q_offset=10, ahead=1)))


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["boolean", "additive", "one row", "bounds"])
def test_a_row_that_sees_no_key_is_zero_with_infinite_lse(kind, dtype, chip):
    mask = Mask(bias=kind, bias_rows=True) if kind in ("boolean", "additive") else Mask(runtime_bounds=True)
    inputs = attention_inputs(problem(seqlen_q=60, seqlen_kv=60, mask=mask, dtype=dtype))
    if kind == "one row":
        inputs = with_rows(inputs, [(0, 0) if row == 7 else (0, 60) for row in range(60)])
    out, lse = outputs(inputs, chip)
    assert_matches_reference(inputs, out, lse)
    empty = np.isneginf(inputs.expected[1])
    assert empty.any()
    assert not np.asarray(out, np.float32)[empty].any()
    assert np.isneginf(lse[empty]).all()
    assert np.isfinite(lse[~empty]).all()


def test_a_row_of_finfo_min_is_finite_and_leaves_the_others_alone():
    case = problem(seqlen_q=50, seqlen_kv=50, mask=Mask(bias="additive", bias_rows=True))
    inputs = attention_inputs(case)
    inputs.bias[...] = 0
    inputs.bias[:, :, 20] = np.finfo(np.float32).min
    out, lse = outputs(inputs)
    assert np.isfinite(out).all()
    assert np.isfinite(lse).all()
    np.testing.assert_allclose(out, inputs.expected[0], atol=1e-5)


@pytest.mark.parametrize(("window", "counts"), [(4, [1, 2, 3, 4, 4, 4, 4]), (1, [1] * 7), (7, range(1, 8)), (9, range(1, 8))])
def test_the_window_counts_the_query_itself(window, counts):
    inputs = one_head(np.zeros((7, 4)), np.zeros((7, 4)), np.eye(7), mask=Mask(ahead=1, window=window))
    out, lse = outputs(inputs)
    assert (out[0, 0] > 0).sum(-1).tolist() == list(counts)
    np.testing.assert_allclose(np.exp(lse[0, 0]), list(counts), rtol=1e-5)


@pytest.mark.parametrize(("done", "new"), [(8, 3), (300, 100)])
def test_a_later_chunk_sees_the_cached_keys(done, new):
    whole = attention_inputs(problem(seqlen_q=done + new, seqlen_kv=done + new, mask=Mask(ahead=1)))
    case = problem(seqlen_q=new, seqlen_kv=done + new, mask=Mask(q_offset=done, ahead=1))
    chunk = AttentionInputs(problem=case, q=whole.q[:, :, done:], k=whole.k, v=whole.v)
    np.testing.assert_allclose(outputs(chunk)[0], whole.expected[0][:, :, done:], atol=1e-5)


@pytest.mark.parametrize(("seqlen_q", "seqlen_kv"), [(6, 3), (400, 150)])
def test_more_queries_than_keys_leave_the_first_rows_empty(seqlen_q, seqlen_kv):
    case = problem(seqlen_q=seqlen_q, seqlen_kv=seqlen_kv, mask=Mask(q_offset=seqlen_kv - seqlen_q, ahead=1))
    out, lse, _ = check(case)
    assert not out[:, :, : seqlen_q - seqlen_kv].any()
    assert np.isneginf(lse[:, :, : seqlen_q - seqlen_kv]).all()
    assert np.isfinite(lse[:, :, seqlen_q - seqlen_kv :]).all()


@pytest.mark.parametrize("window", [1, 3])
def test_rows_behind_the_last_key_hide_none_from_the_rows_before_them(window):
    check(problem(seqlen_q=200, seqlen_kv=5, mask=Mask(ahead=1, window=window)))
    check(problem(seqlen_q=200, seqlen_kv=5, mask=Mask(q_offset=-150, ahead=1, window=window)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 192, 511, 513, 729, 1500])
def test_a_length_need_not_be_a_multiple_of_a_tile(length, causal):
    check(problem(num_heads_q=1, seqlen_q=length, seqlen_kv=length, mask=Mask(ahead=1 if causal else None)))


@pytest.mark.parametrize("head_dim", [1, 8, 32, 72, 80, 96, 128])
def test_the_default_scale_is_that_of_the_true_head_dim(head_dim):
    out, _, _ = check(problem(num_heads_q=1, seqlen_q=130, seqlen_kv=130, head_dim=head_dim, head_dim_v=head_dim))
    assert out.shape[-1] == head_dim


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(256, 256), (129, 200), (192, 128)])
def test_a_head_dim_above_the_partition_count_is_contracted_in_pieces(head_dim, head_dim_v, dtype):
    check(problem(seqlen_q=130, seqlen_kv=130, head_dim=head_dim, head_dim_v=head_dim_v, dtype=dtype, mask=Mask(ahead=1)))


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("heads", [(4, 1), (9, 3), (14, 2), (15, 5), (16, 8), (64, 8)])
def test_query_heads_use_the_kv_head_of_their_group(heads, lnc):
    check(problem(num_heads_q=heads[0], num_heads_kv=heads[1], seqlen_q=40, seqlen_kv=40, head_dim=16, head_dim_v=16), lnc=lnc)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="num_heads_q=6 does not divide into num_heads_kv=4"):
        Problem(batch=1, num_heads_q=6, num_heads_kv=4, seqlen_q=8, seqlen_kv=8, head_dim=8, head_dim_v=8)


def test_lse_is_a_natural_logarithm():
    _, lse = weights_of([1.0, 2.0, 3.0])
    np.testing.assert_allclose(lse, 3.407606, rtol=1e-6)
    assert lse.dtype == np.float32


def test_parts_of_the_keys_merge_to_the_whole():
    whole = attention_inputs(problem(seqlen_q=60))
    want, want_lse = outputs(whole)
    parts = []
    for begin, end in ((0, 70), (70, 130), (130, 200)):
        case = problem(seqlen_q=60, seqlen_kv=end - begin)
        part = AttentionInputs(problem=case, q=whole.q, k=whole.k[:, :, begin:end], v=whole.v[:, :, begin:end])
        parts.append(outputs(part))
    total = np.logaddexp.reduce([lse for _, lse in parts])
    merged = sum(out * np.exp(lse - total)[..., None] for out, lse in parts)
    np.testing.assert_allclose(total, want_lse, atol=1e-6)
    np.testing.assert_allclose(merged, want, atol=1e-6)


@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
def test_float32_is_float32(chip):
    out, lse, inputs = check(problem(num_heads_q=4, num_heads_kv=4, seqlen_q=256, seqlen_kv=256), chip)
    assert np.abs(out - inputs.expected[0]).max() <= 1e-5
    assert np.abs(lse - inputs.expected[1]).max() <= 1e-5


def test_sums_of_many_bf16_terms_are_float32():
    case = problem(num_heads_q=1, seqlen_q=2, seqlen_kv=4096, head_dim_v=1, dtype="bfloat16")
    inputs = attention_inputs(case, distribution="equal")
    out, lse = outputs(inputs)
    np.testing.assert_allclose(np.asarray(out, np.float64), inputs.expected[0], rtol=0.01, atol=2e-4)
    np.testing.assert_allclose(lse, inputs.expected[1], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_scores_of_every_kind_are_right(distribution, dtype):
    check(problem(seqlen_q=140, seqlen_kv=700, dtype=dtype), distribution=distribution)


@pytest.mark.parametrize("changes", [{"softmax_scale": 1e-9}, {"softmax_scale": 40.0}, {"softcap": 300.0}, {"softcap": 1e-3}])
def test_rows_without_keys_are_empty_at_any_scale(changes):
    case = problem(seqlen_q=150, seqlen_kv=130, mask=Mask(runtime_bounds=True), **changes)
    inputs = with_rows(attention_inputs(case), [(0, 0) if row % 9 == 0 else (row // 3, 130) for row in range(150)])
    out, lse = outputs(inputs)
    assert_matches_reference(inputs, out, lse)
    assert np.isneginf(lse[:, :, ::9]).all()
