"""Tiny random models for the adapter's tests, and their logits under one implementation or another."""

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
}


def tiny_qwen3(**changes):
    """The base model of these tests, of `SIZES`."""
    return build(Qwen3ForCausalLM, Qwen3Config(**{**SIZES, **changes}))


def build(model_class, config):
    """A model with fixed random weights, in eval mode, built with eager attention."""
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    return model_class(config).eval()


def token_ids(batch=2, length=7, vocab=64):
    """Fixed random token ids `[batch, length]`."""
    return torch.randint(1, vocab, (batch, length), generator=torch.Generator().manual_seed(1))


def logits(model, implementation, *args, **kwargs):
    """The model's logits under an attention implementation, without gradients."""
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(*args, **kwargs).logits


def worst(a, b, rows=None):
    """Largest absolute difference, over the rows where `rows` is 1."""
    difference = (a.double() - b.double()).abs()
    return float((difference if rows is None else difference[rows.bool()]).max())
