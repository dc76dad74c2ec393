"""The bisect script on the xla stand-in: each step is traced by itself, and what breaks is found at its own step."""

import runpy
from pathlib import Path

import pytest
import torch
from fake_neuron import MACHINE

import nki_hf
from nki_hf.backends.neuron_launch import LaunchFailed
from nki_hf.tools.model_bench.device.plan import compiler_arguments

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "device_bisect.py"))
SMALL = SCRIPT["Shape"](heads=4, kv_heads=2, seqlen=48, head_dim=16, layers=2)


@pytest.mark.parametrize("step", SCRIPT["STEPS"]["xla"])
def test_steps_pass_and_each_is_one_trace(step, capsys):
    SCRIPT["run_step"](step, "xla", SMALL)
    assert "RMS error 0." in capsys.readouterr().out
    (trace,) = [record for record in MACHINE.compiles if record.what == "trace"]
    assert trace.key[1] == compiler_arguments("xla", 2)
    assert MACHINE.count("kernel") == (step != "torch")


@pytest.mark.parametrize("step", ["kernel", "kernel-padded", "layer"])
def test_a_broken_kernel_is_found_at_each_step_that_has_it(step):
    MACHINE.broken_kernels["kernel"] = "NCC_EBVF030"
    SCRIPT["run_step"]("torch", "xla", SMALL)
    with pytest.raises(LaunchFailed, match="NCC_EBVF030"):
        SCRIPT["run_step"](step, "xla", SMALL)


def test_the_flags_that_a_failed_launch_prints_name_this_world_and_the_exact_shape(script_of):
    import torch_neuronx

    def attend(q, k, v):
        return nki_hf.attention(q, k, v, causal=True)

    inputs = tuple(torch.randn(1, heads, 70, 24) for heads in (6, 3, 3))
    MACHINE.broken_kernels["kernel"] = "NCC_EBVF030"
    with pytest.raises(LaunchFailed, match="--device xla") as caught:
        torch_neuronx.trace(attend, inputs)
    assert script_of(str(caught.value), "kernel") == list(caught.value.arguments[:3])


def test_steps_of_the_native_world_are_refused():
    assert "no step on xla" in SCRIPT["_unknown"]("xla", "layer-compiled")
    assert SCRIPT["_unknown"]("xla", "layer") == ""
