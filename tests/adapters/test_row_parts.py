"""Rows that are put together from parts: pieces of packed sequences, a sink of their own, merge; where scores are huge and keys
tie, so that an lse in float32 does not hold how a row is divided. References are eager and the same in float64.
"""

import math
from itertools import accumulate

import pytest
import torch

import nki_hf
from nki_hf.adapters.attend import attend
from nki_hf.adapters.backward import attention_gradients
from nki_hf.adapters.call import Call
from nki_hf.adapters.keys import Keys
from nki_hf.adapters.row_parts import RowStatistics, join, of_lse
from nki_hf.flash_attn import flash_attn_varlen_func


@pytest.fixture(autouse=True)
def _strict():
    with nki_hf.using(strict=True):
        yield


def tied(lengths, dtype, size, groups=3):
    """q, k, v `[1, heads, tokens, 8]` of 4 query heads over 2 kv heads, whose keys are `groups` different ones; a scale that
    makes scores about `size`; bool `[tokens, tokens]` of what causal sequences of these lengths see.
    """
    generator, tokens = torch.Generator().manual_seed(5), sum(lengths)
    q = torch.randint(-2, 3, (1, 4, tokens, 8), generator=generator)
    kinds = torch.randint(-1, 2, (1, 2, groups, 8), generator=generator)
    k = kinds[:, :, torch.randint(0, groups, (tokens,), generator=generator)]
    v = torch.randn(1, 2, tokens, 8, generator=generator)
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    visible = (sequence[:, None] == sequence) & torch.ones(tokens, tokens, dtype=torch.bool).tril()
    return [each.to(dtype) for each in (q, k, v)], 2.0 ** round(math.log2(size / 4)), visible


def eager(q, k, v, scale, visible, sink=None):
    """As Transformers' eager attention: products in the dtype of q, the softmax in float32; a sink is one more column."""
    k, v = (each.repeat_interleave(2, dim=1) for each in (k, v))
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (q @ k.transpose(-1, -2) * scale).to(wide).masked_fill(~visible, -torch.inf)
    if sink is not None:
        scores = torch.cat([scores, sink.to(wide).expand(*scores.shape[:3], 1)], -1)
    return torch.softmax(scores, -1)[..., : k.shape[2]].to(q.dtype) @ v


def dominated(lengths, dtype, weight):
    """As `tied` of random keys, the first of each sequence having about that share of its rows."""
    (q, k, v), _, visible = tied(lengths, torch.float32, 1.0)
    generator = torch.Generator().manual_seed(7)
    k = torch.randn(k.shape, generator=generator)
    first = torch.tensor([0, *accumulate(lengths)][:-1])
    k[..., 0] = 0.0
    k[:, :, first] = torch.eye(8)[0] * 4.0
    q = torch.randn(q.shape, generator=generator)
    others = (visible.sum(-1) - 1).clamp(min=1)
    q[..., 0] = 2**-0.5 * torch.log(weight / (1 - weight) * others) + 0.5
    return [each.to(dtype) for each in (q, k, v)], 8**-0.5, visible


def top_scores(q, k, scale, visible):
    """The largest score of each row `[1, heads, tokens, 1]` float64."""
    scores = q.double() @ k.double().repeat_interleave(2, dim=1).transpose(-1, -2) * scale
    return scores.masked_fill(~visible, -torch.inf).amax(-1, keepdim=True)


def results(function, given, dtype, scale):
    """Output and gradients in float64 of q, k, v in that dtype and what else is given, of a dout so small that float16 holds
    them.
    """
    leaves = [each.detach().clone() for each in (*(each.to(dtype) for each in given[:3]), *given[3:])]
    leaves = [each.requires_grad_() for each in leaves]
    out = function(*leaves)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(6)).to(given[0].dtype)
    out.backward((dout / scale).to(given[0].dtype).to(out.dtype))
    return [out.detach().double(), *(leaf.grad.double() for leaf in leaves)]


