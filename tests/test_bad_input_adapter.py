"""Bad input on the adapter's road: named, counted or refused; never a wrong number."""

import builtins
import warnings

import pytest
import torch

import nki_hf
from nki_hf import UnsupportedProblem
from nki_hf.adapters.ledger import FallbackWarning


def tensors(batch=1, heads=4, heads_kv=2, seqlen_q=5, seqlen_kv=7, head_dim=8, head_dim_v=8, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = (
        (batch, heads, seqlen_q, head_dim),
        (batch, heads_kv, seqlen_kv, head_dim),
        (batch, heads_kv, seqlen_kv, head_dim_v),
    )
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def sdpa(q, k, v, **options):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda q, k, v: (q[0], k, v), r"q.shape=\[4, 5, 8\].*4 axes"),
        (lambda q, k, v: (q, k[..., None], v), r"k.shape=.*4 axes"),
        (lambda q, k, v: (q, k[..., :4], v), r"k.shape=.*head_dim, 8"),
        (lambda q, k, v: (q, k, v[:, :, :3]), r"v.shape=.*\[1, 2, 7\]"),
        (lambda q, k, v: (q[:, :3], k, v), r"num_heads_q=3.*multiple of num_heads_kv=2"),
        (lambda q, k, v: (q.expand(2, -1, -1, -1), k.repeat(3, 1, 1, 1), v.repeat(3, 1, 1, 1)), r"k.shape=.*batch, 2, or 1"),
    ],
)
def test_wrong_rank_or_sizes_are_refused_by_name_with_the_allowed_value(change, text):
    with pytest.raises(UnsupportedProblem, match=text):
        nki_hf.attention(*change(*tensors()))


def test_six_heads_over_four_kv_heads_are_refused():
    with pytest.raises(UnsupportedProblem, match="num_heads_q=6"):
        nki_hf.attention(*tensors(heads=6, heads_kv=4))


def _counted_fallback(q, k, v, text):
    with nki_hf.using(strict=True), pytest.raises(UnsupportedProblem, match=text):
        nki_hf.attention(q, k, v)
    nki_hf.explain(reset=True)
    with pytest.warns(FallbackWarning, match=text):
        out = nki_hf.attention(q, k, v)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nki_hf.attention(q, k, v)  # the same reason warns once
    report = nki_hf.explain()
    assert (report.calls, report.fallbacks) == (2, 2)
    assert [count for reason, count in report.reasons().items()] == [2]
    return out


def test_float64_is_a_counted_fallback():
    q, k, v = tensors(dtype=torch.float64)
    torch.testing.assert_close(_counted_fallback(q, k, v, "dtype=float64"), sdpa(q, k, v))


def test_a_head_dim_above_256_is_a_counted_fallback():
    q, k, v = tensors(head_dim=260, head_dim_v=260)
    out = _counted_fallback(q[..., :260], k[..., :260], v[..., :16], "head_dim=260 .*1 to 256")
    torch.testing.assert_close(out, sdpa(q, k, v[..., :16]), rtol=1e-5, atol=1e-5)


def test_mixed_dtypes_are_named():
    q, k, v = tensors()
    with nki_hf.using(strict=True), pytest.raises(UnsupportedProblem, match=r"dtype=float32\+float32\+bfloat16"):
        nki_hf.attention(q, k, v.bfloat16())


def test_mixed_dtypes_under_autocast_take_its_dtype():
    q, k, v = tensors()
    with nki_hf.using(strict=True), torch.autocast("cpu", dtype=torch.bfloat16):
        out = nki_hf.attention(q, k, v.bfloat16())
    expected = sdpa(q, k, v)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=3e-2, atol=3e-2)


def test_integer_tensors_are_refused_since_torch_refuses_them_too():
    q, k, v = (tensor.long() for tensor in tensors())
    with pytest.raises(UnsupportedProblem, match=r"dtype=int64.*bfloat16, float16, float32"):
        nki_hf.attention(q, k, v)


def test_nan_reaches_only_the_rows_that_see_it():
    q, k, v = tensors(seqlen_q=150, seqlen_kv=150)
    clean = nki_hf.attention(q, k, v, causal=True)
    q[0, 1, 20], k[0, 1, 140] = float("nan"), float("nan")
    out = nki_hf.attention(q, k, v, causal=True)
    touched = torch.zeros(1, 4, 150, dtype=torch.bool)
    touched[0, 1, 20] = True
    touched[0, 2:, 140:] = True  # kv head 1 serves query heads 2 and 3
    assert torch.equal(out.isnan().any(-1), touched)
    assert torch.equal(out[~touched], clean[~touched])


