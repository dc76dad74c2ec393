"""A Qwen3 model through the whole adapter inside `torch_neuronx.trace`: values, compilations, and how failures surface."""

import copy

import pytest
import torch
import torch_neuronx
from fake_neuron import MACHINE, Refused
from fake_neuron.tensor import on_device
from transformers import Qwen3Config, Qwen3Model

import nki_hf
from nki_hf.backends.neuron import NeuronBackend
from nki_hf.backends.neuron_launch import LaunchFailed
from nki_hf.errors import BackendUnavailable, UnsupportedProblem
from nki_hf.tools.model_bench.model import LastHidden
from nki_hf.tools.model_bench.worlds import choose_device

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
}


@pytest.fixture(autouse=True)
def _strict():
    with nki_hf.using(strict=True):
        yield


def _models(layers=2):
    """The same random weights twice: eager on the CPU, nki to be traced."""
    torch.manual_seed(0)
    config = Qwen3Config(num_hidden_layers=layers, attn_implementation="eager", **SIZES)
    eager, nki = Qwen3Model(config).eval(), Qwen3Model(copy.deepcopy(config)).eval()
    nki.load_state_dict(eager.state_dict())
    nki.set_attn_implementation("nki")
    return LastHidden(eager), LastHidden(nki)


def _ids(batch=1, length=64):
    return torch.randint(1, 64, (batch, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_28_layers_at_three_lengths_are_three_traces_and_three_kernels(counted):
    eager, nki = _models(layers=28)
    for length in (32, 64, 96):
        ids = _ids(length=length)
        traced = torch_neuronx.trace(nki, (ids,))
        for _ in range(2):
            out = traced(ids)
        torch.testing.assert_close(out, eager(ids), rtol=0, atol=2e-2)
    assert counted("Qwen3, 28 layers, traced at 32, 64, 96 tokens, two calls each", MACHINE.count("trace"), "traces") == 3
    assert counted("the same", MACHINE.count("kernel")) == 3


@torch.no_grad()
def test_left_padded_batches_of_changing_lengths_are_one_trace_whatever_its_example_was(counted):
    """The example has no padding at all: had its values been looked at, the graph would see none ever after."""
    eager, nki = _models()
    ids = _ids(batch=2, length=128)
    traced = torch_neuronx.trace(nki, (ids, torch.ones_like(ids)))
    assert MACHINE.frozen == []
    for lengths in ((128, 128), (100, 128), (64, 90), (128, 3)):
        mask = torch.stack([(torch.arange(128) >= 128 - length).long() for length in lengths])
        out, expected = traced(ids, mask), eager(ids, mask)
        torch.testing.assert_close(out[mask.bool()], expected[mask.bool()], rtol=0, atol=2e-2)
    kernels = counted("Qwen3, left-padded batches of 128 tokens, four paddings, traced once", MACHINE.count("kernel"))
    assert (MACHINE.count("trace"), kernels) == (1, 1)


def test_sdpa_looks_at_the_padding_while_it_is_traced(counted):
    """Transformers' own mask function does what ours must not: the stand-in sees it, so the test above can fail."""
    _, model = _models()
    model.model.set_attn_implementation("sdpa")
    torch_neuronx.trace(model, (_ids(), torch.ones_like(_ids())))
    assert MACHINE.frozen


def test_a_scale_per_layer_compiles_once_per_scale(counted):
    _, nki = _models(layers=6)
    for number, layer in enumerate(nki.model.layers):
        layer.self_attn.scaling = (0.25, 0.25 + 1e-12, 0.3)[number % 3]
    torch_neuronx.trace(nki, (_ids(),))
    assert counted("Qwen3, 6 layers of three scales, two of them equal in float32", MACHINE.count("kernel")) == 2


@pytest.mark.parametrize("failure", ["memory", "compiler"])
def test_failures_surface_with_kernel_shape_layer_and_remedy(failure):
    _, nki = _models(layers=3)
    nki.model.layers[1].self_attn.scaling = 0.5  # a kernel of its own, so that layer 1 is the one that fails
    if failure == "memory":
        advice = "The device's memory is full"

        def breaks():
            MACHINE.hbm_bytes = 1000
    else:
        advice = "python examples/device_bisect.py --device xla --batch 1 --heads 4 --kv-heads 2 --seqlen 64"

        def breaks():
            MACHINE.broken_kernels["kernel"] = "[F134] neuronx-cc terminated abnormally"

    nki.model.layers[0].register_forward_hook(lambda *_: breaks())
    with pytest.raises(LaunchFailed, match=r"flash_prefill\[2\]\(q=\[1, 4, 16, 64\] float32") as caught:
        torch_neuronx.trace(nki, (_ids(),))
    assert advice in str(caught.value)
    assert caught.value.__notes__ == ["This call came from Qwen3Attention 1."]


def test_with_nkis_own_simulator_switched_on_nothing_is_launched(monkeypatch):
    x = on_device(torch.ones(1, 2, 8, 16), "xla:0")
    monkeypatch.setenv("NKI_SIMULATOR", "1")
    assert "NKI_SIMULATOR=1: every kernel would run" in NeuronBackend().unavailable()
    with pytest.raises(BackendUnavailable, match="Unset it for Neuron tensors"):
        choose_device("xla")
    from nki_hf.adapters import device

    monkeypatch.setattr(device, "neuron_backend", NeuronBackend)
    with pytest.raises(UnsupportedProblem, match="NKI_SIMULATOR=1"):
        nki_hf.attention(x, x, x)
    assert MACHINE.launches == []
    # Without our care the call reaches nki, and the stand-in refuses what nki itself would run on the CPU without a word:
    kernel = NeuronBackend(kernels="contract_kernels")._kernel("scale_rows")
    with pytest.raises(Refused) as caught:
        kernel[2](on_device(torch.ones(8, 16), "xla:0"), None, 0.5, False)
    assert caught.value.rule == "simulator-off"
