"""Gradients where float32 is hard pressed: large scores, hidden rows of finite biases, other default dtypes and devices."""

import math

import pytest
import torch

import nki_hf
from nki_hf.adapters.call import Call
from nki_hf.adapters.fallback import run_fallback
from nki_hf.adapters.keys import Keys


@pytest.fixture(autouse=True)
def _strict():
    with nki_hf.using(strict=True):
        yield


def eager(q, k, v, bias=None, sink=None, scale=1.0):
    """Attention by its formula in the dtype of q; a sink is one more column."""
    scores = q @ k.transpose(-1, -2) * scale
    scores = scores if bias is None else scores + bias
    if sink is not None:
        scores = torch.cat([scores, sink.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    return torch.softmax(scores, -1)[..., : k.shape[2]] @ v


def gradients(function, given, dtype):
    leaves = [tensor.detach().clone().to(dtype).requires_grad_() for tensor in given]
    function(*leaves).square().sum().backward()
    return [leaf.grad.double() for leaf in leaves]


def whole_numbers(size, length=24):
    """q, k, v whose scores are whole numbers near `size`, exact in float32 up to their number of bits; neighbours are close,
    so that the softmax spreads over several keys.
    """
    generator = torch.Generator().manual_seed(0)
    step = 2.0 ** max(0, math.ceil(math.log2(abs(size)) - 23))
    size = round(size / step) * step
    q, k = torch.zeros(1, 2, length, 4), torch.zeros(1, 2, length, 4)
    q[..., 0], q[..., 1] = size, step
    k[..., 0] = 1.0
    k[..., 1] = torch.randint(0, 3, (1, 2, length), generator=generator)
    return q, k, torch.randn(1, 2, length, 4, generator=generator)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("size", [4e4, 4e6, 4.8e6, 4e7, 5e8, 7e9, -4e6, -5e8])
def test_gradients_of_scores_that_float32_holds_exactly(size, masked):
    q, k, v = whole_numbers(size)
    bias = torch.zeros(1, 1, 24, 24)
    if masked:
        bias = bias.masked_fill(torch.ones(24, 24).triu(1) == 1, -torch.inf)
    found = gradients(lambda q, k, v: nki_hf.attention(q, k, v, bias if masked else None, scale=1.0), (q, k, v), torch.float32)
    exact = gradients(lambda q, k, v: eager(q, k, v, bias.double()), (q, k, v), torch.float64)
    # Terms of dq are as large as k, those of dk as q; they may cancel.
    for ours, theirs, terms in zip(found, exact, (k, q, v), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5 * float(terms.abs().max()))


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6, 1e8])
def test_gradients_of_any_large_scores_err_no_more_than_eagers_in_float32(size):
    generator = torch.Generator().manual_seed(1)
    given = [torch.randn(1, 2, 24, 16, generator=generator) for _ in range(3)]
    found = gradients(lambda *qkv: nki_hf.attention(*qkv, scale=size), given, torch.float32)
    plain = gradients(lambda *qkv: eager(*qkv, scale=size), given, torch.float32)
    exact = gradients(lambda *qkv: eager(*qkv, scale=size), given, torch.float64)
    for ours, theirs, true in zip(found, plain, exact, strict=True):
        assert (ours - true).norm() <= 2 * (theirs - true).norm() + 1e-6 * true.norm()
        assert ours.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1e8, -1e12, 1e16])
def test_the_fallbacks_gradients_under_a_huge_scale_are_those_of_the_softmax(scale, dtype):
    """torch's fused backward pass gives an infinite dv here."""
    generator = torch.Generator().manual_seed(3)
    given = [torch.randn(1, 2, length, 8, generator=generator).to(dtype) for length in (64, 12, 12)]
    found = gradients(
        lambda q, k, v: run_fallback(Call(q=q, k=k, v=v, keys=Keys(), scale=scale))[0].transpose(1, 2), given, dtype
    )
    exact = gradients(lambda *qkv: eager(*qkv, scale=scale), given, torch.float64)
    torch.testing.assert_close(found[2], exact[2], rtol=2**-6 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    assert all(each.isfinite().all() for each in found)


def test_gradients_beside_a_large_sink():
    q, k, v = whole_numbers(4e6)
    sink = torch.tensor([4e6, 4e6 + 1])
    found = gradients(lambda q, k, v, s: nki_hf.attention(q, k, v, scale=1.0, sink=s), (q, k, v, sink), torch.float32)
    exact = gradients(lambda q, k, v, s: eager(q, k, v, sink=s), (q, k, v, sink), torch.float64)
    for ours, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5 * float(theirs.abs().max()))