def assert_as_right_as_eager(ours, plain, given, scale, factor_16=1.5):
    """Output and every gradient err at most 1.5 times as much as eager, plus their rounding; in 16 bits gradients `factor_16`
    times.
    """
    dtype = given[0].dtype
    found, rough = results(ours, given, dtype, scale), results(plain, given, dtype, scale)
    exact = results(plain, given, torch.float64, scale)
    factors = [1.5, *[1.5 if dtype == torch.float32 else factor_16] * len(given)]
    for mine, theirs, true, factor in zip(found, rough, exact, factors, strict=True):
        assert (mine - true).norm() <= factor * (theirs - true).norm() + torch.finfo(dtype).eps / 2 * true.norm()


def packed(lengths, scale, sink=None):
    """Attention of packed causal sequences, which runs in pieces."""
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)

    def run(q, k, v):
        q, k, v = (each[0].transpose(0, 1) for each in (q, k, v))
        out = flash_attn_varlen_func(
            q, k, v, starts, starts, max(lengths), max(lengths), softmax_scale=scale, causal=True, s_aux=sink
        )
        return out.transpose(0, 1)[None]

    return run


BEHIND = 2.0
"""In 16 bits, where parts are joined behind the op of a kernel: the gradient of an output times its share is rounded."""
CASES = [
    pytest.param(torch.bfloat16, 1e4, marks=pytest.mark.slow),
    pytest.param(torch.bfloat16, 1e6, marks=pytest.mark.slow),
    (torch.bfloat16, 1e8),
    pytest.param(torch.float16, 1e4, marks=pytest.mark.slow),  # float16 ends at 65,504
    (torch.float32, 1e6),
]
LONG = [pytest.param([1500], marks=pytest.mark.slow), pytest.param([40, 700, 1, 300], marks=pytest.mark.slow)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("weight", [0.9, 0.999])
@pytest.mark.parametrize("lengths", [[600], *LONG], ids=str)
def test_the_first_key_has_nearly_all_of_every_row_of_a_pack(lengths, weight, dtype):
    given, scale, visible = dominated(lengths, dtype, weight)
    assert_as_right_as_eager(packed(lengths, scale), lambda *qkv: eager(*qkv, scale, visible), given, scale)


def test_torch_formulas_of_parts_of_the_keys_add_up_to_those_of_whole_rows():
    (q, k, v), scale, _ = dominated([90], torch.bfloat16, 0.999)
    dout = torch.randn(1, 90, 4, 8, generator=torch.Generator().manual_seed(9)).to(torch.bfloat16)
    exact = q.double() @ k.double().repeat_interleave(2, dim=1).transpose(-1, -2) * scale
    whole = (torch.softmax(exact, -1) @ v.double().repeat_interleave(2, dim=1)).transpose(1, 2)
    out, shift = whole.bfloat16(), exact.amax(-1)
    total = torch.exp(exact - shift[..., None]).sum(-1)
    rows = (out, exact.logsumexp(-1).float(), shift.float(), total.float(), (whole - out.double()).float())
    found = [
        attention_gradients(
            Call(q=q, k=k[:, :, part], v=v[:, :, part], keys=Keys(), scale=scale, row_part=True),
            dout,
            None,
            bias=False,
            whole=rows,
        )
        for part in (slice(0, 40), slice(40, 90))
    ]
    together = attention_gradients(Call(q=q, k=k, v=v, keys=Keys(), scale=scale), dout, None, bias=False)
    dq = sum(each.dq.double() for each in found)
    assert (dq - together.dq.double()).norm() <= 2**-7 * together.dq.double().norm()
    for name in ("dk", "dv"):
        parts = torch.cat([getattr(each, name).double() for each in found], dim=2)
        assert (parts - getattr(together, name).double()).norm() <= 2**-7 * getattr(together, name).double().norm()


@pytest.mark.parametrize(("dtype", "size"), CASES, ids=str)
@pytest.mark.parametrize("lengths", [[600], *LONG], ids=str)
def test_packed_sequences_of_several_pieces_err_no_more_than_eager(lengths, dtype, size):
    given, scale, visible = tied(lengths, dtype, size)
    assert_as_right_as_eager(packed(lengths, scale), lambda *qkv: eager(*qkv, scale, visible), given, scale)


def test_outputs_without_gradients_are_as_right():
    given, scale, visible = tied([600, 1, 30], torch.float32, 1e8)
    with torch.no_grad():
        out = packed([600, 1, 30], scale)(*given)
    exact = eager(*(each.double() for each in given), scale, visible)
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "size"), CASES, ids=str)
def test_a_sink_of_each_row_that_ties_with_its_keys_has_eagers_share(dtype, size):
    given, scale, visible = tied([70], dtype, size)
    sink = top_scores(*given[:2], scale, visible)

    def ours(q, k, v, sink):
        return attend(Call(q=q, k=k, v=v, keys=Keys(ahead=1), scale=scale, sink=sink.float()))[0].transpose(1, 2)

    plain = lambda *each: eager(*each[:3], scale, visible, each[3])  # noqa: E731
    assert_as_right_as_eager(ours, plain, [*given, sink], scale, factor_16=BEHIND)


