"""Masks in compiled graphs on the native stand-in: the same structure and numbers as without."""

import pytest
import torch
from mask_cases import CASES, SEQLEN, WINDOW, compare, masks_seen, models  # noqa: F401  (a fixture)

import nki_hf


@pytest.fixture(autouse=True)
def _strict():
    torch._dynamo.reset()
    with nki_hf.using(strict=True):
        yield


@pytest.mark.parametrize(
    ("case", "cache"),
    [
        (case, cache)
        for case, (window, _) in CASES.items()
        for cache in (False, True)
        # The stand-in cannot copy a window's cache, which holds a CPU tensor, to the device inside a graph.
        if not (cache and window is not None)
    ],
)
def test_a_mask_keeps_its_structure_and_its_numbers(case, cache, masks_seen):  # noqa: F811
    compare(case, cache, masks_seen, compiled=True)


def test_padding_with_holes_is_exact(masks_seen):  # noqa: F811
    compare("both", False, masks_seen, compiled=True, holes=True)


@torch.no_grad()
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("window", [None, WINDOW, 1])
def test_packed_sequences_in_a_graph_are_bounds_and_exact(packed, window, masks_seen):  # noqa: F811
    on_cpu, on_device = models(window)
    ids = torch.arange(2 * SEQLEN).reshape(2, -1) % 63
    positions = torch.arange(SEQLEN).repeat(2, 1)
    if packed:
        positions = torch.stack([torch.arange(SEQLEN) % 100, torch.cat([torch.arange(7, 40), torch.arange(SEQLEN - 33)])])
    expected = on_cpu(ids, position_ids=positions, use_cache=False).last_hidden_state
    run = torch.compile(
        lambda ids, positions: on_device(ids, position_ids=positions, use_cache=False).last_hidden_state,
        backend="neuron",
        fullgraph=True,
        dynamic=False,
    )
    found = run(ids.int().to("neuron"), positions.int().to("neuron")).cpu()
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-2)
    assert all(mask.runtime_bounds and mask.bias is None and mask.ahead == 1 for mask, _ in masks_seen)