def test_a_row_whose_every_key_has_the_lowest_finite_bias_has_eagers_gradient():
    """It is a row of equal scores: the output is the mean of v, and v's gradient says so."""
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 2, 9, 8, generator=generator) for _ in range(3))
    bias = torch.randn(1, 1, 9, 9, generator=generator)
    bias[..., 4, :] = torch.finfo(torch.float32).min
    found = gradients(lambda q, k, v: nki_hf.attention(q, k, v, bias.clone(), scale=1.0), (q, k, v), torch.float32)
    plain = gradients(lambda q, k, v: eager(q, k, v, bias), (q, k, v), torch.float32)
    torch.testing.assert_close(found[2], plain[2], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("default", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"bias": True}, {"sink": True}, {"window": 5, "ahead": 2}], ids=str)
def test_the_default_dtype_changes_nothing(default, options):
    generator = torch.Generator().manual_seed(3)
    tensors = [torch.randn(2, 2, 20, 8, generator=generator) * 30 for _ in range(3)]
    bias = torch.randn(1, 2, 20, 20, generator=generator) if options.get("bias") else None
    sink = torch.randn(2, generator=generator) if options.get("sink") else None
    rest = {key: value for key, value in options.items() if key not in ("bias", "sink")}
    found = []
    for dtype in (torch.float32, default):
        given = [None if each is None else each.clone().requires_grad_() for each in (*tensors, bias, sink)]
        torch.set_default_dtype(dtype)
        try:
            out, lse = nki_hf.attention(*given[:4], sink=given[4], return_lse=True, **rest)
            (out.square().sum() * 1e3 + lse.sum()).backward()
            without_keys, empty_lse = nki_hf.attention(given[0], *(each[:, :, :0] for each in given[1:3]), return_lse=True)
        finally:
            torch.set_default_dtype(torch.float32)
        found.append([out, lse, without_keys, empty_lse, *(each.grad for each in given if each is not None)])
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore::nki_hf.adapters.call_log.FallbackWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("masked", [False, True])
def test_the_default_device_is_not_where_anything_is_made(dtype, masked):
    generator = torch.Generator().manual_seed(3)
    tensors = [torch.randn(2, 2, 20, 8, generator=generator).to(dtype) for _ in range(3)]
    mask = torch.ones(20, 20, dtype=torch.bool).tril() if masked else None
    found = []
    for device in ("cpu", "meta"):
        given = [each.clone().requires_grad_() for each in tensors]
        torch.set_default_device(device)
        try:
            with nki_hf.using(strict=False):
                out = nki_hf.attention(*given, mask, window=7, ahead=2)
            out.square().sum().backward()
        finally:
            torch.set_default_device(None)
        found.append([out, *(each.grad for each in given)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def _tied(dtype, size):
    """q, k, v of 4 query heads over 2 kv heads, whose 40 keys are 3 different ones; a scale that makes scores about `size`."""
    generator = torch.Generator().manual_seed(5)
    q = torch.randint(-2, 3, (1, 4, 50, 8), generator=generator)
    kinds = torch.randint(-1, 2, (1, 2, 3, 8), generator=generator)
    k = kinds[:, :, torch.randint(0, 3, (40,), generator=generator)]
    v = torch.randn(1, 2, 40, 8, generator=generator)
    return [each.to(dtype) for each in (q, k, v)], 2.0 ** round(math.log2(size / 4))


def _eager_in_groups(q, k, v, scale):
    """As Transformers' eager attention: products in the dtype of q, the softmax in float32."""
    k, v = (each.repeat_interleave(2, dim=1) for each in (k, v))
    scores = q @ k.transpose(-1, -2) * scale
    wide = torch.promote_types(q.dtype, torch.float32)
    return torch.softmax(scores, -1, dtype=wide).to(q.dtype) @ v


def _small_gradients(function, given, dtype, scale):
    """Of sum(out * dout), with a dout so small that float16 holds those of q and k."""
    leaves = [tensor.detach().clone().to(dtype).requires_grad_() for tensor in given]
    dout = torch.randn(1, 4, 50, 8, generator=torch.Generator().manual_seed(6)).to(given[0].dtype)
    function(*leaves).backward((dout / scale).to(given[0].dtype).to(dtype))
    return [leaf.grad.double() for leaf in leaves]


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("size", "dtype"), [(1e4, torch.float16), *((size, torch.bfloat16) for size in (1e4, 1e5, 1e6, 1e8))], ids=str
)  # float16 ends at 65,504
def test_keys_that_tie_have_eagers_gradients_in_16_bits(size, dtype, compiled):
    given, scale = _tied(dtype, size)

    def run(q, k, v):
        return nki_hf.attention(q, k, v, scale=scale)

    found = _small_gradients(torch.compile(run, fullgraph=True) if compiled else run, given, dtype, scale)
    exact = _small_gradients(lambda *qkv: _eager_in_groups(*qkv, scale), given, torch.float64, scale)
    plain = _small_gradients(lambda *qkv: _eager_in_groups(*qkv, scale), given, dtype, scale)
    for ours, true, theirs in zip(found, exact, plain, strict=True):
        assert (ours - true).norm() <= 1.5 * (theirs - true).norm() + torch.finfo(dtype).eps / 2 * true.norm()


@pytest.mark.parametrize("size", [1e4, 1e6, 1e8])
@pytest.mark.parametrize(
    ("rows", "keys", "head_dim"),
    [(16, 1, 64), (1, 1, 128), (3, 3, 200), (2, 600, 64), (16, 40, 256), (17, 40, 64), (33, 40, 64)],
)
def test_dv_of_few_rows_whose_scores_are_large(rows, keys, head_dim, size):
    # The forward lays so few rows out in tiles of its own; the backward must find the same scores.
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 4, rows, head_dim), (1, 2, keys, head_dim), (1, 2, keys, head_dim), (1, 4, rows, head_dim)]
    q, k, v, dout = (torch.randn(*shape, generator=generator) for shape in shapes)
    given = [each.bfloat16() for each in (q * size**0.5, k * size**0.5, v)]

    def dv(function, dtype):
        leaves = [each.to(dtype).requires_grad_() for each in given]
        return torch.autograd.grad(function(*leaves), leaves[2], dout.bfloat16().to(dtype))[0].double()

    found = dv(lambda q, k, v: nki_hf.attention(q, k, v, scale=1.0), torch.bfloat16)
    exact = dv(lambda q, k, v: _eager_in_groups(q, k, v, 1.0), torch.float64)
    # One key has each row alone, or nearly: dv is a sum of at most 34 rows of dout, rounded once, as are its weights.
    assert (found - exact).norm() <= 2.0**-8 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("weight", [0.9, 0.99, 0.999])
