"""Training steps of a Qwen3 model on the native fake, op by op and in a compiled graph: the gradients are eager's."""

import pytest
import torch
from fake_neuron import MACHINE
from tiny_qwen3 import eager_and_nki

import nki_hf
from nki_hf.backends.neuron import neuron_backend

STEPS, LAYERS = 2, 2


@pytest.fixture(autouse=True)
def _strict():
    torch._dynamo.reset()
    neuron_backend().compiled.clear()
    with nki_hf.using(strict=True):
        yield


@pytest.mark.parametrize("compiled", [False, True])
def test_a_training_step_has_eagers_gradients_and_builds_each_kernel_once(compiled, counted):
    on_cpu, on_device = eager_and_nki(LAYERS, use_cache=False)
    on_cpu.train()
    run = on_device.train()
    if compiled:
        run = torch.compile(run, backend="neuron", fullgraph=True, dynamic=False)
    ids = torch.randint(1, 64, (1, 32), generator=torch.Generator().manual_seed(1))
    for _ in range(STEPS):
        on_cpu(ids).logits.square().mean().backward()
        run(ids.int().to("neuron")).logits.float().square().mean().backward()
    for (name, one), other in zip(on_cpu.named_parameters(), on_device.parameters(), strict=True):
        torch.testing.assert_close(
            other.grad.cpu(), one.grad, rtol=5e-2, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    words = f"Qwen3, {STEPS} training steps{', torch.compile' * compiled}"
    assert counted(words, MACHINE.count("graph"), "graphs") == int(compiled)
    assert (MACHINE.count("kernel"), MACHINE.count("flash_backward")) == (2, 1)
    assert sum(key[0] == "flash_backward" for key, _ in MACHINE.launches) == STEPS * LAYERS
