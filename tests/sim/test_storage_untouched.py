"""A call leaves no mark on its tensors: their storage can be resized afterwards, as sharded training does to weights."""

import pytest
import torch

import nki_hf
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim import simulate

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
_TRIANGLE = torch.ones(9, 9, dtype=torch.bool).tril()
MASKS = {
    "none": lambda dtype: None,
    "bool, runs": lambda dtype: _TRIANGLE.clone(),
    "bool, holes": lambda dtype: _TRIANGLE.clone().logical_xor(torch.eye(9, dtype=torch.bool).roll(3, 0)),
    "float of zeros and -inf": lambda dtype: torch.zeros(9, 9, dtype=dtype).masked_fill(~_TRIANGLE, -torch.inf),
    "additive": lambda dtype: torch.randn(1, 4, 9, 9).to(dtype),
}


@pytest.fixture(autouse=True)
def _strict():
    with nki_hf.using(strict=True):
        yield


def inputs(dtype, mask):
    """Fresh tensors whose memory torch itself allocated."""
    given = {name: torch.randn(1, heads, 9, 16).to(dtype) for name, heads in (("q", 4), ("k", 2), ("v", 2))}
    given |= {"sink": torch.randn(4).to(dtype), "mask": MASKS[mask](dtype)}
    return {name: tensor for name, tensor in given.items() if tensor is not None}


def assert_resizable(**tensors):
    """Asks torch, and then does it: what a tensor's memory is given back by must not raise."""
    assert {name: each.untyped_storage().resizable() for name, each in tensors.items()} == dict.fromkeys(tensors, True)
    for each in tensors.values():
        each.untyped_storage().resize_(0)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_forward_leaves_no_mark(dtype, mask):
    given = inputs(dtype, mask)
    with torch.no_grad():
        for _ in range(2):  # recorded, then replayed; the mask is new, then known
            out, lse = nki_hf.attention(**given, return_lse=True)
    assert_resizable(**given, out=out, lse=lse)


@pytest.mark.parametrize("mask", ["bool, holes", "additive"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_backward_leaves_no_mark(dtype, mask):
    given = inputs(dtype, mask)
    floating = {name: tensor.requires_grad_() for name, tensor in given.items() if tensor.is_floating_point()}
    out = nki_hf.attention(**given)
    out.float().square().sum().backward()
    assert_resizable(**{f"d{name}": tensor.grad for name, tensor in floating.items()})
    assert_resizable(**{name: tensor.detach() for name, tensor in given.items()}, out=out.detach())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_kernel_launched_on_tensors_leaves_no_mark(dtype):
    @simulate
    def copy(a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=a)
        return out

    given = torch.randn(4, 6).to(dtype)
    assert_resizable(given=given, out=copy(given))


def test_a_tensor_whose_memory_holds_its_negative_is_not_read_as_it_is():
    negative = torch.randn(1, 2, 9, 16, dtype=torch.complex64).conj().imag
    assert negative.is_neg()
    k, v = torch.randn(2, 1, 2, 9, 16)
    with torch.no_grad():
        torch.testing.assert_close(nki_hf.attention(negative, k, v), nki_hf.attention(negative.resolve_neg(), k, v))
    with pytest.raises(TypeError, match=r"resolve_neg\(\)"):
        simulate(lambda a: a)(negative)