@pytest.mark.parametrize(("rows", "keys"), [(150, 300), (60, 2), (5, 700)])
def test_one_key_with_nearly_all_of_every_row(rows, keys, weight, dtype):
    """As the first token of trained models has it: the others have half to twice what that share leaves them."""
    generator = torch.Generator().manual_seed(8)
    q, k, v = (torch.randn(1, heads, length, 16, generator=generator) for heads, length in ((4, rows), (2, keys), (2, keys)))
    k[..., 0] = 0.0
    k[:, :, 0, :] = torch.eye(16)[0] * 4.0
    q[..., 0] = (
        math.log(weight / (1 - weight) * (keys - 1)) + 0.5 + math.log(2) * (2 * torch.rand(rows, generator=generator) - 1)
    )
    given = [each.to(dtype) for each in (q, k, v)]
    dout = torch.randn(1, 4, rows, 16, generator=generator).to(dtype)

    def found(function, kind):
        leaves = [each.detach().to(kind).requires_grad_() for each in given]
        function(*leaves).backward(dout.to(kind))
        return [leaf.grad.double() for leaf in leaves]

    ours = found(lambda *qkv: nki_hf.attention(*qkv, scale=0.25), dtype)
    plain, exact = (found(lambda *qkv: _eager_in_groups(*qkv, 0.25), kind) for kind in (dtype, torch.float64))
    for mine, theirs, true in zip(ours, plain, exact, strict=True):
        assert (mine - true).norm() <= 1.5 * (theirs - true).norm() + torch.finfo(dtype).eps / 2 * true.norm()


GIVEN = {"row_shift", "row_sum", "out_rest"}
"""What a forward kernel hands on to a backward kernel."""


