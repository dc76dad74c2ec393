"""200 greedy steps of a tiny model through flash_decode: the tokens of eager, and few programs, whatever the cache."""

import copy

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

import nki_hf
from nki_hf.backends.simulator import simulator_backend

STEPS = 200
PROMPT = 7
CACHES = {
    "dynamic": {},
    "left padding": {"padded": True},
    "static": {"cache_implementation": "static", "disable_compile": True, "padded": True},
    "sliding": {"sliding": True},
    "beams": {"num_beams": 2},
    "assisted": {"assistant": True},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
}


def model_of(sliding):
    torch.manual_seed(3)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 97,
        "max_position_embeddings": 512,
        "head_dim": 16,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": None,
    }
    if sliding:
        layers = ["sliding_attention", "full_attention"]
        return Gemma3ForCausalLM(Gemma3TextConfig(**sizes, sliding_window=33, layer_types=layers)).eval()
    return LlamaForCausalLM(LlamaConfig(**sizes)).eval()


def generated(model, implementation, options):
    options = dict(options)
    batch = 1 if "prompt_lookup_num_tokens" in options or "assistant" in options else 2
    ids = torch.randint(2, 97, (batch, PROMPT), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    if options.pop("padded", False):
        mask[0, :3] = 0
    if options.pop("assistant", False):
        other, draw = copy.deepcopy(model), torch.Generator().manual_seed(2)
        with torch.no_grad():
            for weight in other.parameters():  # agrees sometimes, so that tokens are both accepted and taken back
                weight += 0.01 * torch.randn(weight.shape, generator=draw)
        options["assistant_model"] = other
        other.set_attn_implementation(implementation)
    options.pop("sliding", None)
    model.set_attn_implementation(implementation)
    return model.generate(ids, attention_mask=mask, max_new_tokens=STEPS, do_sample=False, **options)


@pytest.mark.parametrize(
    "cache", [*[pytest.param(name, marks=pytest.mark.slow) for name in CACHES if name != "left padding"], "left padding"]
)
def test_greedy_tokens_of_200_steps_are_those_of_eager(cache):
    model = model_of("sliding" in CACHES[cache])
    expected = generated(model, "eager", CACHES[cache])
    target = simulator_backend("trn2")
    target.clear()
    with nki_hf.using(strict=True, backend="simulator", chip="trn2"):
        got = generated(model, "nki", CACHES[cache])
    assert torch.equal(got, expected)
    assert any(row.first.kernel == "flash_decode" for row in nki_hf.explain().rows)
    programs = {key for key in target._pool._idle if key[0] == "flash_decode"}
    assert 1 <= len(programs) <= 6
