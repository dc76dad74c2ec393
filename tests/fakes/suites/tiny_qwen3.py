"""A tiny random Qwen3 model twice: what the suites of the native fake hold against each other."""

import copy

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
}


def eager_and_nki(layers=2, **changes):
    """The same random weights in eval mode: eager on the CPU, nki on the device."""
    torch.manual_seed(0)
    config = Qwen3Config(num_hidden_layers=layers, attn_implementation="eager", **{**SIZES, **changes})
    on_cpu = Qwen3ForCausalLM(config).eval()
    on_device = Qwen3ForCausalLM(copy.deepcopy(config)).eval()
    on_device.load_state_dict(on_cpu.state_dict())
    on_device.set_attn_implementation("nki")
    return on_cpu, on_device.to("neuron")
