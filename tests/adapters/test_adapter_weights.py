"""Weights that a caller asks for or a model collects: those of eager, or refused by name."""

import pytest
import torch
from tiny import build, tiny_qwen3, token_ids
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GraniteSWAConfig,
    GraniteSWAForCausalLM,
    Pix2StructVisionConfig,
    Pix2StructVisionModel,
)

import nki_hf
from nki_hf import UnsupportedProblem


@pytest.fixture(autouse=True)
def _strict():
    with nki_hf.using(strict=True):
        yield


def test_output_attentions_are_eagers():
    model, ids = tiny_qwen3(), token_ids()
    found = {}
    for name in ("eager", "nki"):
        model.set_attn_implementation(name)
        with nki_hf.using(strict=False), torch.no_grad():
            found[name] = model(ids, output_attentions=True).attentions
    assert len(found["nki"]) == len(found["eager"]) == 2
    for ours, theirs in zip(found["nki"], found["eager"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def _weights(model, implementation, *arguments):
    model.set_attn_implementation(implementation)
    with nki_hf.using(strict=False), torch.no_grad():
        return model(*arguments, output_attentions=True).attentions


def test_weights_that_a_model_collects_itself_are_eagers():
    sizes = {"hidden_size": 32, "patch_embed_hidden_size": 16, "d_ff": 32, "d_kv": 8, "num_hidden_layers": 2}
    config = Pix2StructVisionConfig(num_attention_heads=4, seq_len=8, **sizes)
    model = Pix2StructVisionModel._from_config(config, attn_implementation="eager").eval()
    patches = torch.randn(1, 6, 18)
    patches[..., :2] = torch.arange(6.0)[None, :, None] % 4
    for ours, theirs in zip(_weights(model, "nki", patches), _weights(model, "eager", patches), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_weights_of_a_compiled_model_are_eagers():
    model = build(GPT2LMHeadModel, GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32))
    theirs = _weights(model, "eager", token_ids(1, 5))
    ours = _weights(torch.compile(model, backend="eager"), "nki", token_ids(1, 5))
    assert len(ours) == 2
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)


def test_weights_beside_a_sink_are_those_of_the_models_own_eager():
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = build(GraniteSWAForCausalLM, GraniteSWAConfig(num_key_value_heads=2, pad_token_id=0, **sizes))
    for ours, theirs in zip(_weights(model, "nki", token_ids(1, 6)), _weights(model, "eager", token_ids(1, 6)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_output_attentions_are_refused_in_strict():
    model = tiny_qwen3()
    model.set_attn_implementation("nki")
    with pytest.raises(UnsupportedProblem, match="output_attentions=True"):
        model(token_ids(), output_attentions=True)