@pytest.mark.parametrize(("dtype", "size"), CASES, ids=str)
def test_a_sink_of_each_head_beside_packed_sequences_has_eagers_share(dtype, size):
    lengths = [130, 1, 20]
    given, scale, visible = tied(lengths, dtype, size)
    sink = top_scores(*given[:2], scale, visible).median(2).values.flatten()

    def column(q, k, v, sink):
        return eager(q, k, v, scale, visible, sink.view(1, -1, 1, 1))

    def ours(q, k, v, sink):
        return packed(lengths, scale, sink.float())(q, k, v)

    assert_as_right_as_eager(ours, column, [*given, sink], scale, factor_16=BEHIND)


@pytest.mark.slow
def test_a_sink_of_each_row_in_a_graph():
    given, scale, visible = tied([40], torch.bfloat16, 1e6)
    sink = top_scores(*given[:2], scale, visible)

    @torch.compile(fullgraph=True)
    def ours(q, k, v, sink):
        return attend(Call(q=q, k=k, v=v, keys=Keys(ahead=1), scale=scale, sink=sink.float()))[0].transpose(1, 2)

    plain = lambda *each: eager(*each[:3], scale, visible, each[3])  # noqa: E731
    assert_as_right_as_eager(ours, plain, [*given, sink], scale, factor_16=BEHIND)


def test_shares_come_from_shift_and_sum_and_gradients_from_lse():
    # Two, three and no keys at 1e8, where log 2 and log 3 are nothing beside the shift.
    shift = torch.tensor([1e8, 1e8, -torch.inf])
    lse = shift.clone().requires_grad_()
    shares, whole = join(RowStatistics(lse, shift, torch.tensor([2.0, 3.0, 1.0])), dim=0)
    assert shares.tolist() == pytest.approx([0.4, 0.6, 0.0])
    assert (whole.row_shift.item(), whole.row_sum.item()) == (1e8, 5.0)
    (first,) = torch.autograd.grad(shares[0], lse, retain_graph=True)
    assert first.tolist() == pytest.approx([0.24, -0.24, 0.0])  # p (1 - p), -p q
    (of_whole,) = torch.autograd.grad(whole.lse, lse)
    assert of_whole.tolist() == pytest.approx([0.4, 0.6, 0.0])


def test_rows_without_any_part_have_no_shares_and_no_gradient():
    lse = torch.full((2, 3), -torch.inf, requires_grad=True)
    shares, whole = join(of_lse(lse), dim=0)
    assert not shares.any()
    assert whole.lse.isneginf().all()
    assert whole.row_shift.isneginf().all()
    (shares.sum() + whole.lse.masked_fill(whole.lse == -torch.inf, 0.0).sum()).backward()
    assert not lse.grad.any()


