"""Whole numbers and scalars of a call, whatever they are wrapped in and however large: the meaning, or an error by name."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import nki_hf
from nki_hf import UnsupportedProblem
from nki_hf.adapters.keys import Keys
from nki_hf.adapters.masks import restrict_to_indices
from nki_hf.adapters.torch_op import attention_op
from nki_hf.adapters.transformers import nki_attention
from nki_hf.problem import Band, Mask

SEQLEN_Q, SEQLEN_KV = 40, 44
FAR = [2**31 - 39, 2**31 - 1, 2**31, 2**32 + 20, 2**40, 2**63 - 1, 2**63, 2**70]


def tensors(batch=2, seqlen_q=SEQLEN_Q, seqlen_kv=SEQLEN_KV):
    generator = torch.Generator().manual_seed(0)
    shapes = [(batch, 2, seqlen_q, 8), (batch, 2, seqlen_kv, 8), (batch, 2, seqlen_kv, 8)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def plain(q, k, v, visible, scale=None, softcap=None):
    """float64 attention under a bool mask; rows without keys are zeros."""
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    dead = ~visible.any(-1, keepdim=True)
    scores = scores.masked_fill(~visible, -torch.inf).masked_fill(dead, 0.0)
    return torch.softmax(scores, -1).masked_fill(dead, 0.0) @ v


def band(q_offset=SEQLEN_KV - SEQLEN_Q, window=None, ahead=None, seqlen_q=SEQLEN_Q, seqlen_kv=SEQLEN_KV):
    """The band as a bool mask, by Python's integers of any size."""
    rows = [
        [
            (window is None or key > q_offset + row - window) and (ahead is None or key < q_offset + row + ahead)
            for key in range(seqlen_kv)
        ]
        for row in range(seqlen_q)
    ]
    return torch.tensor(rows)[None, None]


def same(found, expected):
    torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-5)


@pytest.fixture(autouse=True)
def _strict():
    with nki_hf.using(strict=True):
        yield


@pytest.mark.parametrize("seqlen_q", [SEQLEN_Q, 5])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("far", FAR)
def test_a_band_far_outside_the_keys_means_what_it_says(far, masked, seqlen_q):
    q, k, v = tensors(seqlen_q=seqlen_q)
    mask = torch.ones(2, 1, 1, SEQLEN_KV, dtype=torch.bool)
    mask[0, ..., 3] = False
    for options in (
        {"window": far},
        {"ahead": far},
        {"q_offset": far, "ahead": 1},
        {"q_offset": -far, "ahead": 1},
        {"q_offset": far, "window": far - 10},
        {"q_offset": -far, "ahead": far + 7, "window": 3},
        {"q_offset": far, "window": 4},
    ):
        visible = band(**{"q_offset": SEQLEN_KV - seqlen_q, "seqlen_q": seqlen_q} | options) & (mask if masked else True)
        same(nki_hf.attention(q, k, v, mask if masked else None, **options), plain(q, k, v, visible))


def test_a_narrowed_band_hides_the_same_keys():
    far = 2**40
    for q_offset in (-far, -9, 0, 5, far):
        for window in (None, 1, 3, far - 2, far, far + 4, 2 * far):
            for ahead in (None, 1, 6, far - 3, far, far + 5, 2 * far):
                found = Band(q_offset=q_offset, window=window, ahead=ahead).narrowed(7, 9)
                narrow = (found.q_offset, found.window, found.ahead)
                assert all(value is None or abs(value) <= 1 << 24 for value in narrow)
                before, after = (band(*each, seqlen_q=7, seqlen_kv=9) for each in ((q_offset, window, ahead), narrow))
                assert torch.equal(before, after), (q_offset, window, ahead, narrow)
                Mask(q_offset=narrow[0], window=narrow[1], ahead=narrow[2])


