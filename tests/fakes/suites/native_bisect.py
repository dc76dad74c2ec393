"""The bisect script on the native stand-in: every step passes, and what breaks is found at its own step."""

import runpy
from pathlib import Path

import pytest
import torch
from fake_neuron import MACHINE

import nki_hf
from nki_hf.backends.neuron_launch import LaunchFailed

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "device_bisect.py"))
SMALL = SCRIPT["Shape"](heads=4, kv_heads=2, seqlen=48, head_dim=16, layers=2)


@pytest.fixture(autouse=True)
def _fresh_graphs():
    torch._dynamo.reset()


@pytest.mark.parametrize("step", SCRIPT["STEPS"]["neuron"])
def test_steps_pass_and_each_reaches_the_kernel_where_it_says(step, capsys):
    SCRIPT["run_step"](step, "neuron", SMALL)
    assert "RMS error 0." in capsys.readouterr().out
    layers = {"layer": 1, "model": 2, "kernel": 1}.get(step.split("-")[0], 0)
    assert len(MACHINE.launches) == layers
    assert {where for _, where in MACHINE.launches} == ({"graph" if "compiled" in step else "eager"} if layers else set())


def test_a_broken_kernel_is_found_at_the_kernel_step():
    MACHINE.broken_kernels["kernel"] = "NCC_EBVF030"
    SCRIPT["run_step"]("torch", "neuron", SMALL)
    with pytest.raises(LaunchFailed, match="NCC_EBVF030"):
        SCRIPT["run_step"]("kernel", "neuron", SMALL)


def test_a_kernel_that_breaks_in_graphs_only_is_found_at_the_first_compiled_step(monkeypatch):
    from fake_neuron.kernel import FakeKernel

    run = FakeKernel._run

    def breaks(self, key, arguments):
        if MACHINE.where == "graph":
            raise RuntimeError("NCC_ITEN404: internal tensorizer error")
        return run(self, key, arguments)

    monkeypatch.setattr(FakeKernel, "_run", breaks)
    SCRIPT["run_step"]("layer", "neuron", SMALL)
    with pytest.raises(LaunchFailed, match="NCC_ITEN404"):
        SCRIPT["run_step"]("layer-compiled", "neuron", SMALL)


@pytest.mark.parametrize(
    ("sizes", "dtype"), [((2, 6, 3, 70, 70, 24, 24), "bfloat16"), ((1, 4, 2, 3, 140, 16, 32), "float32")], ids=str
)
def test_the_flags_that_a_failed_launch_prints_give_its_exact_shape(sizes, dtype, script_of):
    batch, heads, kv_heads, seqlen, seqlen_kv, head_dim, head_dim_v = sizes
    q, k, v = (
        torch.randn(batch, *size, dtype=getattr(torch, dtype)).to("neuron")
        for size in ((heads, seqlen, head_dim), (kv_heads, seqlen_kv, head_dim), (kv_heads, seqlen_kv, head_dim_v))
    )
    MACHINE.broken_kernels["kernel"] = "NCC_EBVF030"
    with pytest.raises(LaunchFailed) as caught:
        nki_hf.attention(q, k, v, causal=True)
    assert script_of(str(caught.value), "kernel") == list(caught.value.arguments[:3])


def test_wrong_numbers_fail():
    with pytest.raises(ValueError, match="above 5%"):
        SCRIPT["compare"](torch.full((2, 2), float("nan")), torch.ones(2, 2))