def merged_halves(scale):
    """`nki_hf.merge` over two halves of the keys, by all that the forward kernels say of them."""

    def run(q, k, v):
        halves = [
            torch.ops.nki_hf.attention_with_statistics(
                q, k[:, :, keys], v[:, :, keys], None, None, None, None, scale, None, 0, None, None
            )
            for keys in (slice(0, 21), slice(21, None))
        ]
        out, lse, row_shift, row_sum = ([half[n] for half in halves] for n in range(4))
        return nki_hf.merge([each.transpose(1, 2) for each in out], lse, row_shifts=row_shift, row_sums=row_sum)[0]

    return run


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float32, 1e6), (torch.float32, 1e8), (torch.bfloat16, 1e6), (torch.bfloat16, 1e8)], ids=str
)
def test_merged_parts_with_statistics_have_eagers_gradients(dtype, size):
    given, scale, _ = tied([50], dtype, size)
    visible = torch.ones(50, 50, dtype=torch.bool)
    plain = lambda *qkv: eager(*qkv, scale, visible)  # noqa: E731
    assert_as_right_as_eager(merged_halves(scale), plain, given, scale, factor_16=BEHIND)


def test_shift_without_sum_is_refused():
    out, lse = torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1)
    with pytest.raises(ValueError, match="row_sums=None"):
        nki_hf.merge([out], [lse], row_shifts=[lse])
    with pytest.raises(ValueError, match="shapes of row_sums"):
        nki_hf.merge([out], [lse], row_shifts=[lse], row_sums=[lse[0]])


def test_merged_parts_of_equal_lse_share_a_row_at_any_size():
    outs = [torch.full((1, 1, 1, 2), value) for value in (1.0, 3.0)]
    for size in (1e2, 1e6, 1e8, 1e30):
        out, _ = nki_hf.merge(outs, [torch.full((1, 1, 1), size)] * 2)
        assert out.tolist() == [[[[2.0, 2.0]]]]


def test_the_lse_of_packed_sequences_in_pieces_has_its_gradient():
    lengths, scale = [520], 0.4
    given, _, visible = tied(lengths, torch.bfloat16, 1.0)
    starts, weights = torch.tensor([0, 520], dtype=torch.int32), torch.randn(4, 520, generator=torch.Generator().manual_seed(8))

    def ours(q, k, v):
        tokens = (each[0].transpose(0, 1) for each in (q, k, v))
        _, lse, _ = flash_attn_varlen_func(
            *tokens, starts, starts, 520, 520, softmax_scale=scale, causal=True, return_attn_probs=True
        )
        return lse

    def exact(q, k, v):
        scores = q[0] @ k[0].repeat_interleave(2, dim=0).mT * scale
        return scores.masked_fill(~visible, -torch.inf).logsumexp(-1)

    found = []
    for function, dtype in ((ours, torch.bfloat16), (exact, torch.float64)):
        leaves = [each.detach().to(dtype, copy=True).requires_grad_() for each in given[:2]]
        (function(*leaves, given[2].to(dtype)) * weights).sum().backward()
        found.append([leaf.grad.double() for leaf in leaves])
    for mine, true in zip(*found, strict=True):
        assert (mine - true).norm() <= 0.01 * true.norm()


def test_second_derivatives_of_packed_sequences_are_refused():
    given, _, _ = tied([3, 2], torch.bfloat16, 1.0)
    q, k, v = (each.requires_grad_() for each in given)
    (dq,) = torch.autograd.grad(packed([3, 2], 0.4)(q, k, v).float().square().sum(), q, create_graph=True)
    with pytest.raises(nki_hf.UnsupportedProblem, match="create_graph"):
        dq.float().sum().backward()
