"""nki_hf.merge against the oracle over all keys."""

import itertools

import numpy as np
import pytest
import torch

import nki_hf
from nki_hf.kernels import reference
from nki_hf.problem import Problem


def parts_of(cuts, seed=0, keys=300, q=(2, 4, 3, 16), dtype=torch.float32):
    torch.manual_seed(seed)
    q, k, v = torch.randn(*q), torch.randn(2, 2, keys, 16), torch.randn(2, 2, keys, 16)
    q, k, v = (item.to(dtype) for item in (q, k, v))
    edges = [0, *cuts, keys]
    results = [nki_hf.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in itertools.pairwise(edges)]
    return (q, k, v), [out for out, _ in results], [lse for _, lse in results]


@pytest.mark.parametrize("cuts", [(), (100,), (1, 2, 299), (0, 150, 150)])
def test_parts_of_the_keys_merge_into_attention_over_all(cuts):
    (q, k, v), outs, lses = parts_of(cuts)
    out, lse = nki_hf.merge(outs, lses)
    case = Problem(
        batch=2, num_heads_q=4, num_heads_kv=2, seqlen_q=3, seqlen_kv=300, head_dim=16, head_dim_v=16, dtype="float32"
    )
    want, want_lse = reference.attention(case, q.numpy(), k.numpy(), v.numpy())
    np.testing.assert_allclose(out.numpy(), want, atol=2e-6)
    np.testing.assert_allclose(lse.numpy(), want_lse, atol=2e-6)


def test_rows_that_no_part_sees_are_zero_and_their_gradients_finite():
    outs = [torch.zeros(1, 1, 2, 4, requires_grad=True) for _ in range(2)]
    lses = [torch.tensor([[[-torch.inf, 1.0]]]), torch.tensor([[[-torch.inf, -torch.inf]]])]
    out, lse = nki_hf.merge(outs, lses)
    out.sum().backward()
    assert out.abs().max() == 0
    assert lse[0, 0, 0] == -torch.inf
    assert lse[0, 0, 1] == 1
    assert all(torch.isfinite(item.grad).all() for item in outs)


def test_large_and_small_parts_do_not_overflow():
    outs = [torch.ones(1, 1, 1, 2), torch.full((1, 1, 1, 2), 3.0)]
    out, lse = nki_hf.merge(outs, [torch.full((1, 1, 1), 400.0), torch.full((1, 1, 1), -400.0)])
    assert out.tolist() == [[[[1.0, 1.0]]]]
    assert lse.item() == 400.0


def test_the_dtype_is_kept():
    _, outs, lses = parts_of((150,), dtype=torch.bfloat16)
    out, lse = nki_hf.merge(outs, lses)
    assert out.dtype == torch.bfloat16
    assert lse.dtype == torch.float32


@pytest.mark.parametrize(
    ("outs", "lses", "message"),
    [
        ([], [], "at least one"),
        ([torch.zeros(1, 1, 1, 2)], [], "one lse for each output"),
        ([torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 2, 2)], [torch.zeros(1, 1, 1)] * 2, r"outs\[1\] is"),
        ([torch.zeros(1, 1, 1, 2)], [torch.zeros(1, 1, 2)], r"lses\[0\] is"),
    ],
)
def test_what_does_not_belong_together_is_refused(outs, lses, message):
    with pytest.raises(ValueError, match=message):
        nki_hf.merge(outs, lses)
