"""The bisect script on the native stand-in: every step passes, and a broken kernel is found at its own step."""

import runpy
from pathlib import Path

import pytest
import torch
from fake_neuron import MACHINE

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "device_bisect.py"))


@pytest.mark.parametrize("step", ["torch", "kernel", "kernel-padded", "layer", "layer-compiled"])
def test_steps_pass(step):
    torch._dynamo.reset()
    SCRIPT["run_step"](step, "neuron", 48, 2)
    assert MACHINE.count("flash_prefill") == (0 if step == "torch" else 1)


def test_a_broken_kernel_is_found_at_the_kernel_step():
    MACHINE.broken_kernels["flash_prefill"] = "NCC_EBVF030"
    SCRIPT["run_step"]("torch", "neuron", 48, 2)
    with pytest.raises(RuntimeError, match="NCC_EBVF030"):
        SCRIPT["run_step"]("kernel", "neuron", 48, 2)


def test_wrong_numbers_fail():
    with pytest.raises(SystemExit, match="above 5 %"):
        SCRIPT["compare"](torch.full((2, 2), float("nan")), torch.ones(2, 2))
