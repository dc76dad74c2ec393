"""Infinite, lowest and NaN values in sinks, masks and biases: what the softmax in float64 gives, forward and backward."""

import warnings
from types import SimpleNamespace

import pytest
import torch

import nki_hf
from nki_hf.adapters.attend import attend
from nki_hf.adapters.call import Call
from nki_hf.adapters.keys import Keys
from nki_hf.adapters.transformers import nki_attention

HEADS, SEQLEN_KV = 3, 140
INF, NAN = torch.inf, torch.nan


def tensors(seqlen_q, batch=2, heads=HEADS, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(batch, heads, length, 8, generator=generator).to(dtype) for length in (seqlen_q, SEQLEN_KV, SEQLEN_KV)]


def softmax(q, k, v, bias, sink=None, scale=8**-0.5, softcap=None):
    """Attention in float64 by its formula, a sink as one more column; rows that see nothing are zeros, with lse -inf."""
    scores = q @ k.transpose(-1, -2) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores + bias
    if sink is not None:
        scores = torch.cat([scores, sink.expand(*scores.shape[:3], 1)], -1)
    dead = (scores == -INF).all(-1, keepdim=True)
    out = torch.softmax(scores.masked_fill(dead, 0.0), -1).masked_fill(dead, 0.0)[..., : k.shape[2]] @ v
    return out, torch.logsumexp(scores.masked_fill(dead, 0.0), -1).masked_fill(dead[..., 0], -INF)


def causal(seqlen_q, hidden_rows):
    """A causal band in which the first rows see nothing, as a float64 bias."""
    bias = torch.zeros(1, 1, seqlen_q, SEQLEN_KV, dtype=torch.float64)
    rows, keys = torch.arange(seqlen_q)[:, None] - hidden_rows, torch.arange(SEQLEN_KV)
    return bias.masked_fill(keys > rows, -INF)


@pytest.fixture(autouse=True)
def _strict():
    with nki_hf.using(strict=True):
        yield


SINKS = [-INF, -3.4028234e38, -1e38, -4e37, -1e36, -200.0, 0.5, INF, NAN]
"""One per head."""

SCALINGS = [{"scale": 8**-0.5}, {"scale": 1e-3}, {"scale": 2.0, "softcap": 1e-2}, {"scale": 20.0}]


def sinks(per, seqlen_q):
    """`SINKS` as a tensor for a kernel, `[num_heads_q]` or one per row."""
    sink = torch.tensor(SINKS)
    return sink if per == "head" else sink.view(1, -1, 1, 1).repeat(2, 1, seqlen_q, 1)


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
@pytest.mark.parametrize("seqlen_q", [6, 33])
@pytest.mark.parametrize("per", ["head", "row"])
def test_any_sink_with_and_without_keys(per, seqlen_q, scaling, chip):
    q, k, v = tensors(seqlen_q, heads=len(SINKS))
    sink = sinks(per, seqlen_q)
    with nki_hf.using(chip=chip):
        out, lse, _ = attend(Call(q=q, k=k, v=v, keys=Keys(q_offset=-2, ahead=1), sink=sink, **scaling))
    column = sink.double().view(1, -1, 1, 1) if per == "head" else sink.double()
    expected, expected_lse = softmax(q.double(), k.double(), v.double(), causal(seqlen_q, 2), column, **scaling)
    torch.testing.assert_close(out.transpose(1, 2).double(), expected, rtol=2e-5, atol=2e-5, equal_nan=True)
    decided = ~expected_lse.isnan() & (expected_lse != INF)  # of these two the softmax is NaN
    torch.testing.assert_close(lse.double()[decided], expected_lse[decided], rtol=2e-5, atol=2e-5)
    assert out[:, :2, :-2].abs().max() == 0  # rows without keys


@pytest.mark.parametrize("per", ["head", "row"])
@pytest.mark.parametrize("hidden_rows", [0, 2])
def test_the_gradients_with_any_sink(per, hidden_rows):
    given = (*tensors(6, heads=len(SINKS)), sinks(per, 6))
    ours = [tensor.clone().requires_grad_() for tensor in given]
    exact = [tensor.double().requires_grad_() for tensor in given]
    out, _, _ = attend(Call(q=ours[0], k=ours[1], v=ours[2], keys=Keys(q_offset=-hidden_rows, ahead=1), sink=ours[3]))
    expected, _ = softmax(*exact[:3], causal(6, hidden_rows), exact[3].view(1, -1, 1, 1) if per == "head" else exact[3])
    out.transpose(1, 2).sin().sum().backward()
    expected.sin().sum().backward()
    for one, other in zip(ours, exact, strict=True):
        head = 0 if one.dim() == 1 else 1
        heads = len(SINKS) if hidden_rows == 0 else len(SINKS) - 2  # a NaN in a row without keys has no gradient to agree on
        found, wanted = (grad.double().narrow(head, 0, heads) for grad in (one.grad, other.grad))
        if one.dim() == 4:
            found, wanted = found[:, :, :6], wanted[:, :, :6]  # keys that no row sees get zeros, whatever the sinks are
        torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5, equal_nan=True)


BIASES = {"NaN": NAN, "+inf": INF, "-inf": -INF, "lowest": -3.4028234663852886e38, "-1e30": -1e30}