def test_the_op_itself_takes_a_far_band_forward_and_backward():
    """As a compiled graph calls it: nothing before the op has seen the numbers."""
    given = [tensor.requires_grad_() for tensor in tensors()]
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    out, _ = attention_op(*given, None, None, None, None, None, None, 2**40, 2**40 - 10, 2**31)
    expected = plain(*exact, band(2**40, 2**40 - 10, 2**31))
    same(out.transpose(1, 2), expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    for ours, theirs in zip(given, exact, strict=True):
        same(ours.grad, theirs.grad)


DTYPES = [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_bounds_of_any_integer_dtype_and_value_are_cut_to_the_keys(dtype):
    q, k, v = tensors(batch=1)
    limits = torch.iinfo(dtype)
    ends = [value for value in (limits.max, 2**32 + 20, 2**31 + 7, 20, 0, limits.min) if value <= limits.max]
    hi = torch.tensor(np.resize(np.array(ends, dtype=str(dtype).removeprefix("torch.")), SEQLEN_Q))[None]
    starts = [value for value in (limits.min, -(2**32) + 9, 5, limits.max) if limits.min <= value]
    lo = torch.tensor(np.resize(np.array(starts, dtype=str(dtype).removeprefix("torch.")), SEQLEN_Q))[None]
    visible = torch.tensor(
        [[int(lo[0, row].item()) <= key < int(hi[0, row].item()) for key in range(SEQLEN_KV)] for row in range(SEQLEN_Q)]
    )[None, None]
    assert visible.any()
    same(nki_hf.attention(q, k, v, lo=lo, hi=hi), plain(q, k, v, visible))
    mask = torch.rand(1, 1, SEQLEN_Q, SEQLEN_KV, generator=torch.Generator().manual_seed(1)) > 0.3
    same(nki_hf.attention(q, k, v, mask, lo=lo, hi=hi), plain(q, k, v, visible & mask))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint32, torch.uint64])
def test_cumulative_lengths_of_any_dtype_and_value_are_the_segments(dtype):
    limit = torch.iinfo(dtype).max
    cu_q, cu_kv = torch.tensor([0, 2, 5], dtype=dtype), torch.tensor([0, 3, limit], dtype=dtype)
    keys = Keys().within_segments(cu_q, cu_kv, seqlen_q=5)
    assert keys.lo.tolist() == [[0, 0, 3, 3, 3]]
    assert keys.hi[0, :2].tolist() == [3, 3]
    assert (keys.hi[0, 2:] >= SEQLEN_KV).all()


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_indices_of_a_narrow_dtype_that_name_no_key_name_no_other(dtype):
    mask = restrict_to_indices(torch.tensor([[[5, -1]]], dtype=dtype), None, seqlen_q=1, seqlen_kv=300, causal=False)
    assert mask[0, 0, 0].nonzero().flatten().tolist() == [5]


@pytest.mark.parametrize("wrap", [int, np.int8, np.int64, np.uint64, torch.tensor, lambda value: torch.tensor([value])])
def test_whole_numbers_come_in_any_wrapping(wrap):
    q, k, v = tensors()
    found = nki_hf.attention(q, k, v, window=wrap(7), ahead=wrap(2), q_offset=wrap(3))
    same(found, plain(q, k, v, band(3, 7, 2)))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["window", "ahead", "q_offset"])
@pytest.mark.parametrize("value", [2.5, 2.0, True, "3", torch.tensor(2.0), torch.tensor([2, 3]), np.float32(3), np.True_])
def test_what_is_no_whole_number_is_refused_by_name(value, name, masked):
    mask = torch.ones(SEQLEN_Q, SEQLEN_KV, dtype=torch.bool) if masked else None
    with pytest.raises(ValueError, match=rf"^{name}=.* must be an integer"):
        nki_hf.attention(*tensors(), mask, **{"ahead": 1} | {name: value})


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["window", "ahead"])
@pytest.mark.parametrize("value", [0, -1, -(2**40)])
def test_a_band_of_no_keys_is_refused_with_and_without_a_mask(value, name, masked):
    mask = torch.ones(SEQLEN_Q, SEQLEN_KV, dtype=torch.bool) if masked else None
    with pytest.raises(ValueError, match=f"^{name}={value} "):
        nki_hf.attention(*tensors(), mask, **{name: value})


