"""From torch tensors to the kernel's layouts and back: strides, padding, bounds, bias; and calls that need no kernel."""

import numpy as np
import pytest
import torch

from nki_hf.adapters.layouts import packed_call, result_of, trivial_result
from nki_hf.backends.simulator import SimulatorBackend
from nki_hf.chips import get_chip
from nki_hf.dispatch import decide
from nki_hf.kernels import reference
from nki_hf.problem import Mask, Problem

BACKEND = SimulatorBackend(get_chip("trn2"))


def problem(**changes):
    sizes = {
        "batch": 2,
        "num_heads_q": 4,
        "num_heads_kv": 2,
        "seqlen_q": 50,
        "seqlen_kv": 60,
        "head_dim": 16,
        "head_dim_v": 24,
        "dtype": "float32",
    }
    return Problem(**{**sizes, **changes})


def tensors(case, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def make(heads, length, width):
        return torch.randn(case.batch, heads, length, width, generator=generator).to(getattr(torch, case.dtype))

    return (
        make(case.num_heads_q, case.seqlen_q, case.head_dim),
        make(case.num_heads_kv, case.seqlen_kv, case.head_dim),
        make(case.num_heads_kv, case.seqlen_kv, case.head_dim_v),
    )


def attend(case, q, k, v, **masks):
    decision = decide(case, backend="simulator", chip="trn2")
    return result_of(decision, BACKEND.run(packed_call(decision, {"q": q, "k": k, "v": v, **masks})))


def expect(case, q, k, v, out, lse, **masks):
    arrays = {name: None if tensor is None else tensor.numpy() for name, tensor in masks.items()}
    want, want_lse = reference.attention(case, q.numpy(), k.numpy(), v.numpy(), **arrays)
    np.testing.assert_allclose(out.transpose(1, 2), want, rtol=0, atol=1e-5)
    np.testing.assert_allclose(lse, want_lse, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("seqlen_q", [1, 50])
def test_strided_and_expanded_views_are_bit_equal_to_contiguous_tensors(seqlen_q, dtype):
    case = problem(seqlen_q=seqlen_q, dtype=dtype)
    q, k, v = tensors(case)
    want = attend(case, q, k, v)
    wide = torch.zeros(2, 60, 2, 48, dtype=k.dtype)  # k as a slice of [batch, seqlen, heads, more]
    wide[..., 16:32] = k.transpose(1, 2)
    got = attend(case, q.transpose(1, 2).contiguous().transpose(1, 2), wide[..., 16:32].transpose(1, 2), v.flip(2).flip(2))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    one = k[:1, :1], v[:1, :1]
    repeated = [tensor.repeat(2, 2, 1, 1) for tensor in one]
    expanded = [tensor.expand(2, 2, -1, -1) for tensor in one]
    got, want = attend(case, q, *expanded), attend(case, q, *repeated)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_queries_keys_and_values_are_not_copied():
    case = problem()
    q, k, v = tensors(case)
    call = packed_call(decide(case, backend="simulator", chip="trn2"), {"q": q, "k": k, "v": v})
    assert [call.tensors[name].data_ptr() for name in "qkv"] == [tensor.data_ptr() for tensor in (q, k, v)]
    assert list(call.tensors["q"].shape) == [2, 4, 16, 50]


@pytest.mark.parametrize("seqlen_q", [3, 50])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_run_time_bounds_join_the_static_mask(dtype, batch, seqlen_q):
    case = problem(seqlen_q=seqlen_q, mask=Mask(q_offset=10, ahead=1, window=30, runtime_bounds=True))
    q, k, v = tensors(case)
    lo = torch.randint(0, 20, (batch, seqlen_q), dtype=dtype)
    hi = torch.randint(15, 70, (batch, seqlen_q), dtype=dtype)
    out, lse = attend(case, q, k, v, lo=lo, hi=hi)
    expect(case, q, k, v, out, lse, lo=lo, hi=hi)


@pytest.mark.parametrize("seqlen_q", [1, 50])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.bfloat16, torch.float16])
def test_a_bias_of_any_dtype_is_taken(dtype, seqlen_q):
    kind = "boolean" if dtype == torch.bool else "additive"
    rows = seqlen_q > 1
    case = problem(seqlen_q=seqlen_q, mask=Mask(bias=kind, bias_batch=True, bias_rows=rows))
    q, k, v = tensors(case)
    seen = torch.rand(2, 1, seqlen_q, 60) < 0.6
    bias = seen if kind == "boolean" else torch.where(seen, torch.randn(seen.shape), -torch.inf).to(dtype)
    out, lse = attend(case, q, k, v, bias=bias)
    expect(case, q, k, v, out, lse, bias=bias if kind == "boolean" else bias.float())


def test_an_expanded_bias_is_taken():
    case = problem(mask=Mask(bias="additive", bias_heads=True, bias_rows=True))
    q, k, v = tensors(case)
    bias = torch.randn(1, 1, 50, 60).expand(1, 4, -1, -1)
    out, lse = attend(case, q, k, v, bias=bias)
    expect(case, q, k, v, out, lse, bias=bias)


def test_the_lowest_finite_bias_is_no_hidden_key():
    """A row that holds finfo.min everywhere has equal scores; a row of -inf has no keys."""
    case = problem(mask=Mask(bias="additive", bias_rows=True))
    q, k, v = tensors(case)
    bias = torch.zeros(1, 1, 50, 60)
    bias[:, :, 3], bias[:, :, 4] = torch.finfo(torch.float32).min, -torch.inf
    out, lse = attend(case, q, k, v, bias=bias)
    torch.testing.assert_close(out[:, 3], v.mean(2).repeat_interleave(2, 1), rtol=0, atol=1e-5)
    assert torch.isfinite(lse[:, :, 3]).all()
    assert not out[:, 4].any()
    assert torch.isneginf(lse[:, :, 4]).all()


def test_a_sink_of_any_dtype_is_taken():
    case = problem(sink=True)
    q, k, v = tensors(case)
    sink = torch.randn(4).bfloat16()
    out, lse = attend(case, q, k, v, sink=sink)
    expect(case, q, k, v, out, lse, sink=sink.float())


@pytest.mark.parametrize("sink", [None, torch.tensor([1.0, 2.0, 3.0, 4.0])])
@pytest.mark.parametrize("sizes", [{"batch": 0}, {"seqlen_q": 0}, {"seqlen_kv": 0}])
def test_calls_without_work_need_no_kernel(sizes, sink):
    case = problem(**sizes, dtype="bfloat16", sink=sink is not None)
    q, k, v = tensors(case)
    out, lse = trivial_result(case, q, v, sink)
    assert out.shape == (case.batch, case.seqlen_q, 4, 24)
    assert (out.dtype, lse.dtype, lse.shape) == (torch.bfloat16, torch.float32, (case.batch, 4, case.seqlen_q))
    assert not out.any()
    assert torch.equal(lse, torch.full_like(lse, -torch.inf) if sink is None else sink[None, :, None].expand(lse.shape))
    assert k.shape[2] == case.seqlen_kv


def test_calls_with_work_do():
    case = problem()
    q, _, v = tensors(case)
    assert trivial_result(case, q, v) is None