def test_a_nan_in_v_reaches_every_row_that_sees_it_and_no_other_tile():
    q, k, v = tensors(seqlen_q=300, seqlen_kv=300)
    clean = nki_hf.attention(q, k, v, causal=True)
    v[0, 0, 290] = float("nan")
    out = nki_hf.attention(q, k, v, causal=True)
    assert out[0, :2, 290:].isnan().all()
    assert torch.equal(out[0, 2:], clean[0, 2:])
    assert torch.equal(out[0, :2, :256], clean[0, :2, :256])


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"seqlen_q": 0}])
def test_nothing_asked_is_an_empty_result(sizes):
    q, k, v = tensors(**sizes)
    with nki_hf.using(strict=True):
        out, lse = nki_hf.attention(q, k, v, causal=True, return_lse=True)
    assert out.shape == q.shape
    assert lse.shape == q.shape[:3]


@pytest.mark.parametrize("sink", [None, torch.tensor([0.5, -1.0, 2.0, 0.0])])
def test_without_keys_the_output_is_zero_and_lse_is_minus_infinity_or_the_sink(sink):
    with nki_hf.using(strict=True):
        out, lse = nki_hf.attention(*tensors(seqlen_kv=0), sink=sink, return_lse=True)
    assert torch.equal(out, torch.zeros(1, 4, 5, 8))
    expected = torch.full((4,), float("-inf")) if sink is None else sink
    assert torch.equal(lse, expected[None, :, None].expand(1, 4, 5))


def test_gradients_through_a_call_without_keys_are_zero():
    q, k, v = (tensor.requires_grad_() for tensor in tensors(seqlen_kv=0))
    nki_hf.attention(q, k, v).sum().backward()
    assert torch.equal(q.grad, torch.zeros_like(q))
    assert k.grad.shape == k.shape


def test_strided_and_expanded_views_give_the_bits_of_contiguous_tensors():
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2, 9, 4, 16, generator=generator).transpose(1, 2)[..., ::2]
    k = torch.randn(2, 2, 8, 11, generator=generator).transpose(2, 3)
    v = torch.randn(2, 1, 1, 8, generator=generator).expand(2, 2, 11, 8)
    mask = (torch.rand(2, 1, 9, 22, generator=generator) > 0.3)[..., ::2].expand(2, 4, 9, 11)
    with nki_hf.using(strict=True):
        views = nki_hf.attention(q, k, v, mask)
        copies = nki_hf.attention(q.contiguous(), k.contiguous(), v.contiguous(), mask.contiguous())
    assert torch.equal(views, copies)


def test_one_of_lo_and_hi_is_refused():
    with pytest.raises(ValueError, match="lo and hi"):
        nki_hf.attention(*tensors(), lo=torch.zeros(1, 5, dtype=torch.int32))


def test_causal_and_another_ahead_exclude_each_other():
    with pytest.raises(ValueError, match="ahead=3"):
        nki_hf.attention(*tensors(), causal=True, ahead=3)


def test_an_unknown_device_is_a_named_reason():
    q, k, v = (tensor.to("meta") for tensor in tensors())
    with nki_hf.using(strict=True), pytest.raises(UnsupportedProblem, match="device=meta"):
        nki_hf.attention(q, k, v)


def test_a_missing_torch_is_one_sentence(monkeypatch):
    real = builtins.__import__

    def blocked(name, *args, **kwargs):
        if name == "torch":
            raise ImportError("No module named 'torch'")
        return real(name, *args, **kwargs)

    from nki_hf.backends.torch_reference import TorchReferenceBackend

    monkeypatch.setattr(builtins, "__import__", blocked)
    assert 'pip install "nki_hf[hf]"' in TorchReferenceBackend().unavailable()


@pytest.mark.parametrize("shape", [(8,), (2,), (1, 4, 5), (1, 8, 1, 1), (1, 4, 5, 2)])
def test_sinks_of_the_wrong_length_are_refused_with_both_shapes(shape):
    """Tensor parallelism that shards the heads but not the sinks would come here."""
    with pytest.raises(UnsupportedProblem, match=r"sink.shape=\[.*\[num_heads_q\] = \[4\]"):
        nki_hf.attention(*tensors(), sink=torch.zeros(shape))


def test_a_sink_per_batch_entry_is_not_taken_for_one_per_head():
    q, k, v = tensors(batch=4, heads=4, heads_kv=4)
    sink = torch.tensor([0.0, 1.0, 2.0, 3.0]).view(4, 1, 1, 1)
    out = nki_hf.attention(q, k, v, sink=sink)
    for row in range(4):
        alone = nki_hf.attention(
            q[row : row + 1], k[row : row + 1], v[row : row + 1], sink=sink[row].expand(4, 1, 1).reshape(4)
        )
        torch.testing.assert_close(out[row : row + 1], alone)


def test_a_position_bias_that_does_not_fit_is_refused_by_name():
    from types import SimpleNamespace

    from nki_hf.adapters.transformers import nki_attention

    with pytest.raises(UnsupportedProblem, match=r"position_bias.shape=\[1, 3, 5, 7\]"):
        nki_attention(SimpleNamespace(), *tensors(), None, position_bias=torch.zeros(1, 3, 5, 7))


def test_bounds_of_the_wrong_shape_are_refused():
    bound = torch.zeros(1, 4, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"lo.shape=\[1, 4\].*\[1 or 1, 5\]"):
        nki_hf.attention(*tensors(), lo=bound, hi=bound)
