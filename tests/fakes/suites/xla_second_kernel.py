"""A second kernel, added as a folder and a line, on the xla world's device."""

import sys
from pathlib import Path

import pytest
import torch
from fake_neuron import MACHINE
from fake_neuron.tensor import on_device

import nki_hf
from nki_hf.backends.neuron import neuron_backend
from nki_hf.dispatch import decide
from nki_hf.kernels import registry

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))


@torch.no_grad()
@pytest.mark.parametrize("limit", [10_000, 1])
def test_it_is_launched_split_and_joined_with_the_cpus_values(monkeypatch, limit):
    monkeypatch.setattr(registry, "PACKAGES", [*registry.PACKAGES, "flash_small"])
    monkeypatch.setattr(neuron_backend(), "_max_instructions", limit)
    decide.cache_clear()
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, rows, 16, generator=draw) for heads, rows in ((4, 30), (2, 90), (2, 90)))
    want = nki_hf.attention(q, k, v)
    nki_hf.explain(reset=True)
    found = nki_hf.attention(*(on_device(tensor, "xla:0") for tensor in (q, k, v)))
    torch.testing.assert_close(found.cpu(), want, rtol=0, atol=0)
    (row,) = nki_hf.explain().rows
    assert (row.first.kernel, row.first.backend) == ("flash_small", "neuron")
    assert len(MACHINE.launches) == (1 if limit > 1 else 8)
    decide.cache_clear()