@pytest.mark.parametrize(
    ("seqlen_q", "chip", "dtype"), [(6, "trn1", torch.float16), (6, "trn2", torch.float32), (130, "trn2", torch.float32)]
)
@pytest.mark.parametrize("banded", [False, True])
@pytest.mark.parametrize("name", BIASES)
def test_any_value_in_a_float_mask(name, banded, seqlen_q, chip, dtype):
    """In one key of one row, in one key of all rows, and in a whole row."""
    q, k, v = tensors(seqlen_q, batch=1, dtype=dtype)
    bias = torch.randn(1, 1, seqlen_q, SEQLEN_KV, generator=torch.Generator().manual_seed(1)).to(dtype)
    low = torch.tensor(BIASES[name]).clamp(min=-INF if name == "-inf" else torch.finfo(dtype).min).to(dtype)
    for place in ((0, 0, 4, 1), (0, 0, slice(3, None), 2), (0, 0, 5)):
        changed = bias.clone()
        changed[place] = low
        exact = changed.double()
        options = {}
        if banded:
            options = {"ahead": 1, "q_offset": 0}
            exact = torch.where(causal(seqlen_q, 0) == 0, exact, -INF)
        expected, expected_lse = softmax(q.double(), k.double(), v.double(), exact)
        if name == "lowest":
            # Scores of the row vanish beside it, as they do in float32.
            row = (exact <= -1e4).all(-1) if dtype == torch.float16 else (exact < -1e37).all(-1)
            keep = (~row)[0, 0]
        else:
            keep = torch.ones(seqlen_q, dtype=torch.bool)
        with nki_hf.using(chip=chip):
            out, lse = nki_hf.attention(q, k, v, changed, return_lse=True, **options)
        close = 2e-5 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(out[:, :, keep].double(), expected[:, :, keep], rtol=close, atol=close, equal_nan=True)
        if name == "NaN":
            assert torch.equal(lse.isnan(), expected_lse.isnan())
            assert torch.equal(out.isnan(), expected.isnan())


@pytest.mark.parametrize("name", ["NaN", "+inf", "-inf"])
def test_the_gradients_with_any_value_in_a_bias(name):
    given = tensors(6, batch=1)
    bias = torch.randn(1, HEADS, 6, SEQLEN_KV, generator=torch.Generator().manual_seed(1))
    bias[0, 1, 4, 1] = BIASES[name]
    bias[0, 2, 5, 139] = BIASES[name]
    ours = [tensor.clone().requires_grad_() for tensor in (*given, bias)]
    exact = [tensor.double().requires_grad_() for tensor in (*given, bias)]
    nki_hf.attention(*ours).sin().sum().backward()
    softmax(*exact[:3], exact[3])[0].sin().sum().backward()
    for one, other in zip(ours, exact, strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=2e-5, atol=2e-5, equal_nan=True)


def test_a_nan_in_a_position_bias_is_a_nan_in_its_row_only():
    q, k, v = tensors(6, batch=1)
    bias = torch.zeros(1, HEADS, 6, SEQLEN_KV)
    bias[0, 1, 4, 1] = NAN
    for mask in (None, torch.ones(1, 1, 6, SEQLEN_KV, dtype=torch.bool), torch.zeros(1, 1, 6, SEQLEN_KV)):
        out, _ = nki_attention(SimpleNamespace(is_causal=False, training=False), q, k, v, mask, position_bias=bias)
        expected, _ = softmax(q.double(), k.double(), v.double(), bias.double())
        torch.testing.assert_close(out.transpose(1, 2).double(), expected, rtol=2e-5, atol=2e-5, equal_nan=True)
    hidden = torch.ones(1, 1, 6, SEQLEN_KV, dtype=torch.bool)
    hidden[..., 1] = False
    out, _ = nki_attention(SimpleNamespace(is_causal=False, training=False), q, k, v, hidden, position_bias=bias)
    assert not out.isnan().any()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", ["lowest", -7e4, 300.3])
def test_torch_in_the_place_of_a_kernel_adds_a_bias_as_exactly_as_a_kernel(size, dtype, grad):
    """Rounded to 16 bits, 300.3 would be off by up to 1, and what lies below the type's lowest number would hide keys."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, length, 300, generator=generator).to(dtype) for length in (6, 9, 9))
    bias = torch.randn(1, 1, 6, 9, generator=generator)
    bias[:, :, 3] = -3.4028234663852886e38 if size == "lowest" else size + bias[:, :, 3]
    given = [each.requires_grad_(grad) for each in (q, k, v, bias)]
    nki_hf.explain(reset=True)
    with nki_hf.using(strict=False), warnings.catch_warnings(action="ignore"):
        out = nki_hf.attention(*given)
    assert (nki_hf.explain(reset=True).fallbacks, out.dtype) == (1, dtype)  # no kernel takes a head_dim of 300
    exact = [each.detach().double().requires_grad_(grad) for each in given]
    expected, _ = softmax(*exact, scale=300**-0.5)  # beside float32's lowest value scores vanish in float64, too
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=1e-2)
    if grad:
        out.sum().backward()
        expected.sum().backward()
        for one, other in zip((each.grad for each in given), (each.grad for each in exact), strict=True):
            torch.testing.assert_close(one.double(), other, rtol=2e-2, atol=2e-2)