def test_what_gradients_start_from_is_computed_only_where_one_is_wanted(monkeypatch):
    from nki_hf.backends.simulator import SimulatorBackend

    asked, run = [], SimulatorBackend.run
    monkeypatch.setattr(SimulatorBackend, "run", lambda self, call: (asked.append(call.passed), run(self, call))[1])
    q, k, v = (torch.randn(1, 2, length, 8, dtype=torch.bfloat16) for length in (6, 600, 600))
    nki_hf.attention(q, k, v)
    q.requires_grad_()
    with torch.no_grad():
        nki_hf.attention(q, k, v)
    out, lse = nki_hf.attention(q, k, v, return_lse=True)
    (out.float().sum() + lse.sum()).backward()
    assert [GIVEN <= names for names in asked] == [False, False, True, True]
    # What the backward kernel finds itself is not written.
    asked.clear()
    nki_hf.attention(*(each.detach().float().requires_grad_() for each in (q, k, v))).sum().backward()
    for mask, wanted in ((torch.randn(1, 1, 6, 600), False), (torch.rand(1, 1, 6, 600) > 0.5, True)):
        nki_hf.attention(q, k, v, mask).float().sum().backward()
        assert [GIVEN <= names for names in asked[-2:]] == [wanted] * 2
    assert not any(GIVEN & names for names in asked[:2])
    # Parts of rows need statistics, without gradients too.
    asked.clear()
    nki_hf.attention(q.detach(), k, v, sink=torch.zeros(1, 2, 6, 1))
    assert [GIVEN & names for names in asked] == [{"row_shift", "row_sum"}]
    # The op of saved programs has two results, and gradients from them.
    asked.clear()
    out, lse = torch.ops.nki_hf.attention(q, k, v, None, None, None, None, None, None, 0, None, None)
    out.float().sum().backward()
    assert [GIVEN <= names for names in asked] == [False, False]


@pytest.mark.parametrize("heads", [(2, 1), (4, 2), (3, 1)])
@pytest.mark.parametrize(("seqlen_q", "seqlen_kv"), [(64, 129), (64, 200), (127, 128)])
def test_the_second_step_has_the_gradients_of_the_first(heads, seqlen_q, seqlen_kv):
    """Grouped heads with the gradient of a dense bias and bounds: a step's program is recorded once and replayed."""
    draw = torch.Generator().manual_seed(0)
    shapes = [
        (1, heads[0], seqlen_q, 32),
        (1, heads[1], seqlen_kv, 32),
        (1, heads[1], seqlen_kv, 32),
        (1, heads[0], seqlen_q, seqlen_kv),
    ]
    given = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]

    def own(q, k, v, bias):
        return nki_hf.attention(q, k, v, bias, causal=True, scale=0.2)

    def causal(q, k, v, bias):
        k, v = (each.repeat_interleave(heads[0] // heads[1], dim=1) for each in (k, v))
        hidden = torch.ones(seqlen_q, seqlen_kv, dtype=torch.bool).triu(1 + seqlen_kv - seqlen_q)
        return ((q @ k.mT) * 0.2 + bias).masked_fill(hidden, -torch.inf).softmax(-1) @ v

    def step(function, dtype):
        tensors = [each.to(dtype, copy=True).requires_grad_() for each in given]
        function(*tensors).sum().backward()
        return [each.grad.double() for each in tensors]

    want = step(causal, torch.float64)
    for _ in range(3):
        for got, expected in zip(step(own, torch.float32), want, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["simulator", "torch_reference"])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("keys", "scale"), [(1, 1.0), (20, 1e6)])
def test_the_gradient_of_lse_where_one_key_matters_has_no_rounding_of_the_outputs(keys, scale, biased, softcap, backend):
    """The gradient of such a score is dlse: dout does not matter, which is made large here, so that its rounding would show."""
    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(1, 2, length, 16, generator=generator) for length in (9, keys, keys))
    k[:, :, 0] = 2 * q.mean(dim=2)
    q = q + 4 * k[:, :, :1]
    bias = torch.zeros(1, 2, 9, keys)
    if softcap is not None:
        scale = 0.02  # a cap makes scores equal: only a row with one key is such a row
        q, k, v, bias = q, k[:, :, :1], v[:, :, :1], bias[..., :1]
    dout, dlse = 100 * torch.randn(1, 2, 9, 16, generator=generator), torch.randn(1, 2, 9, generator=generator)

    def run(dtype, ours):
        given = [each.detach().clone().to(dtype).requires_grad_() for each in (q, k, v, bias)]
        if ours:
            mask = given[3] if biased else None
            out, lse = nki_hf.attention(*given[:3], mask, scale=scale, softcap=softcap, return_lse=True)
        else:
            scores = given[0] @ given[1].transpose(2, 3) * scale
            scores = (scores if softcap is None else softcap * torch.tanh(scores / softcap)) + given[3]
            out, lse = torch.softmax(scores, -1) @ given[2], scores.logsumexp(-1)
        ((out * dout.to(dtype)).sum() + (lse * dlse.to(dtype)).sum()).backward()
        return [given[at].grad.double() for at in ((0, 1, 3) if biased else (0, 1))]

    with nki_hf.using(backend=backend, strict=backend == "simulator"):
        found = run(torch.float32, True)
    for ours, theirs, true in zip(found, run(torch.float32, False), run(torch.float64, False), strict=True):
        assert (ours - true).norm() <= 1.5 * (theirs - true).norm() + 2**-24 * true.norm()
