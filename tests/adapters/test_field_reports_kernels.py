"""Failures that were reported elsewhere, as regression tests of single calls. The numbers are those of the docs page."""

import math
import warnings

import pytest
import torch
from adapter_calls import layer

import nki_hf
from nki_hf import UnsupportedProblem
from nki_hf.adapters.call_log import FallbackWarning
from nki_hf.adapters.transformers import nki_attention


@pytest.fixture(autouse=True)
def _strict():
    with nki_hf.using(strict=True):
        yield


def tensors(batch=1, heads=2, heads_kv=None, seqlen_q=16, seqlen_kv=None, head_dim=16, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    kv = (batch, heads_kv or heads, seqlen_kv or seqlen_q, head_dim)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in ((batch, heads, seqlen_q, head_dim), kv, kv)]


def reference(q, k, v, mask=None, scale=None, softcap=None, sink=None):
    """float64: out, lse; rows that see no key are zeros and -inf."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask.double()
    joined = scores
    if sink is not None:
        joined = torch.cat([scores, sink.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    lse = torch.logsumexp(joined, -1)
    probs = torch.exp(scores - lse.masked_fill(lse == float("-inf"), 0)[..., None])
    return probs @ v, lse


def triangle(seqlen_q, seqlen_kv):
    return (torch.arange(seqlen_kv) <= torch.arange(seqlen_q)[:, None] + seqlen_kv - seqlen_q)[None, None]


def worst(found, expected):
    return float((found.double() - expected).abs().max())


def test_an_unusable_request_is_an_error_in_strict_and_else_warned_once_and_counted():
    q, k, v = tensors(dtype=torch.float64)
    with pytest.raises(UnsupportedProblem, match="dtype=float64"):
        nki_hf.attention(q, k, v)
    nki_hf.explain(reset=True)
    with warnings.catch_warnings(record=True) as warned, nki_hf.using(strict=False):
        warnings.simplefilter("always")
        for _ in range(3):
            nki_hf.attention(q, k, v)
    assert [(each.category, "dtype=float64" in str(each.message)) for each in warned] == [(FallbackWarning, True)]
    assert nki_hf.explain().fallbacks == 3


def test_the_scale_does_not_touch_the_mask():
    q, k, v = tensors(heads=1, seqlen_q=4)
    mask = torch.zeros(1, 1, 4, 4)
    mask[..., 0] = -1.0
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.1)
    assert worst(nki_hf.attention(q, k, v, mask, scale=0.1), expected) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_that_sees_no_key_is_zero_with_finite_gradients(dtype):
    q, k, v = (tensor.requires_grad_() for tensor in tensors(dtype=dtype, seqlen_q=4))
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    mask[..., 1, :] = False
    out, lse = nki_hf.attention(q, k, v, mask, return_lse=True)
    out.float().square().sum().backward()
    assert torch.equal(out[:, :, 1], torch.zeros_like(out[:, :, 1]))
    assert (lse[:, :, 1] == float("-inf")).all()
    assert all(tensor.grad.isfinite().all() for tensor in (q, k, v))
    assert (q.grad[:, :, 1] == 0).all()


def test_a_row_of_finfo_min_is_finite_and_leaves_the_others_alone():
    q, k, v = (tensor.requires_grad_() for tensor in tensors(seqlen_q=4))
    mask = torch.randn(1, 1, 4, 4)
    mask[..., 1, :] = torch.finfo(torch.float32).min
    out = nki_hf.attention(q, k, v, mask)
    out.square().sum().backward()
    rows = torch.tensor([0, 2, 3])
    assert out.isfinite().all()
    assert worst(out[:, :, rows], reference(q, k, v, mask)[0][:, :, rows]) <= 1e-5
    assert all(tensor.grad.isfinite().all() for tensor in (q, k, v))


def test_an_explicit_offset_lets_a_later_chunk_see_the_context():
    q, k, v = tensors(seqlen_q=3, seqlen_kv=11)
    expected, _ = reference(q, k, v, triangle(3, 11))
    assert worst(nki_hf.attention(q, k, v, causal=True, q_offset=8), expected) <= 1e-5
    assert worst(nki_hf.attention(q, k, v, causal=True), expected) <= 1e-5


def test_more_queries_than_keys_leave_the_first_rows_zero():
    q, k, v = tensors(seqlen_q=6, seqlen_kv=3)
    out, lse = nki_hf.attention(q, k, v, causal=True, return_lse=True)
    expected, expected_lse = reference(q, k, v, triangle(6, 3))
    assert torch.equal(out[:, :, :3], torch.zeros(1, 2, 3, 16))
    assert (lse[:, :, :3] == float("-inf")).all()
    assert worst(out, expected) <= 1e-5
    assert worst(lse[:, :, 3:], expected_lse[:, :, 3:]) <= 1e-5


def test_one_pattern_in_four_forms_of_mask():
    q, k, v = tensors()
    pattern = torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(1)) > 0.5
    pattern[..., 0] = True
    expected, _ = reference(q, k, v, pattern)
    for low in (torch.finfo(torch.float32).min, float("-inf"), -1e4):
        assert worst(nki_hf.attention(q, k, v, torch.where(pattern, 0.0, low)), expected) <= 1e-5
    assert worst(nki_hf.attention(q, k, v, pattern), expected) <= 1e-5


def test_a_float32_mask_with_bfloat16_queries():
    q, k, v = tensors(2, 4, seqlen_q=8, dtype=torch.bfloat16)
    pattern = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(1)) > 0.5
    pattern[..., 0] = True
    by_float = nki_hf.attention(q, k, v, torch.where(pattern, 0.0, torch.finfo(torch.float32).min))
    exact, _ = reference(q, k, v, pattern)
    sdpa = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=pattern)
    assert by_float.isfinite().all()
    assert worst(by_float, exact) <= 2 * worst(sdpa, exact)


@pytest.mark.parametrize("shape", [(3, 1, 8), (8,)])
def test_position_ids_of_any_rank_are_not_read(shape):
    q, k, v = tensors(seqlen_q=8)
    positions = torch.zeros(shape, dtype=torch.long)
    plain, _ = nki_attention(layer(), q, k, v, None)
    assert torch.equal(nki_attention(layer(), q, k, v, None, position_ids=positions)[0], plain)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 192, 511, 513, 729, pytest.param(1500, marks=pytest.mark.slow)])
def test_lengths_off_the_tile_forward_and_backward(length, causal):
    q, k, v = (tensor.requires_grad_() for tensor in tensors(heads=1, seqlen_q=length, head_dim=64))
    out = nki_hf.attention(q, k, v, causal=causal)
    out.square().sum().backward()
    exact = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]
    expected, _ = reference(*exact, triangle(length, length) if causal else None)
    expected.square().sum().backward()
    assert worst(out, expected.detach()) <= 1e-5
    for found, wanted in zip((q, k, v), exact, strict=True):
        assert worst(found.grad, wanted.grad) <= 2e-5 * max(1.0, float(wanted.grad.abs().max()))


@pytest.mark.parametrize("head_dim", [8, 32, 64, 72, 80, 96, 128])
def test_the_default_scale_and_the_width_are_those_of_the_true_head_dim(head_dim):
    q, k, v = tensors(seqlen_q=20, head_dim=head_dim)
    out = nki_hf.attention(q, k, v)
    assert out.shape[-1] == head_dim
    assert worst(out, reference(q, k, v, scale=head_dim**-0.5)[0]) <= 1e-5


@pytest.mark.parametrize("heads", [(4, 1), (9, 3), (14, 2), (15, 5), (16, 8), (64, 8)])
@pytest.mark.parametrize("lnc", [1, 2])
def test_query_head_h_uses_kv_head_h_over_the_ratio_on_one_core_and_two(heads, lnc):
    q, k, v = tensors(heads=heads[0], heads_kv=heads[1], seqlen_q=5)
    with nki_hf.using(lnc=lnc):
        assert worst(nki_hf.attention(q, k, v, causal=True), reference(q, k, v, triangle(5, 5))[0]) <= 1e-5


def test_heads_that_do_not_divide_are_an_error():
    q, _, _ = tensors(heads=6)
    _, k, v = tensors(heads=4)
    with pytest.raises(UnsupportedProblem, match="num_heads_q=6"):
        nki_hf.attention(q, k, v)


def test_gradients_of_k_and_v_are_summed_over_the_group():
    q, k, v = (tensor.requires_grad_() for tensor in tensors(heads=4, heads_kv=2, seqlen_q=3, head_dim=8))
    nki_hf.attention(q, k, v, causal=True).sum().backward()
    exact = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]
    reference(*exact, triangle(3, 3))[0].sum().backward()
    assert v.grad.shape == k.grad.shape == (1, 2, 3, 8)
    assert float(v.grad.sum()) == pytest.approx(4 * 3 * 8)
    for found, wanted in zip((q, k, v), exact, strict=True):
        assert worst(found.grad, wanted.grad) <= 1e-5


def test_lse_is_a_natural_logarithm_of_float32():
    q = torch.ones(1, 1, 1, 1)
    k = torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 3, 1)
    _, lse = nki_hf.attention(q, k, k, scale=1.0, return_lse=True)
    assert (lse.shape, lse.dtype) == ((1, 1, 1), torch.float32)
    assert float(lse) == pytest.approx(3.407606, abs=1e-5)


def test_parts_merge_by_lse_into_the_whole():
    q, k, v = tensors(seqlen_q=4, seqlen_kv=200)
    whole, whole_lse = nki_hf.attention(q, k, v, return_lse=True)
    out, lse = torch.zeros_like(whole), torch.full((1, 2, 4), float("-inf"))
    for start, stop in ((0, 70), (70, 70), (70, 71), (71, 200)):
        part, part_lse = nki_hf.attention(q, k[:, :, start:stop], v[:, :, start:stop], return_lse=True)
        total = torch.logaddexp(lse, part_lse)
        shift = total.masked_fill(total == float("-inf"), 0)
        out = out * torch.exp(lse - shift)[..., None] + part * torch.exp(part_lse - shift)[..., None]
        lse = total
    assert worst(out, whole.double()) <= 1e-6
    assert worst(lse, whole_lse.double()) <= 2e-6


def test_float32_stays_float32():
    q, k, v = tensors(heads=4, seqlen_q=256, head_dim=64)
    assert worst(nki_hf.attention(q, k, v), reference(q, k, v)[0]) <= 1e-5


def test_sums_of_bfloat16_probabilities_are_not_bfloat16():
    q, k = torch.zeros(1, 1, 1, 16, dtype=torch.bfloat16), torch.zeros(1, 1, 4096, 16, dtype=torch.bfloat16)
    v = torch.randn(1, 1, 4096, 16, generator=torch.Generator().manual_seed(0)).bfloat16().abs()
    out, lse = nki_hf.attention(q, k, v, return_lse=True)
    mean = v.double().mean(2)
    assert float(((out[:, :, 0].double() - mean) / mean).abs().max()) <= 2**-8
    assert float(lse) == pytest.approx(math.log(4096), abs=1e-5)


@pytest.mark.parametrize("kind", ["normal", "ten times normal", "one outlier key", "all equal", "all negative"])
def test_other_data_than_uniform(kind):
    q, k, v = tensors(seqlen_q=130, head_dim=64)
    if kind == "ten times normal":
        q, k = q * 10, k * 10
    elif kind == "one outlier key":
        k[:, :, 77] *= 100
    elif kind == "all equal":
        q, k = torch.ones_like(q), torch.ones_like(k)
    elif kind == "all negative":
        q, k = q.abs(), -k.abs() * 4
    expected, expected_lse = reference(q, k, v, triangle(130, 130))
    eager = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    out, lse = nki_hf.attention(q, k, v, causal=True, return_lse=True)
    assert worst(out, expected) <= max(1e-5, 2 * worst(eager, expected))
    assert float(((lse.double() - expected_lse) / expected_lse.abs().clamp_min(1)).abs().max()) <= 1e-5
