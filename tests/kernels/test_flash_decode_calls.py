"""flash_decode as `attention` calls it, with no other kernel beside it: rows without a score, and caches that grow."""

import pytest
import torch

import nki_hf
from nki_hf import dispatch
from nki_hf.adapters import decision as made
from nki_hf.backends.simulator import simulator_backend
from nki_hf.kernels import registry


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("chip", ["trn1", "trn2"])
def test_a_row_whose_every_score_is_minus_infinite_is_a_row_without_keys(chip):
    """Through the front door, with the lse of every sink: that of float32's lowest values too."""
    q, k, v = torch.rand(1, 5, 3, 32), torch.randn(1, 1, 300, 32), torch.randn(1, 1, 300, 32)
    k[:, :, :4] = -torch.inf
    lo, hi = torch.tensor([[0, 0, 0]]), torch.tensor([[0, 4, 300]])
    sink = torch.tensor([-torch.inf, -3.4e38, -2e38, -1e30, 1.5])
    for given in (None, sink):
        with torch.no_grad(), nki_hf.using(strict=True, backend="simulator", chip=chip):
            out, lse = nki_hf.attention(q, k, v, lo=lo, hi=hi, sink=given, return_lse=True)
        assert torch.equal(out[:, :, :2], torch.zeros(1, 5, 2, 32))
        assert torch.equal(lse[0, :, :2], (torch.full_like(sink, -torch.inf) if given is None else sink)[:, None].expand(5, 2))
        scores = (q.double() @ k.double().mT)[:, :, 2] * 32**-0.5
        joined = scores if given is None else torch.cat([scores, given.double().view(1, 5, 1)], -1)
        torch.testing.assert_close(out[:, :, 2].double(), joined.softmax(-1)[..., :300] @ v[0, 0].double(), atol=2e-6, rtol=0)


@pytest.fixture
def alone(monkeypatch):
    """No other kernel is registered: what a kernel costs decides nothing."""
    monkeypatch.setattr(registry, "PACKAGES", ["nki_hf.kernels.flash_decode"])
    _forget()
    yield
    _forget()


def _forget():
    dispatch.decide.cache_clear()
    made._decided.cache_clear()


@pytest.mark.usefixtures("alone")
def test_a_growing_cache_records_one_program_per_bucket():
    """Through the adapter: lengths on both sides of two buckets' edges, against torch's own attention."""
    target = simulator_backend("trn2")
    target.clear()
    torch.manual_seed(0)
    q, keys, values = torch.randn(1, 4, 1, 32), torch.randn(1, 2, 4100, 32), torch.randn(1, 2, 4100, 32)
    with torch.no_grad(), nki_hf.using(strict=True, backend="simulator", chip="trn2"):
        for length in (1, 2, 15, 16, 17, 200, 201, 2047, 2048, 2049, 4096, 4097):
            k, v = keys[:, :, :length], values[:, :, :length]
            want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), enable_gqa=True)
            torch.testing.assert_close(nki_hf.attention(q, k, v).double(), want, atol=2e-6, rtol=2e-6)
    assert len(target._pool._idle) == 3  # buckets of 1, 2 and 3 chunks; each thread may have a recording of its own


@pytest.mark.usefixtures("alone")
def test_a_static_cache_of_sequences_of_different_lengths():
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 4, 2, 32), torch.randn(3, 2, 600, 32), torch.randn(3, 2, 600, 32)
    lo, hi = torch.tensor([[0, 0], [37, 37], [590, 590]]), torch.tensor([[4, 5], [299, 300], [599, 600]])
    number = torch.arange(600)
    seen = ((number >= lo[..., None]) & (number < hi[..., None]))[:, None]
    with torch.no_grad(), nki_hf.using(strict=True, backend="simulator", chip="trn2"):
        out = nki_hf.attention(q, k, v, seen)
        assert nki_hf.explain().rows[-1].first.kernel == "flash_decode"
    want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), seen, enable_gqa=True)
    torch.testing.assert_close(out.double(), want, atol=2e-6, rtol=2e-6)