# ---- scale, softcap, dropout ------------------------------------------------------------------------------------------


def layer():
    return SimpleNamespace(is_causal=False, training=True)


def by_name(q, k, v, scale=None, softcap=None, mask=None):
    return nki_hf.attention(q, k, v, mask, scale=scale, softcap=softcap)


def by_model(q, k, v, scale=None, softcap=None, mask=None):
    return nki_attention(layer(), q, k, v, mask, scaling=scale, softcap=softcap)[0].transpose(1, 2)


@pytest.mark.parametrize("road", [by_name, by_model])
@pytest.mark.parametrize("value", [3.5e38, -3.5e38, 1e300, math.inf, -math.inf, math.nan, 10**400])
@pytest.mark.parametrize("name", ["scale", "softcap"])
def test_scalars_beyond_float32_are_refused_by_name(name, value, road):
    with pytest.raises(ValueError, match=rf"^{name}|^scaling"):
        road(*tensors(), **{name: value})


@pytest.mark.parametrize("value", [1e-46, 5e-324])
def test_a_softcap_that_is_zero_in_float32_is_refused_by_name(value):
    with pytest.raises(UnsupportedProblem, match=r"^softcap=.* float32"):
        nki_hf.attention(*tensors(), softcap=value)


SCALARS = (
    [{"scale": value} for value in (0.0, 5e-324, 1e-45, 1e-40, 1.2e-38, 5e-38, 1e-31, 1e-29, -1e-40, -5e-38, -1e-29)]
    + [{"softcap": value} for value in (1e-45, 1e-40, 1e-38, 1e-30, 1e-29, 1e29, 1e31, 3e38)]
    + [{"scale": 1e-20, "softcap": 1e15}, {"scale": 1e20, "softcap": 1e-15}, {"scale": 1e-29, "softcap": 1e29}]
)


@pytest.mark.filterwarnings("ignore::nki_hf.adapters.call_log.FallbackWarning")
@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("options", SCALARS, ids=str)
def test_tiny_and_large_scalars_neither_leak_hidden_keys_nor_lose_the_scores(options, chip):
    q, k, v = tensors(batch=1)
    visible = band(0, 5, 3)
    visible[..., 7, :] = False
    with nki_hf.using(strict=False, chip=chip):
        found = nki_hf.attention(q, k, v * 1e4, visible, **options)
        static = nki_hf.attention(q, k, v * 1e4, q_offset=0, window=5, ahead=3, **options)
    torch.testing.assert_close(found.double(), plain(q, k, v * 1e4, visible, **options), rtol=1e-4, atol=0.3)
    torch.testing.assert_close(static.double(), plain(q, k, v * 1e4, band(0, 5, 3), **options), rtol=1e-4, atol=0.3)


@pytest.mark.parametrize("value", [-0.1, 1.5, math.nan, math.inf, torch.tensor(2.0)])
def test_a_dropout_that_is_no_probability_is_refused_by_name(value):
    with pytest.raises(ValueError, match=r"^dropout="):
        nki_attention(layer(), *tensors(), None, dropout=value)


@pytest.mark.parametrize("road", [by_name, by_model])
@pytest.mark.parametrize("wrap", [np.float16, np.float64, torch.tensor, lambda value: torch.tensor([[value]]), str])
def test_scalars_come_in_any_wrapping_that_is_a_number(wrap, road):
    q, k, v = tensors()
    expected = plain(q, k, v, torch.ones(1, 1, SEQLEN_Q, SEQLEN_KV, dtype=torch.bool), 0.25, 1.5)
    same(road(q, k, v, scale=wrap(0.25), softcap=wrap(1.5)), expected)


