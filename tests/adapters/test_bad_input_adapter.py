"""Bad input on the adapter's road: named, counted or refused; never a wrong number."""

import builtins
import warnings

import pytest
import torch

import nki_hf
from nki_hf import UnsupportedProblem
from nki_hf.adapters.call_log import FallbackWarning


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
    assert set(report.reasons().values()) == {2}  # one reason per kernel
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


F16, F32, BF16 = torch.float16, torch.float32, torch.bfloat16
F8 = torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("dtypes", "computed", "returned"),
    [
        ((F16, F32, F16), F32, F16),
        ((F32, F32, BF16), F32, F32),
        ((F16, BF16, F16), F32, F16),
        ((BF16, torch.float64, F32), torch.float64, BF16),
        ((F8, F8, F8), F32, F8),
        ((BF16, F8, torch.float8_e5m2), F32, BF16),
        ((F8, BF16, BF16), F32, F8),
        ((torch.int64, torch.int64, torch.int64), F32, F32),
        ((torch.int32, torch.uint8, torch.int16), F32, F32),
        ((torch.int8, torch.float64, F16), torch.float64, torch.float64),
        ((F16, torch.int64, F16), F32, F16),
    ],
)
@pytest.mark.parametrize("options", [{}, {"causal": True, "softcap": 5.0, "sink": torch.tensor([0.5, -1.0, 2.0, 0.0])}])
def test_what_kernels_do_not_compute_is_a_counted_fallback_in_a_dtype_that_torch_does(dtypes, computed, returned, options):
    q, k, v = (tensor.mul(3).to(dtype) for tensor, dtype in zip(tensors(), dtypes, strict=True))
    with nki_hf.using(strict=True), pytest.raises(UnsupportedProblem, match="dtype="):
        nki_hf.attention(q, k, v, **options)
    nki_hf.explain(reset=True)
    with pytest.warns(FallbackWarning, match="dtype="):
        out = nki_hf.attention(q, k, v, **options)
    assert (nki_hf.explain().calls, nki_hf.explain().fallbacks) == (1, 1)
    assert (out.dtype, out.shape) == (returned, (1, 4, 5, 8))
    expected = float64_attention(q, k, v, **options)
    # One rounding to the returned type (half of its eps), on top of the computation's own error.
    rounding = {F8: 2.0**-4, F16: 2.0**-11, BF16: 2.0**-8}.get(returned, 0.0)
    error = 1e-12 if computed == torch.float64 and not options else 1e-5
    torch.testing.assert_close(out.double(), expected, rtol=rounding + error, atol=error + (2.0**-10 if returned == F8 else 0))


def float64_attention(q, k, v, causal=False, softcap=None, sink=None):
    q, k, v = q.double(), k.double().repeat_interleave(2, 1), v.double().repeat_interleave(2, 1)
    scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if causal:
        rows, keys = q.shape[2], k.shape[2]
        scores = scores.masked_fill(~torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows), float("-inf"))
    extra = (
        torch.full_like(scores[..., :1], float("-inf")) if sink is None else sink.view(1, -1, 1, 1).expand_as(scores[..., :1])
    )
    return torch.softmax(torch.cat([scores, extra], -1), -1)[..., :-1] @ v


def test_gradients_reach_tensors_of_different_dtypes():
    q, k, v = (tensor.requires_grad_() for tensor in tensors())
    mixed = nki_hf.attention(q.half(), k, v.bfloat16())
    mixed.float().square().sum().backward()
    same = [tensor.detach().clone().requires_grad_() for tensor in (q, k, v)]
    sdpa(*same).square().sum().backward()
    for ours, theirs in zip((q, k, v), same, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64, torch.float8_e8m0fnu])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_dtypes_that_attention_has_no_meaning_for_are_refused_and_not_counted(dtype, place):
    given = tensors()
    given[place] = given[place].to(dtype)
    nki_hf.explain(reset=True)
    with pytest.raises(UnsupportedProblem, match=f"{'qkv'[place]}.dtype={str(dtype).removeprefix('torch.')} .*signed float"):
        nki_hf.attention(*given)
    assert nki_hf.explain().calls == 0


