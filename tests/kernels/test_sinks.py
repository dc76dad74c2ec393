"""Sinks that are no number or have no weight: every forward kernel keeps the rule that `kernels.reference` states."""

import numpy as np
import pytest
import torch

import nki_hf
from nki_hf import dispatch
from nki_hf.adapters import decision
from nki_hf.kernels import reference, registry
from nki_hf.problem import Mask, Problem

SINKS = (torch.nan, torch.inf, -torch.inf, -3.4e38, 1.0)
ROWS = {"flash_prefill": 140, "flash_const_max": 140, "flash_decode": 16}


def _forget():
    dispatch.decide.cache_clear()
    decision._decided.cache_clear()


@pytest.mark.parametrize(
    ("kernel", "chip"),  # flash_const_max needs NeuronCore-v3
    [(kernel, chip) for kernel in ROWS for chip in ("trn1", "trn2") if (kernel, chip) != ("flash_const_max", "trn1")],
)
def test_a_sink_that_is_no_number_spoils_the_rows_of_its_head_alone(kernel, chip, monkeypatch):
    """A tile without keys, a tile where some rows have none, and a row with one key."""
    monkeypatch.setattr(registry, "PACKAGES", [f"nki_hf.kernels.{kernel}"])
    _forget()
    rows, keys = ROWS[kernel], 150
    first = 130 if rows > 128 else 7
    torch.manual_seed(3)
    q, k, v = (torch.randn(1, heads, size, 16).bfloat16() for heads, size in ((5, rows), (1, keys), (1, keys)))
    sink = torch.tensor(SINKS)
    nki_hf.explain(reset=True)  # of what other tests ran
    with torch.no_grad(), nki_hf.using(strict=True, backend="simulator", chip=chip):
        out, lse = nki_hf.attention(q, k, v, causal=True, q_offset=-first, sink=sink, return_lse=True)
        assert [row.first.kernel for row in nki_hf.explain(reset=True).rows] == [kernel]
    _forget()
    problem = Problem(
        batch=1,
        num_heads_q=5,
        num_heads_kv=1,
        seqlen_q=rows,
        seqlen_kv=keys,
        head_dim=16,
        head_dim_v=16,
        dtype="bfloat16",
        mask=Mask(q_offset=-first, ahead=1),
        sink=True,
    )
    with np.errstate(invalid="ignore"):
        want, want_lse = reference.attention(problem, *(each.double().numpy() for each in (q, k, v)), sink=sink.numpy())
    assert np.isnan(want[0, :2]).all()
    assert out[0, :2, first:].isnan().all()
    empty = out[0, :2, :first]
    assert bool((empty.isnan() | (empty == 0)).all())
    assert bool((out[0, 2:, :first] == 0).all())
    np.testing.assert_allclose(out[0, 2:].double(), want[0, 2:], atol=0.02)
    np.testing.assert_allclose(lse[0, 2:], want_lse[0, 2:], rtol=1e-3, atol=1e-3)
