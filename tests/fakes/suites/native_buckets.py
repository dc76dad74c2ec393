"""Prompts of many lengths, left-padded to few lengths, on the native stand-in: values, and what is compiled."""

import copy

import pytest
import torch
from fake_neuron import MACHINE
from transformers import Qwen3Config, Qwen3ForCausalLM

import nki_hf

BUCKETS = {64: (40, 64, 17), 128: (70, 128, 100), 256: (130, 256, 200)}
"""Bucket -> lengths of the prompts that are left-padded to it; one of each fills it."""


def _models():
    """The same random weights twice: eager on the CPU, nki on the device."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        attn_implementation="eager",
    )
    on_cpu, on_device = Qwen3ForCausalLM(config).eval(), Qwen3ForCausalLM(copy.deepcopy(config)).eval()
    on_device.load_state_dict(on_cpu.state_dict())
    on_device.set_attn_implementation("nki")
    return on_cpu, on_device.to("neuron")


@torch.no_grad()
@pytest.mark.parametrize(("compiled", "per_bucket"), [(False, 2), (True, 1)], ids=["eager", "torch.compile"])
def test_prompts_of_many_lengths_share_the_kernels_of_their_buckets(compiled, per_bucket, counted):
    """Outside a graph a prompt that fills its bucket needs no mask, which is a kernel of its own; a graph keeps its mask."""
    torch._dynamo.reset()
    on_cpu, on_device = _models()

    def call(ids, mask):
        return on_device(ids, attention_mask=mask, use_cache=False).logits

    run = torch.compile(call, backend="neuron", fullgraph=True, dynamic=False) if compiled else call
    with nki_hf.using(strict=True):
        for bucket, lengths in BUCKETS.items():
            for length in lengths:
                ids = torch.randint(1, 64, (1, bucket))
                mask = (torch.arange(bucket) >= bucket - length).long()[None]
                out = run(ids.int().to("neuron"), mask.int().to("neuron")).cpu()
                expected = on_cpu(ids, attention_mask=mask, use_cache=False).logits
                torch.testing.assert_close(out[mask.bool()], expected[mask.bool()], rtol=0, atol=2e-2)
    run_name = f"Qwen3, nine prompts in buckets of 64, 128, 256, {'torch.compile' if compiled else 'eager'}"
    assert counted(run_name, MACHINE.count("kernel")) == per_bucket * len(BUCKETS)
    assert MACHINE.count("graph") == (len(BUCKETS) if compiled else 0)
