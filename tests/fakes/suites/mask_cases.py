"""What the suites of masks on devices share: the cases, a model twice, and what reaches the kernel."""

import copy

import pytest
import torch
from transformers import Qwen3Config, Qwen3Model

from nki_hf.adapters import torch_op

SEQLEN, WINDOW = 260, 70
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "max_position_embeddings": 2048,
}
CASES = {"causal": (None, False), "left-padded": (None, True), "window": (WINDOW, False), "both": (WINDOW, True)}


@pytest.fixture
def masks_seen(monkeypatch):
    """(mask of the problem, blocks a head) of every kernel call."""
    seen, run = [], torch_op._run_kernel

    def recorded(call, decision, turns):
        seen.append((decision.problem.mask, decision.tiles["blocks_per_head"]))
        return run(call, decision, turns)

    monkeypatch.setattr(torch_op, "_run_kernel", recorded)
    return seen


def models(window):
    torch.manual_seed(0)
    kind = "full_attention" if window is None else "sliding_attention"
    config = Qwen3Config(
        **SIZES,
        use_sliding_window=window is not None,
        sliding_window=window,
        layer_types=[kind] * 2,
        attn_implementation="eager",
    )
    on_cpu = Qwen3Model(config).eval()
    on_device = Qwen3Model(copy.deepcopy(config)).eval()
    on_device.load_state_dict(on_cpu.state_dict())
    on_device.set_attn_implementation("nki")
    return on_cpu, on_device.to("neuron")


def padding_of(holes=False):
    padding = torch.ones(2, SEQLEN, dtype=torch.int64)
    padding[1, : SEQLEN // 3] = 0
    if holes:
        padding[0, 40:90:3] = 0
    return padding


def compare(case, cache, masks_seen, *, compiled, holes=False):
    """Run one case on the device: eager's numbers, and a band without a mask of seqlen x seqlen."""
    window, padded = CASES[case]
    on_cpu, on_device = models(window)
    ids = torch.randint(1, 64, (2, SEQLEN), generator=torch.Generator().manual_seed(1))
    padding = padding_of(holes=holes) if padded else None
    with torch.no_grad():
        expected = on_cpu(ids, attention_mask=padding, use_cache=False).last_hidden_state

    def forward(ids, padding):
        return on_device(ids, attention_mask=padding, use_cache=cache).last_hidden_state

    run = torch.compile(forward, backend="neuron", fullgraph=True, dynamic=False) if compiled else forward
    with torch.no_grad():
        found = run(ids.int().to("neuron"), None if padding is None else padding.int().to("neuron")).cpu()
    seen = slice(None) if padding is None else padding.bool()
    torch.testing.assert_close(found[seen], expected[seen], rtol=0, atol=2e-2)
    masks = {mask for mask, _ in masks_seen}
    assert masks
    assert all((mask.window, mask.ahead, mask.q_offset) == (window, 1, 0) for mask in masks), masks
    assert not any(mask.bias_rows for mask in masks), "a mask of seqlen x seqlen reached the kernel"
    assert {blocks for _, blocks in masks_seen} == {-(-SEQLEN // 128)}  # one block of 512 keys for each query tile
