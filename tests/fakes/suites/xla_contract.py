"""The xla world, against its fake: direct kernel calls inside `torch_neuronx.trace`."""

import pytest
import torch
import torch_neuronx
from fake_neuron import MACHINE, Refused
from fake_neuron.tensor import on_device
from fake_neuron.tracing import FactoriesOnDevice

import nki_hf
from nki_hf.backends.base import KernelCall
from nki_hf.backends.neuron import NeuronBackend
from nki_hf.backends.neuron_op import direct_op
from nki_hf.backends.neuron_world import detect_world

BACKEND = NeuronBackend(kernels="contract_kernels")


def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    call = KernelCall(kernel="scale_rows", tensors={"x": x, "shift": None}, constants={"scale": factor, "square": False}, lnc=2)
    return BACKEND.run(call).outputs[0]


class Model(torch.nn.Module):
    def __init__(self, layers=1):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(layers)])

    def forward(self, x):
        positions = torch.arange(x.shape[0], device=x.device)
        for layer in self.layers:
            x = scale(layer(x), 0.5)
        return x + positions[:, None]


def _x(rows=8):
    return torch.arange(rows * 4, dtype=torch.float32).reshape(rows, 4)


def test_the_world_is_recognised_from_the_package_not_from_the_device():
    assert (detect_world().name, detect_world().device) == ("xla", "xla")
    assert not hasattr(torch_neuronx, "nki_op")


def test_a_traced_model_runs_the_kernel_and_gives_cpu_tensors():
    model = Model().eval()
    traced = torch_neuronx.trace(model, _x(), compiler_args=["--lnc=2"])
    with torch.no_grad():
        expected = model.layers[0](_x()) * 0.5 + torch.arange(8)[:, None]
    out = traced(_x())
    assert out.device.type == "cpu"
    torch.testing.assert_close(out, expected)
    assert {where for _, where in MACHINE.launches} == {"trace", "neff"}


def test_28_equal_layers_compile_their_kernel_once():
    torch_neuronx.trace(Model(28).eval(), _x())
    assert (MACHINE.count("trace"), MACHINE.count("scale_rows")) == (1, 1)


def test_a_traced_model_survives_saving_and_loading(tmp_path):
    traced = torch_neuronx.trace(Model().eval(), _x())
    torch.jit.save(traced, str(tmp_path / "m.pt"))
    torch.testing.assert_close(torch.jit.load(str(tmp_path / "m.pt"))(_x()), traced(_x()))


def test_the_direct_op_runs_the_kernel_and_its_gradient():
    def saves(ctx, inputs, output):
        ctx.factor = inputs[1]

    differentiable = direct_op(scale, lambda ctx, grad: (grad * ctx.factor, None), saves)
    x = on_device(_x(), "xla:0").requires_grad_()
    out = differentiable(x, 3.0)
    out.sum().backward()
    torch.testing.assert_close(out.detach().inner, _x() * 3)
    torch.testing.assert_close(x.grad.inner, torch.full((8, 4), 3.0))


@pytest.mark.parametrize("window", [None, 9])
def test_the_adapters_gradients_on_xla_are_those_of_torch(window):
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, heads, 24, 16, generator=draw) for heads in (4, 2, 2)]
    weight = torch.randn(1, 4, 24, 16, generator=draw)
    on_cpu = [x.double().requires_grad_() for x in inputs]
    keep = torch.ones(24, 24, dtype=torch.bool).tril()
    keep = keep if window is None else keep & ~keep.tril(-window)
    wide = [on_cpu[0], *(x.repeat_interleave(2, dim=1) for x in on_cpu[1:])]
    expected = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=keep)
    (expected * weight).sum().backward()

    leaves = [on_device(x, "xla:0").requires_grad_() for x in inputs]
    with FactoriesOnDevice():
        out = nki_hf.attention(*leaves, causal=True, window=window)
    assert MACHINE.count("kernel") == 1
    torch.testing.assert_close(out.detach().inner.double(), expected.detach(), rtol=0, atol=1e-2)
    with FactoriesOnDevice():
        (out * on_device(weight, "xla:0")).sum().backward()
    for leaf, right in zip(leaves, on_cpu, strict=True):
        torch.testing.assert_close(leaf.grad.inner.double(), right.grad, rtol=0, atol=2e-2)


@pytest.mark.parametrize(
    ("attempt", "rule"),
    [
        (lambda: torch_neuronx.trace(Model(), on_device(_x(), "xla:0")), "trace-cpu-inputs"),
        (lambda: torch_neuronx.trace(Model(), _x())(on_device(_x(), "xla:0")), "trace-cpu-inputs"),
        (lambda: torch_neuronx.trace(Model(), _x(), None, "dir"), "trace-keywords"),
        (lambda: torch_neuronx.trace(lambda x: {"out": x}, _x()), "trace-outputs"),
        (lambda: torch_neuronx.trace(lambda x: (x, None), _x()), "trace-outputs"),
        (lambda: torch_neuronx.trace(Model(), _x())(_x(16)), "trace-static"),
        (lambda: torch_neuronx.trace(Model(), _x())(_x().double()), "trace-static"),
        (lambda: torch_neuronx.trace(Model(), _x(), compiler_args="-O1 --lnc=1"), "trace-lnc"),
        (lambda: torch_neuronx.trace(Model(), _x(), compiler_args=["--lnc", "1"]), "trace-lnc"),
        (lambda: torch_neuronx.trace(Model(), _x(), compiler_args=["--logical-nc-config=1"]), "trace-lnc"),
    ],
)
def test_what_trace_refuses(attempt, rule):
    with pytest.raises(Refused) as caught:
        attempt()
    assert caught.value.rule == rule
