"""Gradients of the op: equal to autograd of plain float64 attention, and no worse than eager's own."""

import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import nki_hf
from nki_hf.adapters.backward import attention_gradients
from nki_hf.adapters.call import Call
from nki_hf.adapters.keys import Keys
from nki_hf.adapters.torch_op import attention_op
from nki_hf.backends import simulator
from nki_hf.backends.simulator import SimulatorBackend
from nki_hf.chips import get_chip


@pytest.fixture(autouse=True)
def _strict():
    with nki_hf.using(strict=True):
        yield


def plain(q, k, v, mask=None, scale=None, softcap=None, sink=None):
    """Attention as formulas, in the dtype of q: out `[batch, heads, seqlen_q, head_dim_v]`; rows without keys are zeros."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    if sink is not None:
        scores = torch.cat([scores, sink.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    dead = (scores == float("-inf")).all(-1, keepdim=True)
    probs = torch.softmax(scores.masked_fill(dead, 0), -1).masked_fill(dead, 0)[..., : k.shape[2]].to(v.dtype)
    return probs @ v


def tensors(heads=4, heads_kv=2, seqlen_q=9, seqlen_kv=13, head_dim=8, head_dim_v=6, batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "q": (batch, heads, seqlen_q, head_dim),
        "k": (batch, heads_kv, seqlen_kv, head_dim),
        "v": (batch, heads_kv, seqlen_kv, head_dim_v),
    }
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def gradients(function, inputs, dtype, weight, **options):
    """Gradients of `(function(...) * weight).sum()` for every floating input, as float64."""
    leaves = {name: value.detach().clone() for name, value in inputs.items()}
    for name, value in leaves.items():
        if value.is_floating_point():
            leaves[name] = value.to(dtype).requires_grad_()
    out = function(**leaves, **options)
    (out * weight.to(out.dtype)).sum().backward()
    return {name: leaf.grad.double() for name, leaf in leaves.items() if leaf.is_floating_point()}


def triangle(seqlen_q, seqlen_kv):
    return (torch.arange(seqlen_kv) <= torch.arange(seqlen_q)[:, None] + seqlen_kv - seqlen_q)[None, None]


def left_padding():
    mask = triangle(9, 13).repeat(2, 1, 1, 1)
    mask[0, ..., :6] = False
    return mask


CASES = {
    "plain": {},
    "causal": {"mask": triangle(9, 13)},
    "left padded, with rows that see nothing": {"mask": left_padding()},
    "holes": {"mask": torch.rand(1, 4, 9, 13, generator=torch.Generator().manual_seed(3)) > 0.5},
    "softcap": {"softcap": 1.5, "scale": 0.7},
    "sink": {"sink": torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64), "mask": left_padding()},
    "bias per head": {"mask": torch.randn(1, 4, 9, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(4))},
    "bias per key": {"mask": torch.randn(2, 1, 1, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(5))},
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_match_float64(name):
    case = dict(CASES[name])
    inputs = tensors() | {key: case.pop(key) for key in ("mask", "sink") if key in case}
    weight = torch.randn(2, 4, 9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    expected = gradients(plain, inputs, torch.float64, weight, **case)
    found = gradients(nki_hf.attention, inputs, torch.float32, weight, **case)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=2e-5, atol=2e-5, msg=lambda text, key=key: f"d{key}: {text}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["causal", "softcap", "sink", "bias per head"])
def test_low_precision_gradients_err_at_most_twice_as_much_as_eager(name, dtype):
    case = dict(CASES[name])
    inputs = tensors(seed=7) | {key: case.pop(key) for key in ("mask", "sink") if key in case}
    inputs = {key: value.to(dtype).double() if value.is_floating_point() else value for key, value in inputs.items()}
    weight = torch.randn(2, 4, 9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(9)).to(dtype).double()
    expected = gradients(plain, inputs, torch.float64, weight, **case)
    eager = gradients(plain, inputs, dtype, weight, **case)
    found = gradients(nki_hf.attention, inputs, dtype, weight, **case)
    for key, value in expected.items():
        limit = 2 * (eager[key] - value).square().mean().sqrt() + torch.finfo(dtype).eps * value.abs().max() / 4
        assert (found[key] - value).square().mean().sqrt() <= limit, key


def test_lse_has_a_gradient():
    inputs = {name: value.float().requires_grad_() for name, value in tensors().items()}
    _, lse = nki_hf.attention(**inputs, return_lse=True, causal=True)
    lse.masked_fill(lse == float("-inf"), 0).square().sum().backward()
    exact = {name: value.detach().double().requires_grad_() for name, value in inputs.items()}
    k = exact["k"].repeat_interleave(2, 1)
    scores = (exact["q"] @ k.transpose(2, 3) * 8**-0.5).masked_fill(~triangle(9, 13), float("-inf"))
    torch.logsumexp(scores, -1).square().sum().backward()
    for name in ("q", "k"):
        torch.testing.assert_close(inputs[name].grad.double(), exact[name].grad, rtol=2e-5, atol=2e-5)
    assert inputs["v"].grad.abs().max() == 0


def test_a_sink_of_its_own_for_each_row_gets_its_gradient():
    from nki_hf.adapters.attend import attend

    inputs = tensors()
    sink = torch.randn(2, 4, 9, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    exact = {name: value.clone().requires_grad_() for name, value in (inputs | {"sink": sink}).items()}
    scores = exact["q"] @ exact["k"].repeat_interleave(2, 1).transpose(2, 3) * 8**-0.5
    probs = torch.softmax(torch.cat([scores, exact["sink"]], -1), -1)[..., :13]
    (probs @ exact["v"].repeat_interleave(2, 1)).square().sum().backward()
    leaves = {name: value.float().requires_grad_() for name, value in (inputs | {"sink": sink}).items()}
    out, _, _ = attend(Call(**leaves, keys=Keys()))
    out.square().sum().backward()
    for name, leaf in leaves.items():
        torch.testing.assert_close(leaf.grad.double(), exact[name].grad, rtol=2e-5, atol=2e-5)


def test_the_backward_in_blocks_is_the_backward_in_one(monkeypatch):
    from nki_hf.adapters import backward

    inputs = {name: value.float() for name, value in tensors(seqlen_q=40, seqlen_kv=44).items()}
    call = Call(**inputs, keys=Keys(q_offset=4, ahead=1, window=7), softcap=2.0)
    dout = torch.randn(2, 40, 4, 6)
    whole = attention_gradients(call, dout, None, bias=False)
    monkeypatch.setattr(backward, "_BLOCK_ELEMENTS", 2 * 4 * 44 * 3)  # three rows at a time
    blocks = attention_gradients(call, dout, None, bias=False)
    for name in ("dq", "dk", "dv"):
        torch.testing.assert_close(getattr(blocks, name), getattr(whole, name), rtol=1e-5, atol=1e-5)


def test_the_backward_needs_no_memory_that_grows_with_the_square_of_the_length(monkeypatch):
    """Peak of torch's own allocations in the backward: doubling the length may double it, not quadruple it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from nki_hf.adapters import backward

    monkeypatch.setattr(backward, "_BLOCK_ELEMENTS", 1 << 14)

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for each in result if isinstance(result, tuple | list) else (result,):
                if isinstance(each, torch.Tensor):
                    self.elements = max(self.elements, each.untyped_storage().nbytes() // each.itemsize)
            return result

    found = []
    for length in (512, 1024):
        q, k, v = (torch.randn(1, 2, length, 8) for _ in range(3))
        call = Call(q=q, k=k, v=v, keys=Keys(q_offset=0, ahead=1))
        with Largest() as largest:
            attention_gradients(call, torch.randn(1, length, 2, 8), None, bias=False)
        found.append(largest.elements)
    assert found[1] <= 2 * found[0]
    assert found[1] < 1024 * 1024


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("extras", ["none", "bounds", "sink and bias"])
@pytest.mark.parametrize("op", [attention_op, torch.ops.nki_hf.attention_with_statistics.default], ids=str)
def test_opcheck_passes(op, dtype, extras):
    inputs = {name: value.to(dtype).requires_grad_() for name, value in tensors().items()}
    lo = hi = bias = sink = None
    if extras == "bounds":
        lo, hi = torch.zeros(2, 9, dtype=torch.int32), torch.full((2, 9), 11, dtype=torch.int32)
    if extras == "sink and bias":
        bias = torch.randn(1, 4, 9, 13, dtype=dtype).requires_grad_()
        sink = torch.randn(4, dtype=dtype).requires_grad_()
    torch.library.opcheck(op, (*inputs.values(), lo, hi, bias, sink, 0.3, None, 4, None, 1), atol=1e-2, rtol=1e-2)


def test_training_a_model_one_step_gives_eagers_gradients():
    from tiny import tiny_qwen3, token_ids

    ids, mask = token_ids(), torch.ones(2, 7, dtype=torch.long)
    mask[0, :3] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[0, :4] = -100  # the last padded position predicts the first real token
    found = {}
    for name in ("eager", "nki"):
        model = tiny_qwen3().train()
        model.set_attn_implementation(name)
        model(ids, attention_mask=mask, labels=labels).loss.backward()
        found[name] = {key: value.grad for key, value in model.named_parameters()}
    for key, expected in found["eager"].items():
        torch.testing.assert_close(
            found["nki"][key], expected, rtol=1e-4, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}"
        )