def test_a_call_that_raises_is_neither_counted_nor_warned_about(monkeypatch):
    from nki_hf.adapters import attend

    def broken(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(attend, "run_fallback", broken)
    for road in ("attention_op_for", "attention_unseen"):
        monkeypatch.setattr(attend, road, broken)
    nki_hf.explain(reset=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in (F32, torch.float64):
            with pytest.raises(RuntimeError, match="out of memory"):
                nki_hf.attention(*tensors(dtype=dtype))
    assert nki_hf.explain().calls == 0


@pytest.mark.parametrize("dtype", [torch.int64, F16])
def test_integers_without_keys_give_float_zeros(dtype):
    out = nki_hf.attention(*tensors(seqlen_kv=0, dtype=dtype))
    assert torch.equal(out, torch.zeros(1, 4, 5, 8, dtype=F16 if dtype == F16 else F32))


@pytest.mark.parametrize("name", ["lo", "hi"])
@pytest.mark.parametrize("dtype", [F32, F16, torch.bool])
def test_bounds_that_do_not_count_are_refused_by_name(name, dtype):
    bounds = {"lo": torch.zeros(1, 5, dtype=torch.int32), "hi": torch.full((1, 5), 7, dtype=torch.int32)}
    bounds[name] = bounds[name].to(dtype)
    with pytest.raises(ValueError, match=f"{name}.dtype={dtype} .*must be integer"):
        nki_hf.attention(*tensors(), **bounds)


@pytest.mark.parametrize("name", ["scale", "softcap"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_without_a_finite_value_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name}={value} .*finite"):
        nki_hf.attention(*tensors(), **{name: value})


@pytest.mark.parametrize("name", ["q", "k", "v", "mask", "lo", "hi", "sink"])
def test_numpy_arrays_are_refused_in_one_sentence(name):
    given = dict(zip("qkv", tensors(), strict=True))
    if name in ("lo", "hi"):
        given |= {each: torch.zeros(1, 5, dtype=torch.int32) for each in ("lo", "hi")}
    given |= {"mask": torch.ones(5, 7, dtype=torch.bool), "sink": torch.zeros(4)}
    given[name] = given[name].numpy()
    with pytest.raises(TypeError, match=f"^{name}=ndarray is not a torch tensor: .*torch.as_tensor.{name}"):
        nki_hf.attention(**given)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"head_dim": 0}, "q.shape=.*head_dim of 1 or more"),
        ({"head_dim_v": 0}, "v.shape=.*head_dim of 1 or more"),
        ({"heads": 0}, "q.shape=.*1 or more heads"),
        ({"heads_kv": 0}, "k.shape=.*1 or more heads"),
    ],
)
def test_no_heads_or_no_head_dim_are_refused(sizes, text):
    with pytest.raises(UnsupportedProblem, match=text):
        nki_hf.attention(*tensors(**sizes))


@pytest.mark.parametrize("single", ["q", "kv"])
def test_a_batch_of_one_meets_every_batch_of_the_other(single):
    q, k, v = tensors(batch=3)
    q, k, v = (q[:1], k, v) if single == "q" else (q, k[:1], v[:1])
    out = nki_hf.attention(q, k, v)
    torch.testing.assert_close(out, sdpa(q.expand(3, -1, -1, -1), k.expand(3, -1, -1, -1), v.expand(3, -1, -1, -1)))


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


_WITHOUT_STRIDES = {"sparse_coo": torch.Tensor.to_sparse, "_mkldnn": torch.Tensor.to_mkldnn}


@pytest.mark.parametrize("layout", _WITHOUT_STRIDES)
@pytest.mark.parametrize("name", ["q", "k", "v", "sink"])
def test_tensors_without_strides_are_refused_by_name(name, layout):
    call = dict(zip("qkv", tensors(), strict=True), sink=torch.zeros(4))
    call[name] = _WITHOUT_STRIDES[layout](call[name])
    with pytest.raises(UnsupportedProblem, match=rf"{name}\.layout={layout} .*to_dense"):
        nki_hf.attention(**call)


def test_bounds_without_strides_are_refused_by_name():
    q, k, v = tensors()
    lo, hi = torch.zeros(1, 5, dtype=torch.int64), torch.full((1, 5), 3)
    with pytest.raises(ValueError, match=r"lo\.layout=torch\.sparse_coo"):
        nki_hf.attention(q, k, v, lo=lo.to_sparse(), hi=hi)
