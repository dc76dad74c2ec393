"""Transforms of torch.func and forward-mode AD: torch computes them, counted; strict settings refuse them by name."""

import pytest
import torch
from torch.autograd import forward_ad

import nki_hf
from nki_hf import UnsupportedProblem

MASK = torch.ones(5, 5, dtype=torch.bool).tril()


def reference(q, k, v):
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~MASK, -torch.inf)
    return torch.softmax(scores, -1) @ v


def by_mask(q, k, v):
    return nki_hf.attention(q, k, v, MASK)


def by_option(q, k, v):
    return nki_hf.attention(q, k, v, causal=True)


def tensors():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, 5, 8, generator=generator) for _ in range(6)]


def jvp(attend):
    return torch.func.jvp(attend, tuple(tensors()[:3]), tuple(tensors()[3:]))[1]


def dual(attend):
    with forward_ad.dual_level():
        pairs = zip(tensors()[:3], tensors()[3:], strict=True)
        return forward_ad.unpack_dual(attend(*(forward_ad.make_dual(*pair) for pair in pairs))).tangent


def dual_value(attend):
    """Only v moves."""
    with forward_ad.dual_level():
        q, k, v, tangent = tensors()[:4]
        return forward_ad.unpack_dual(attend(q, k, forward_ad.make_dual(v, tangent))).tangent


def dual_of_parameters(attend):
    with forward_ad.dual_level():
        pairs = zip(tensors()[:3], tensors()[3:], strict=True)
        duals = [forward_ad.make_dual(tensor.requires_grad_(), tangent) for tensor, tangent in pairs]
        return forward_ad.unpack_dual(attend(*duals)).tangent


def grad(attend):
    return torch.cat(torch.func.grad(lambda *qkv: attend(*qkv).sin().sum(), argnums=(0, 1, 2))(*tensors()[:3]))


def vmap(attend):
    q, _, v = tensors()[:3]
    return torch.func.vmap(lambda k: attend(q, k, v))(torch.stack(tensors()[3:]))


def grad_per_sample(attend):
    q, k, v = tensors()[:3]
    one = torch.func.grad(lambda q, k, v: attend(q[None], k[None], v[None]).sin().sum())
    return torch.func.vmap(one)(q, k, v)


def hessian(attend):
    q, k, v = tensors()[:3]
    return torch.func.hessian(lambda part: attend(torch.cat([part, q[..., 1:]], -1), k, v).sin().sum())(q[..., :1])


@pytest.mark.parametrize("attend", [by_mask, by_option])
@pytest.mark.parametrize("transform", [jvp, dual, dual_value, dual_of_parameters, grad, vmap, grad_per_sample, hessian])
@pytest.mark.filterwarnings("ignore::nki_hf.adapters.call_log.FallbackWarning")
def test_a_transform_gives_the_values_of_the_formula_and_is_counted(transform, attend):
    nki_hf.explain(reset=True)
    torch.testing.assert_close(transform(attend), transform(reference), rtol=1e-5, atol=1e-5)
    report = nki_hf.explain()
    assert report.fallbacks == report.calls > 0
    # Kernels add what they refuse of the call itself; the transform is the one reason that no kernel can lift.
    reasons = [each for row in report.rows for each in row.first.rejected if each.kernel in {"any kernel", "flash_prefill"}]
    assert {each.field for each in reasons} == {"torch.func transform or forward-mode AD"}
    assert len(reasons) == len(report.rows)
    with nki_hf.using(strict=True), pytest.raises(UnsupportedProblem, match=r"torch\.func transform or forward-mode AD=active"):
        transform(attend)


def test_a_dual_level_without_tangents_changes_nothing():
    q, k, v = tensors()[:3]
    with nki_hf.using(strict=True), forward_ad.dual_level():
        torch.testing.assert_close(by_mask(q, k, v), reference(q, k, v), rtol=1e-5, atol=1e-5)


def _op(q, k, v, name="attention"):
    return getattr(torch.ops.nki_hf, name)(q, k, v, None, None, None, None, None, None, 0, None, 1)[0]


def _dual(function, q, tangent):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(q, tangent))).tangent


@pytest.mark.parametrize("name", ["attention", "attention_with_statistics"])
@pytest.mark.parametrize(
    "transform", [_dual, lambda *given: torch.func.jvp(given[0], given[1:2], given[2:])], ids=["dual", "jvp"]
)
def test_the_op_itself_drops_no_tangent_silently(transform, name):
    q, k, v, tangent, _, _ = tensors()
    with pytest.raises(UnsupportedProblem, match=r"^forward-mode AD=active .* Call nki_hf\.attention"):
        transform(lambda q: _op(q, k, v, name), q, tangent)


def test_a_compiled_graph_drops_no_tangent_silently():
    q, k, v, tangent, _, _ = tensors()
    compiled = torch.compile(by_option, fullgraph=True)
    compiled(q, k, v)
    with pytest.raises(UnsupportedProblem, match=r"^forward-mode AD=active"):
        _dual(lambda q: compiled(q, k, v), q, tangent)


def test_the_tangent_of_an_outputs_gradient_is_not_dropped_silently():
    q, k, v, dout, tangent, _ = tensors()
    out = by_mask(q.requires_grad_(), k, v)
    with forward_ad.dual_level(), pytest.raises(UnsupportedProblem, match=r"^forward-mode AD=active"):
        torch.autograd.grad(out, q, forward_ad.make_dual(dout, tangent))


def test_a_second_derivative_in_reverse_mode_says_what_to_do():
    q, k, v = tensors()[:3]
    q.requires_grad_()
    (first,) = torch.autograd.grad(by_mask(q, k, v).sin().sum(), q, create_graph=True)
    (expected,) = torch.autograd.grad(reference(q, k, v).sin().sum(), q, create_graph=True)
    torch.testing.assert_close(first, expected, rtol=1e-5, atol=1e-5)  # asking for a graph alone is no error
    with pytest.raises(
        UnsupportedProblem, match=r'^create_graph=True .* no second derivative\. Use attn_implementation="eager"'
    ):
        torch.autograd.grad(first.square().sum(), q)


def test_the_second_derivative_of_a_model_says_what_to_do_and_the_advice_works():
    from tiny import tiny_qwen3

    model = tiny_qwen3()
    embedded = torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def penalty(implementation):
        model.set_attn_implementation(implementation)
        out = model(inputs_embeds=embedded, use_cache=False).logits.square().mean()
        (first,) = torch.autograd.grad(out, embedded, create_graph=True)
        return torch.autograd.grad(first.square().sum(), embedded)[0]

    with pytest.raises(UnsupportedProblem, match='attn_implementation="eager"'):
        penalty("nki")
    assert penalty("eager").abs().max() > 0
