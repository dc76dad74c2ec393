"""The oracle against torch in float64: values by scaled_dot_product_attention, gradients by autograd, corners by hand."""

import math

import numpy as np
import pytest
import torch

from nki_hf.kernels.reference import attention, attention_gradients, visible_keys
from nki_hf.problem import Mask, Problem
from nki_hf.testing import attention_inputs

MASKS = {
    "none": Mask(),
    "causal_tail": Mask(q_offset=2, ahead=1),
    "window": Mask(q_offset=2, ahead=1, window=3),
    "two_sided": Mask(ahead=3, window=2),
    "bounds": Mask(runtime_bounds=True),
    "boolean": Mask(bias="boolean", bias_batch=True, bias_rows=True),
    "boolean_keys": Mask(ahead=1, q_offset=2, bias="boolean"),
    "additive": Mask(bias="additive", bias_heads=True, bias_rows=True),
    "additive_keys": Mask(q_offset=1, ahead=1, bias="additive", bias_batch=True),
}


def problem(**changes):
    sizes = {
        "batch": 2,
        "num_heads_q": 4,
        "num_heads_kv": 2,
        "seqlen_q": 5,
        "seqlen_kv": 7,
        "head_dim": 8,
        "head_dim_v": 6,
        "dtype": "float32",
    }
    return Problem(**{**sizes, **changes})


