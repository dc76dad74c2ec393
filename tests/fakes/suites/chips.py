"""Every chip through the launch path: the kernel that it gets, and the graph that trn1 refuses. FAKE_NEURON_CHIP names it."""

import os

import pytest
import torch
import torch_neuronx
from fake_neuron import MACHINE, Refused
from fake_neuron.tensor import on_device
from fake_neuron.tracing import FactoriesOnDevice

import nki_hf
from nki_hf.backends.neuron import neuron_backend
from nki_hf.backends.neuron_launch import LaunchFailed

CHIP, WORLD = os.environ["FAKE_NEURON_CHIP"], os.environ["FAKE_NEURON_WORLD"]
DEVICE = "xla:0" if WORLD == "xla" else "neuron:0"


def _inputs():
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(2, heads, 140, 16, generator=draw) for heads in (4, 2, 2)]


def _masks():
    padding = torch.ones(2, 1, 1, 140).bool()
    padding[0, ..., :50] = False
    return {
        "causal": {"causal": True},
        "window": {"causal": True, "window": 30},
        "padded": {"causal": True, "mask": padding},
        "dense": {"mask": torch.rand(2, 1, 140, 140, generator=torch.Generator().manual_seed(1)) > 0.3},
        "bias": {"mask": torch.randn(1, 4, 140, 140, generator=torch.Generator().manual_seed(2))},
    }


def _expected(q, k, v, causal=False, window=None, mask=None):
    """torch's own attention in float64."""
    keep = torch.ones(140, 140).bool().tril() if causal else torch.ones(140, 140).bool()
    keep = keep if window is None else keep & ~keep.tril(-window)
    keep = keep if mask is None or mask.dtype != torch.bool else keep & mask
    scores = torch.zeros(keep.shape, dtype=torch.float64).masked_fill(~keep, -torch.inf)
    scores = scores if mask is None or mask.dtype == torch.bool else scores + mask
    wide = [x.double().repeat_interleave(2, dim=1) for x in (k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(q.double(), *wide, attn_mask=scores)
    return out.masked_fill(~keep.any(-1, keepdim=True), 0.0)


def test_the_chip_is_known_and_its_degree():
    assert neuron_backend().platform.chip == CHIP
    assert neuron_backend().lnc.value == (1 if CHIP == "trn1" else 2)


@torch.no_grad()
@pytest.mark.parametrize("case", _masks())
def test_attention_is_torchs(case):
    q, k, v = _inputs()
    options = _masks()[case]
    placed = {name: on_device(x, DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    with nki_hf.using(strict=True), FactoriesOnDevice():
        found = nki_hf.attention(*(on_device(x, DEVICE) for x in (q, k, v)), **placed)
    torch.testing.assert_close(found.inner.double(), _expected(q, k, v, **options), rtol=0, atol=2e-2)


@pytest.mark.parametrize("kernels", [1, 2])
def test_trn1_takes_one_kernel_in_a_graph(kernels):
    def forward(q, k, v):
        for _ in range(kernels):
            q = nki_hf.attention(q, k, v, causal=True)
        return q

    def run():
        if WORLD == "xla":
            return torch_neuronx.trace(forward, tuple(_inputs()))
        compiled = torch.compile(forward, backend="neuron", fullgraph=True, dynamic=False)
        with torch.no_grad():
            return compiled(*(x.to("neuron") for x in _inputs()))

    torch._dynamo.reset()
    if CHIP != "trn1" or kernels == 1:
        run()
        assert len(MACHINE.in_graph) == kernels
        return
    with pytest.raises(LaunchFailed, match="2 kernels in one graph") as caught:
        run()
    assert isinstance(caught.value.__cause__, Refused)
    assert "take one kernel in a graph" in str(caught.value)
