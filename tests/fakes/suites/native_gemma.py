"""Windows and softcaps through the whole adapter on the native fake: generation in a graph, and training."""

import copy

import pytest
import torch
from fake_neuron import MACHINE
from transformers import Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig

import nki_hf

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "sliding_window": 8,
    "attn_implementation": "eager",
}


@pytest.fixture(autouse=True)
def _strict():
    torch._dynamo.reset()
    with nki_hf.using(strict=True):
        yield


def _gemmas(kind):
    """The same random weights twice, eager on the CPU and nki on the device: windows of 8 keys, and Gemma 2's softcap."""
    torch.manual_seed(0)
    if kind == "gemma2":
        config, made = Gemma2Config(num_hidden_layers=2, query_pre_attn_scalar=16, **SIZES), Gemma2ForCausalLM
    else:
        config, made = Gemma3TextConfig(num_hidden_layers=6, **SIZES), Gemma3ForCausalLM
    on_cpu, on_device = made(config).eval(), made(copy.deepcopy(config)).eval()
    on_device.load_state_dict(on_cpu.state_dict())
    on_device.set_attn_implementation("nki")
    return on_cpu, on_device.to("neuron")


@pytest.mark.parametrize("kind", ["gemma2", "gemma3"])
def test_windows_and_softcaps_generate_in_the_graph_that_generate_compiles_and_train(kind):
    MACHINE.takes_int64 = True
    on_cpu, on_device = _gemmas(kind)
    ids = torch.randint(1, 64, (2, 20), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        expected = on_cpu.generate(ids, attention_mask=mask, **options)
        found = on_device.generate(ids.to("neuron"), attention_mask=mask.to("neuron"), cache_implementation="static", **options)
    assert found.cpu().tolist() == expected.tolist()
    # Rows that see no key are zeros here and an average in eager, so what they predict does not count.
    labels = ids.masked_fill(mask.roll(1, dims=1) == 0, -100)
    for model, place in ((on_cpu, "cpu"), (on_device, "neuron")):
        model.train()
        model(ids.to(place), attention_mask=mask.to(place), labels=labels.to(place)).loss.backward()
    for (name, one), other in zip(on_cpu.named_parameters(), on_device.parameters(), strict=True):
        torch.testing.assert_close(
            other.grad.cpu(), one.grad, rtol=5e-2, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