@pytest.mark.parametrize("road", [by_name, by_model])
@pytest.mark.parametrize("value", [torch.ones(2), torch.tensor(1j), 1j, "wide", [1.0]])
@pytest.mark.parametrize("name", ["scale", "softcap"])
def test_what_is_no_single_number_is_refused_by_name(name, value, road):
    with pytest.raises(ValueError, match=r"^(scale|scaling|softcap)=.*one real number"):
        road(*tensors(), **{name: value})


@pytest.mark.parametrize("road", [by_name, by_model])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
@pytest.mark.parametrize("number", [0.4, -2.0, 1e-3])
def test_a_learned_scale_gets_its_gradient(number, shape, road):
    q, k, v = tensors()
    found = [torch.full(shape, number).requires_grad_(), q.clone().requires_grad_()]
    exact = [torch.full(shape, number, dtype=torch.float64).requires_grad_(), q.double().requires_grad_()]
    everything = torch.ones(1, 1, SEQLEN_Q, SEQLEN_KV, dtype=torch.bool)
    out = road(found[1], k, v, scale=found[0])
    assert torch.equal(out.detach(), road(q, k, v, scale=float(found[0].detach())))
    out.sin().sum().backward()
    plain(exact[1], k, v, everything, scale=exact[0]).sin().sum().backward()
    for ours, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=2e-4, atol=2e-5)


@pytest.mark.filterwarnings("ignore::nki_hf.adapters.call_log.FallbackWarning")
def test_a_scale_inside_a_transform_has_its_derivative():
    q, k, v = tensors()
    everything = torch.ones(1, 1, SEQLEN_Q, SEQLEN_KV, dtype=torch.bool)
    with nki_hf.using(strict=False):
        _, found = torch.func.jvp(lambda s: nki_hf.attention(q, k, v, scale=s), (torch.tensor(0.4),), (torch.tensor(1.0),))
    scale = torch.tensor(0.4, dtype=torch.float64)
    _, expected = torch.func.jvp(lambda s: plain(q, k, v, everything, scale=s), (scale,), (torch.ones_like(scale),))
    same(found, expected)


@pytest.mark.parametrize("road", [by_name, by_model])
def test_scalars_whose_gradient_would_be_lost_are_refused(road):
    with pytest.raises(ValueError, match=r"^softcap.requires_grad=True"):
        road(*tensors(), softcap=torch.tensor(2.0, requires_grad=True))
    with pytest.raises(ValueError, match=r"must not be 0 where it has a gradient"):
        road(*tensors(), scale=torch.tensor(0.0, requires_grad=True))
    with torch.no_grad():
        road(*tensors(), scale=torch.tensor(0.0, requires_grad=True), softcap=torch.tensor(2.0, requires_grad=True))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("options", "first", "stop"),
    [
        ({"ahead": 2**63}, -7, 7),
        ({"window": 10**40, "causal": True}, -7, 3),
        ({"q_offset": 2**63 + 1, "causal": True}, -7, 7),
        ({"q_offset": 2**63, "window": 2**63 - 2, "causal": True}, 3, 7),
        ({"q_offset": -(2**63) - 1, "causal": True}, -7, -7),
    ],
)
def test_a_band_beyond_int64_means_the_same_in_a_graph(options, first, stop, dynamic):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, rows, 8, generator=generator) for rows in (5, 7, 7))
    row, key = torch.arange(5)[:, None], torch.arange(7)
    seen = (key >= first + row) & (key < stop + row)
    scores = (q.double() @ k.double().mT * 8**-0.5).masked_fill(~seen, -torch.inf)
    expected = scores.softmax(-1).nan_to_num(0.0) @ v.double()
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v: nki_hf.attention(q, k, v, **options), backend="eager", dynamic=dynamic)
    torch.testing.assert_close(compiled(q, k, v).double(), expected, rtol=1e-5, atol=1e-5)