def torch_attention(case, tensors):
    """The same function spelled out in torch, masks as one additive matrix; differentiable."""
    q, k, v, sink, bias = tensors["q"], tensors["k"], tensors["v"], tensors.get("sink"), tensors.get("bias")
    k, v = (t.repeat_interleave(case.group_size, 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * (case.head_dim**-0.5 if case.softmax_scale is None else case.softmax_scale)
    if case.softcap is not None:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    i, j = torch.arange(case.seqlen_q)[:, None] + case.mask.q_offset, torch.arange(case.seqlen_kv)[None]
    seen = torch.ones(case.batch, 1, case.seqlen_q, case.seqlen_kv, dtype=torch.bool)
    if case.mask.window is not None:
        seen = seen & (j > i - case.mask.window)
    if case.mask.ahead is not None:
        seen = seen & (j < i + case.mask.ahead)
    if case.mask.runtime_bounds:
        seen = seen & (j >= tensors["lo"][..., None])[:, None] & (j < tensors["hi"][..., None])[:, None]
    if case.mask.bias == "boolean":
        seen = seen & bias
    elif case.mask.bias == "additive":
        seen = seen & ~torch.isneginf(bias)
        scores = scores + torch.where(torch.isneginf(bias), 0.0, bias)
    scores = scores.masked_fill(~seen, -1e30)
    if sink is not None:
        scores = torch.cat([scores, sink[None, :, None, None].expand(case.batch, -1, case.seqlen_q, 1)], -1)
    probs = torch.softmax(scores, -1)
    lse = torch.logsumexp(scores, -1)
    if sink is not None:
        probs = probs[..., :-1]
    probs = probs * seen
    return probs @ v, torch.where(seen.any(-1), lse, -math.inf if sink is None else lse)


def tensors_of(inputs):
    found = {"q": inputs.q, "k": inputs.k, "v": inputs.v, **inputs.masks}
    made = {}
    for name, array in found.items():
        if array is None:
            continue
        tensor = torch.tensor(array)
        made[name] = tensor.double().requires_grad_() if tensor.is_floating_point() else tensor
    return made


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("mask", MASKS)
def test_values_and_gradients_match_torch(mask, softcap, sink):
    case = problem(mask=MASKS[mask], softcap=softcap, sink=sink, softmax_scale=0.7)
    inputs = attention_inputs(case, seed=3)
    tensors = tensors_of(inputs)
    out, lse = torch_attention(case, tensors)
    got, got_lse = attention(case, inputs.q, inputs.k, inputs.v, **inputs.masks)
    np.testing.assert_allclose(got, out.detach(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(got_lse, lse.detach(), rtol=0, atol=1e-12)

    dout, dlse = torch.randn(out.shape, dtype=torch.float64), torch.randn(lse.shape, dtype=torch.float64)
    finite = torch.isfinite(lse)
    ((out * dout).sum() + (lse[finite] * dlse[finite]).sum()).backward()
    found = attention_gradients(case, inputs.q, inputs.k, inputs.v, dout.numpy(), dlse=dlse.numpy(), **inputs.masks)
    for name in ("q", "k", "v"):
        np.testing.assert_allclose(getattr(found, f"d{name}"), tensors[name].grad, rtol=0, atol=1e-12, err_msg=name)
    if sink:
        np.testing.assert_allclose(found.d_sink, tensors["sink"].grad, rtol=0, atol=1e-12)
    else:
        assert found.d_sink is None
    if case.mask.bias == "additive":
        np.testing.assert_allclose(found.d_bias, tensors["bias"].grad, rtol=0, atol=1e-12)
    else:
        assert found.d_bias is None


def test_plain_attention_matches_scaled_dot_product_attention():
    case = problem(mask=Mask(ahead=1), seqlen_kv=5)
    inputs = attention_inputs(case)
    q, k, v = (torch.tensor(array).double() for array in (inputs.q, inputs.k, inputs.v))
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    np.testing.assert_allclose(inputs.expected[0], want, rtol=0, atol=1e-12)


def test_a_row_without_keys_is_zero_with_infinite_lse_and_finite_gradients():
    case = problem(mask=Mask(ahead=1, q_offset=-9))
    inputs = attention_inputs(case)
    out, lse = inputs.expected
    assert not out.any()
    assert np.isneginf(lse).all()
    for gradient in attention_gradients(case, inputs.q, inputs.k, inputs.v, np.ones(out.shape))[:3]:
        assert not gradient.any()


def test_a_row_without_keys_gives_its_weight_to_the_sink():
    case = problem(mask=Mask(ahead=1, q_offset=-9), sink=True)
    inputs = attention_inputs(case)
    out, lse = inputs.expected
    assert not out.any()
    np.testing.assert_allclose(lse, np.broadcast_to(inputs.sink[None, :, None], lse.shape), rtol=1e-15)
    found = attention_gradients(
        case, inputs.q, inputs.k, inputs.v, np.ones(out.shape), dlse=np.ones(lse.shape), sink=inputs.sink
    )
    np.testing.assert_allclose(found.d_sink, np.full(4, 2 * 5.0))


def test_no_keys_at_all_gives_empty_rows():
    inputs = attention_inputs(problem(seqlen_kv=0))
    out, lse = inputs.expected
    assert out.shape == (2, 4, 5, 6)
    assert not out.any()
    assert np.isneginf(lse).all()


def test_a_row_of_finfo_min_is_the_mean_of_v():
    case = problem(mask=Mask(bias="additive"))
    inputs = attention_inputs(case)
    bias = np.full((1, 1, 1, 7), np.finfo(np.float32).min, np.float32)
    out, lse = attention(case, inputs.q, inputs.k, inputs.v, bias=bias)
    np.testing.assert_allclose(out, np.repeat(inputs.v.mean(2, keepdims=True, dtype=np.float64), 2, 1).repeat(5, 2), atol=1e-7)
    assert np.isfinite(lse).all()


def test_a_nan_key_reaches_only_the_rows_that_see_it():
    case = problem(mask=Mask(q_offset=2, ahead=1))
    inputs = attention_inputs(case)
    inputs.k[:, :, 4] = np.nan
    out, lse = attention(case, inputs.q, inputs.k, inputs.v)
    assert np.isfinite(out[:, :, :2]).all()
    assert np.isnan(lse[:, :, 2:]).all()


def test_visible_keys_of_a_window_count_the_query_itself():
    case = problem(seqlen_q=7, mask=Mask(ahead=1, window=4))
    assert visible_keys(case)[0, 0].sum(-1).tolist() == [1, 2, 3, 4, 4, 4, 4]


@pytest.mark.parametrize(
    ("changes", "missing"),
    [({"mask": Mask(runtime_bounds=True)}, "lo and hi"), ({"mask": Mask(bias="boolean")}, "bias"), ({"sink": True}, "sink")],
)
def test_a_missing_array_is_named(changes, missing):
    case = problem(**changes)
    plain = attention_inputs(problem())
    with pytest.raises(ValueError, match=missing):
        attention(case, plain.q, plain.k, plain.v)