def test_gradient_checkpointing_gives_the_same_gradients():
    from tiny import tiny_qwen3, token_ids

    ids, found = token_ids(), []
    for checkpointing in (False, True):
        model = tiny_qwen3().train()
        model.set_attn_implementation("nki")
        if checkpointing:
            model.gradient_checkpointing_enable()
        nki_hf.explain(reset=True)
        model(ids, labels=ids, use_cache=False).loss.backward()
        assert nki_hf.explain().calls == (4 if checkpointing else 2)  # each layer runs again in the backward
        found.append([weight.grad for weight in model.parameters()])
    for plain_grad, recomputed in zip(*found, strict=True):
        torch.testing.assert_close(recomputed, plain_grad, rtol=1e-6, atol=1e-8)


def test_the_backward_off_the_cpu_is_few_blocks_however_long():
    """A graph repeats a block's operations, five products, for every block."""

    class Products(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += func in (torch.ops.aten.bmm.default, torch.ops.aten.mm.default)
            return func(*args, **(kwargs or {}))

    for seqlen in (1024, 16384):
        q, k, v = (torch.empty(1, heads, seqlen, 64, device="meta") for heads in (16, 8, 8))
        call = Call(q=q, k=k, v=v, keys=Keys(ahead=1))
        dout = torch.empty(1, seqlen, 16, 64, device="meta")
        with Products() as products:
            found = attention_gradients(call, dout, None, bias=False)
        assert (found.dq.shape, found.dk.shape) == (q.shape, k.shape)
        assert 5 <= products.count <= 5 * 32, seqlen


@pytest.mark.filterwarnings("ignore::nki_hf.adapters.call_log.FallbackWarning")
@pytest.mark.parametrize("softcap", [1e-44, 1e-31, 1e31, 3e38])
def test_the_gradients_under_any_softcap_of_float32(softcap):
    """Autograd multiplies a gradient by the cap before it divides by it: 3e38 times 2 is infinite, 1e-44 times 0.3 is rough."""
    inputs = tensors()
    inputs["q"] = inputs["q"] * (0.0 if softcap < 1 else 1.0)  # scores that a small cap leaves alone
    weight = 10 * torch.randn(2, 4, 9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    with nki_hf.using(strict=False):
        found = gradients(nki_hf.attention, inputs, torch.float32, weight, softcap=softcap)
    expected = gradients(plain, inputs, torch.float64, weight, softcap=softcap)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=2e-4, atol=2e-4, msg=lambda text, key=key: f"d{key}: {text}")


def test_the_gradient_of_a_shared_bias_has_the_same_bits_whichever_thread_is_done_first(monkeypatch):
    """Each batch is a part; with two threads the first part is done last."""
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(3, heads, length, 8, generator=generator) for heads, length in ((2, 33), (1, 40), (1, 40))]
    bias = torch.randn(1, 1, 33, 40, generator=generator).requires_grad_()
    monkeypatch.setattr(simulator, "_WORTH_THREADS", 0)
    found = []
    for threads in (1, 2):
        back_end, others, last = SimulatorBackend(get_chip("trn2"), threads=threads), [], threading.Event()
        monkeypatch.setattr("nki_hf.adapters.backend_choice.simulator_backend", lambda chip, back_end=back_end: back_end)
        out = nki_hf.attention(*given, bias)
        right, first = back_end._execute, iter([True])

        def execute(*arguments, right=right, first=first, others=others, last=last, threads=threads):
            waits = next(first, False) and threads == 2
            result = right(*arguments)
            if waits:
                assert last.wait(60)
            others.append(result)
            if len(others) == 2:
                last.set()
            return result

        monkeypatch.setattr(back_end, "_execute", execute)
        found.append(torch.autograd.grad(out.sin().sum(), bias)[0])
        assert len(others) == 3
    assert torch.equal(*found)
