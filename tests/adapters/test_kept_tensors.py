"""What is kept between calls serves every later call: nothing of inference mode, of a graph or of a transform stays behind."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import nki_hf
from nki_hf.adapters.masks import read_mask

LENGTH = 6


def tensors():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 2, LENGTH, 8, generator=generator) for _ in range(3)]


def masks():
    causal = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
    padded = causal.repeat(2, 1, 1, 1)
    padded[0, ..., :2] = False
    padded |= torch.eye(LENGTH, dtype=torch.bool)
    holes = torch.rand(2, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) > 0.4
    holes |= torch.eye(LENGTH, dtype=torch.bool)
    floats = torch.zeros(padded.shape).masked_fill(~padded, torch.finfo(torch.float32).min)
    holes_as_floats = torch.zeros(holes.shape).masked_fill(~holes, -torch.inf)
    bias = torch.randn(holes.shape, generator=torch.Generator().manual_seed(2))
    return {
        "causal": causal,
        "padded": padded,
        "holes": holes,
        "floats": floats,
        "holes as floats": holes_as_floats,
        "bias": bias,
    }


def exact(q, k, v, mask):
    scores = q @ k.transpose(-1, -2) * 8**-0.5
    scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask.double()
    return torch.softmax(scores, -1) @ v


def train_and_compare(mask):
    """A forward and a backward of training under the mask, against the formula in float64."""
    ours = [each.requires_grad_() for each in tensors()]
    theirs = [each.double().requires_grad_() for each in tensors()]
    out, expected = nki_hf.attention(*ours, mask), exact(*theirs, mask.clone())
    out.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-5)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=2e-5, atol=2e-5)


def under_inference_mode(mask):
    with torch.inference_mode():
        nki_hf.attention(*tensors(), mask)


def under_no_grad(mask):
    with torch.no_grad():
        nki_hf.attention(*tensors(), mask)


def in_a_vmap(mask):
    q, k, v = tensors()
    with nki_hf.using(strict=False):
        torch.func.vmap(lambda each: nki_hf.attention(each, k, v, mask))(q[None])


def in_a_grad(mask):
    q, k, v = tensors()
    with nki_hf.using(strict=False):
        torch.func.grad(lambda each: nki_hf.attention(each, k, v, mask).sum())(q)


def under_fake_tensors(mask):
    q, k, v = tensors()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        nki_hf.attention(*(mode.from_tensor(each) for each in (q, k, v)), mask)


def in_a_proxy_trace(mask):
    make_fx(lambda q, k, v: nki_hf.attention(q, k, v, mask))(*tensors())


def under_compile(mask):
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(nki_hf.attention, backend="aot_eager")(*tensors(), mask)


@pytest.mark.filterwarnings("ignore::nki_hf.adapters.call_log.FallbackWarning")
@pytest.mark.parametrize("name", masks())
@pytest.mark.parametrize(
    "before",
    [under_inference_mode, under_no_grad, in_a_vmap, in_a_grad, under_fake_tensors, in_a_proxy_trace, under_compile],
)
def test_a_mask_that_was_read_elsewhere_serves_training(before, name):
    mask = masks()[name]
    before(mask)
    with nki_hf.using(strict=True):
        train_and_compare(mask)
        before(mask)
        train_and_compare(mask)


@pytest.mark.parametrize("name", masks())
def test_a_mask_made_in_inference_mode_serves_training(name):
    with torch.inference_mode():
        mask = masks()[name].clone()
        assert mask.is_inference()
    train_and_compare(mask)
    train_and_compare(mask)


def test_bounds_made_in_inference_mode_serve_training():
    with torch.inference_mode():
        lo, hi = torch.zeros(1, LENGTH, dtype=torch.int32), torch.full((1, LENGTH), 4, dtype=torch.int32)
    given = [each.requires_grad_() for each in tensors()]
    nki_hf.attention(*given, lo=lo, hi=hi).sum().backward()
    assert given[2].grad[:, :, 4:].abs().max() == 0
    assert given[2].grad[:, :, :4].abs().min() > 0


def test_what_is_kept_of_a_mask_is_plain_tensors():
    mask = masks()["padded"]
    with torch.inference_mode():
        keys = read_mask(mask, q=tensors()[0], seqlen_kv=LENGTH, causal=False)
    assert not keys.lo.is_inference()
    assert not keys.hi.is_inference()


# ---- a batch of one against many ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(1, 3), (3, 1), (1, 1), (3, 3)], ids=str)
@pytest.mark.parametrize("extra", ["mask", "float mask", "bounds", "sink", "mask and band", "holes"])
def test_a_batch_of_one_meets_what_differs_between_the_batches_of_the_other(batch, extra):
    generator = torch.Generator().manual_seed(4)
    q = torch.randn(batch[0], 2, 5, 8, generator=generator)
    k, v = (torch.randn(batch[1], 2, 7, 8, generator=generator) for _ in range(2))
    many = max(batch)
    visible = torch.ones(many, 1, 5, 7, dtype=torch.bool)
    for b in range(many):
        visible[b, ..., : b + 1] = False
    options, column = {}, None
    if extra == "holes":
        visible[..., 4] = False
        options = {"mask": visible}
    elif extra == "mask":
        options = {"mask": visible}
    elif extra == "float mask":
        options = {"mask": torch.zeros(visible.shape).masked_fill(~visible, -torch.inf) + 0.25}
    elif extra == "mask and band":
        options = {"mask": visible.clone(), "window": 4, "ahead": 2}
        position, keys = torch.arange(5)[:, None] + 2, torch.arange(7)
        visible &= (keys > position - 4) & (keys < position + 2)
    elif extra == "bounds":
        lo = (torch.arange(many)[:, None] + 1).expand(many, 5)
        options = {"lo": lo, "hi": torch.full((many, 5), 7)}
    else:
        column = torch.randn(many, 2, 1, 1, generator=generator)
        options = {"sink": column, "mask": visible}
    found = nki_hf.attention(q, k, v, **options)
    scores = (q.double() @ k.double().transpose(-1, -2) * 8**-0.5).masked_fill(~visible, -torch.inf)
    if column is not None:
        scores = torch.cat([scores, column.double().expand(many, 2, 5, 1)], -1)
    expected = torch.softmax(scores, -1)[..., :7] @ v.double()
    torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("mask", [False, True])
def test_learned_queries_of_a_model_meet_a_position_bias_and_a_mask_per_batch(mask):
    from types import SimpleNamespace

    from nki_hf.adapters.transformers import nki_attention

    generator = torch.Generator().manual_seed(4)
    q = torch.randn(1, 2, 5, 8, generator=generator).requires_grad_()
    k, v = (torch.randn(3, 2, 7, 8, generator=generator) for _ in range(2))
    bias = torch.randn(3, 2, 5, 7, generator=generator)
    visible = torch.ones(3, 1, 5, 7, dtype=torch.bool)
    visible[1, ..., 5:] = False
    layer = SimpleNamespace(is_causal=False, training=False)
    found, _ = nki_attention(layer, q, k, v, visible if mask else None, position_bias=bias)
    exact_q = q.detach().double().requires_grad_()
    scores = exact_q @ k.double().transpose(-1, -2) * 8**-0.5 + bias.double()
    expected = torch.softmax(scores.masked_fill(~visible, -torch.inf) if mask else scores, -1) @ v.double()
    torch.testing.assert_close(found.transpose(1, 2).double(), expected, rtol=2e-5, atol=2e-5)
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(q.grad.double(), exact_q.grad, rtol=2e-5, atol=2e-5)
