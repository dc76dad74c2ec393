"""The native world's custom op and torch.compile, against the fakes."""

import pytest
import torch
import torch_neuronx
from fake_neuron import MACHINE, Refused
from fake_neuron.tensor import NKI_OPS

from nki_hf import lang
from nki_hf.backends import neuron_op
from nki_hf.backends.base import KernelCall
from nki_hf.backends.neuron import NeuronBackend
from nki_hf.backends.neuron_op import register_native_op
from nki_hf.backends.neuron_world import Host
from nki_hf.errors import BackendUnavailable

BACKEND = NeuronBackend(kernels="contract_kernels")


@pytest.fixture(autouse=True)
def _fresh_graphs():
    torch._dynamo.reset()


def scale(x: torch.Tensor, shift: torch.Tensor | None, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    call = KernelCall(
        kernel="scale_rows", tensors={"x": x, "shift": shift}, constants={"scale": factor, "square": False}, lnc=2
    )
    (out,) = BACKEND.run(call).outputs
    return out, torch.zeros(x.shape[0], device=x.device)


def saves(ctx, inputs, output):
    ctx.factor = inputs[2]


def gradients(ctx, grad, _):
    return grad * ctx.factor, None, None


@torch.compiler.assume_constant_result
def ready():
    return register_native_op("nki_hf_test::scale", scale, gradients, saves)


def op(x, shift, factor):
    ready()
    return torch.ops.nki_hf_test.scale(x, shift, factor)


def _x(rows=8):
    return torch.arange(rows * 4, dtype=torch.float32).reshape(rows, 4).to("neuron")


def test_op_runs_eagerly_and_is_registered_once():
    assert ready()
    first = NKI_OPS["nki_hf_test::scale"]
    assert ready()
    assert NKI_OPS["nki_hf_test::scale"] is first
    out, rest = op(_x(), None, 2.0)
    assert out.device.type == rest.device.type == "neuron"
    torch.testing.assert_close(out.cpu(), _x().cpu() * 2)


def test_schema_is_inferred_from_real_annotations_even_if_they_were_text():
    def text(x: "torch.Tensor", shift: "torch.Tensor | None", factor: "float") -> "torch.Tensor":
        return scale(x, shift, factor)[0]

    register_native_op("nki_hf_test::text", text)
    torch.testing.assert_close(torch.ops.nki_hf_test.text(_x(), None, 3.0).cpu(), _x().cpu() * 3)


def test_gradients_flow_through_the_op():
    x = _x().requires_grad_()
    op(x, None, 2.5)[0].sum().backward()
    torch.testing.assert_close(x.grad.cpu(), torch.full((8, 4), 2.5))


def test_compiled_graph_holds_the_kernel_and_is_built_once_per_shape():
    compiled = torch.compile(lambda x: op(x + 1, None, 2.0)[0] * 3, backend="neuron", fullgraph=True, dynamic=False)
    for _ in range(3):
        torch.testing.assert_close(compiled(_x()).cpu(), (_x().cpu() + 1) * 6)
    assert (MACHINE.count("graph"), MACHINE.count("scale_rows")) == (1, 1)
    assert {where for _, where in MACHINE.launches} == {"graph"}
    compiled(_x(16))
    assert (MACHINE.count("graph"), MACHINE.count("scale_rows")) == (2, 2)


def test_fake_tensors_retrace_the_kernel_for_its_shapes_before_it_runs():
    torch.compile(lambda x: op(x, None, 2.0)[0], backend="neuron", fullgraph=True, dynamic=False)(_x())
    assert list(MACHINE.shapes.values()) == [[((8, 4), torch.float32)]]


@pytest.mark.parametrize("dynamic", [True, None])
def test_dynamic_shapes_are_refused_by_the_back_end(dynamic):
    compiled = torch.compile(lambda x: x + 1, backend="neuron", fullgraph=True, dynamic=dynamic)
    with pytest.raises(Exception, match="graph-static"):
        (compiled(_x()), compiled(_x(16)))


def test_a_kernel_in_a_graph_of_dynamic_shapes_says_what_to_do():
    compiled = torch.compile(lambda x: op(x, None, 2.0)[0], backend="neuron", fullgraph=True, dynamic=True)
    with pytest.raises(Exception, match="Compile with dynamic=False"):
        compiled(_x(16))


@pytest.mark.parametrize("option", [{"mode": "max-autotune"}, {"options": {"x": 1}}])
def test_compile_modes_and_options_are_refused(option):
    with pytest.raises(Exception, match="graph-mode"):
        torch.compile(lambda x: x + 1, backend="neuron", **option)(_x())


def test_plain_custom_op_is_opaque_to_the_compiler():
    torch.library.define("nki_hf_test::opaque", "(Tensor x) -> Tensor")
    torch.library.impl("nki_hf_test::opaque", "CompositeExplicitAutograd", torch.clone)
    with pytest.raises(Exception, match="graph-opaque-op"):
        torch.compile(lambda x: torch.ops.nki_hf_test.opaque(x), backend="neuron")(_x())


def test_python_that_reads_values_fails_under_fake_tensors():
    def reads(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x[0, 0].item() > 0 else x * 3

    register_native_op("nki_hf_test::reads", reads)
    with pytest.raises(Exception, match=r"item|data-dependent|_local_scalar_dense"):
        torch.compile(lambda x: torch.ops.nki_hf_test.reads(x), backend="neuron", fullgraph=True, dynamic=False)(_x())


def test_tensors_of_the_other_world_get_a_reason():
    nothing = Host(import_module=lambda name: (_ for _ in ()).throw(ImportError(name)), version=lambda name: None)
    with pytest.raises(BackendUnavailable, match="this process has none"):
        register_native_op("nki_hf_test::elsewhere", scale, host=nothing)


# ---- what nki_op refuses ------------------------------------------------------------------------------------------------


def _kernel_itself():
    torch_neuronx.nki_op("nki_hf_test::k", mutates_args={})(lang.load("contract_kernels.scale_rows", "neuron").scale_rows)


def _bare_name():
    torch_neuronx.nki_op("scale", mutates_args={})(scale)


def _no_annotation():
    def bare(x, factor: float) -> torch.Tensor:
        return x

    register_native_op("nki_hf_test::bare", bare)


def _foreign_annotation():
    def foreign(x: torch.Tensor, factor: complex, plan: object) -> torch.Tensor:
        return x

    register_native_op("nki_hf_test::foreign", foreign)


def _alias():
    def alias(x: torch.Tensor) -> torch.Tensor:
        return x.t()

    register_native_op("nki_hf_test::alias", alias)
    torch.ops.nki_hf_test.alias(_x())


def _text_annotations(patch):
    patch.setattr(neuron_op.typing, "get_type_hints", lambda function: function.__annotations__)

    def text(x: "torch.Tensor") -> "torch.Tensor":
        return x.clone()

    register_native_op("nki_hf_test::text_mutation", text)


@pytest.mark.parametrize(
    ("attempt", "rule"),
    [
        (_kernel_itself, "op-plain-function"),
        (_bare_name, "op-qualified-name"),
        (_no_annotation, "op-annotations"),
        (_foreign_annotation, "op-annotations"),
        (_alias, "op-fresh-outputs"),
    ],
)
def test_what_nki_op_refuses(attempt, rule):
    with pytest.raises(Refused) as caught:
        attempt()
    assert caught.value.rule == rule


def test_without_resolving_annotations_the_contract_refuses(monkeypatch):
    with pytest.raises(Refused) as caught:
        _text_annotations(monkeypatch)
    assert caught.value.rule == "op-annotations"
