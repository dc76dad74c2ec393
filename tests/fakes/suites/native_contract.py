"""The native world, against its fake: launches, the contract's rules, and what happens when our code breaks one."""

import warnings
from types import SimpleNamespace

import nki
import pytest
import torch
import torch_neuronx  # noqa: F401  (autoloaded by torch on a real machine)
from fake_neuron import MACHINE, Refused
from fake_neuron.kernel import FakeKernel
from fake_neuron.tensor import on_device

import nki_hf
from nki_hf import dispatch, lang
from nki_hf.adapters import call_log
from nki_hf.adapters.call_log import FallbackWarning
from nki_hf.backends import neuron_eager, neuron_launch
from nki_hf.backends.base import KernelCall
from nki_hf.backends.neuron import NeuronBackend
from nki_hf.backends.neuron_launch import LaunchFailed
from nki_hf.errors import BackendUnavailable, UnsupportedProblem
from nki_hf.problem import Mask, Problem
from nki_hf.tools.kernel_lint import lint_source


@pytest.fixture
def backend():
    return NeuronBackend(kernels="contract_kernels")


def _x(rows=8, columns=16, dtype=torch.float32, device="neuron:0"):
    return on_device(torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns).to(dtype), device)


def _call(x=None, shift=None, scale=0.5, square=False, **changes):
    fields = {
        "kernel": "scale_rows",
        "tensors": {"x": _x() if x is None else x, "shift": shift},
        "constants": {"scale": scale, "square": square},
        "lnc": 2,
    }
    return KernelCall(**{**fields, **changes})


def test_a_kernel_runs_on_the_device_of_its_tensors(backend):
    x = _x(dtype=torch.bfloat16)
    (out,) = backend.run(_call(x, shift=x)).outputs
    assert (out.device.type, out.dtype) == ("neuron", torch.bfloat16)
    torch.testing.assert_close(out.cpu(), x.cpu() * 0.5 + x.cpu())
    assert MACHINE.launches[0][0][1] == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: _x(16, 8).t(),
        lambda: _x(12, 16)[4:],
        lambda: torch.nn.Parameter(_x()),
        lambda: _x(8, 32)[:, ::2],
    ],
    ids=["transposed", "offset", "parameter", "strided"],
)
def test_views_and_parameters_are_made_plain_and_dense(backend, make):
    x = make()
    (out,) = backend.run(_call(x)).outputs
    torch.testing.assert_close(out.cpu(), x.detach().cpu() * 0.5)
    assert not out.requires_grad


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"x": torch.ones(8, 16)}, "device"),
        ({"x": _x().to(torch.float64)}, "x.dtype"),
        ({"x": _x().to(torch.int64)}, "x.dtype"),
        ({"x": _x() > 0}, "x.dtype"),
        ({"scale": [0.5]}, "scale"),
        ({"scale": torch.tensor(0.5)}, "scale"),
        ({"scale": 2**31}, "scale"),
        ({"lnc": 1}, "lnc"),
        ({"shift": torch.ones(8, 16)}, "device"),
        ({"shift": _x(device="neuron:1")}, "device"),
        ({"scale": (_x(),)}, "scale"),
    ],
)
def test_arguments_that_nki_refuses_or_misreads_are_refused_first(backend, changes, field):
    with pytest.raises(UnsupportedProblem) as caught:
        backend.run(_call(**changes))
    assert caught.value.reasons[0].field == field
    assert MACHINE.launches == []


@pytest.mark.parametrize(
    ("tensors", "constants", "words"),
    [
        ({"x": _x()}, {"scale": 1.0, "square": False}, r"missing=\['shift'\]"),
        ({"x": _x(), "shift": None}, {"scale": 1.0, "square": False, "tile": 1}, r"unknown=\['tile'\]"),
        ({"x": _x(), "shift": None, "scale": None}, {"scale": 1.0, "square": False}, r"twice=\['scale'\]"),
    ],
)
def test_every_parameter_is_passed_once(backend, tensors, constants, words):
    with pytest.raises(ValueError, match=words):
        backend.run(_call(tensors=tensors, constants=constants))


def test_constants_reach_the_kernel_in_the_kernels_order_whatever_the_calls(backend):
    call = _call(constants={"square": False, "scale": 0.25})
    torch.testing.assert_close(backend.run(call).outputs[0].cpu(), _x().cpu() * 0.25)


def test_one_scale_computed_in_two_ways_is_one_compiled_kernel(backend):
    scales = (128**-0.5, 1 / 128**0.5, 0.08838834764831845)
    assert len(set(scales)) > 1
    for scale in scales:
        backend.run(_call(scale=scale))
    assert MACHINE.count("scale_rows") == len(backend.compiled) == 1


def test_each_constant_is_a_kernel_of_its_own_in_the_count_as_in_the_compiler(backend):
    for scale, square in ((0.5, False), (0.25, False), (0.5, True), (0.5, False)):
        backend.run(_call(scale=scale, square=square))
    assert MACHINE.count("scale_rows") == len(backend.compiled) == 3


def test_the_tensors_of_the_other_world_are_refused_by_name(backend):
    with pytest.raises(BackendUnavailable, match="this process has the native world"):
        backend.run(_call(SimpleNamespace(device=torch.device("xla:0"))))


def test_with_nkis_own_simulator_switched_on_nothing_is_launched(monkeypatch):
    monkeypatch.setenv("NKI_SIMULATOR", "1")
    with pytest.raises(BackendUnavailable, match="NKI_SIMULATOR=1"):
        NeuronBackend(kernels="contract_kernels").run(_call())
    kernel = lang.load("contract_kernels.scale_rows", "neuron").scale_rows
    with pytest.raises(Refused) as caught:
        kernel[2](_x(), None, 0.5, False)
    assert caught.value.rule == "simulator-off"
    assert MACHINE.launches == []


def test_out_of_memory_names_kernel_shapes_and_remedy(backend):
    MACHINE.hbm_bytes = 100
    with pytest.raises(LaunchFailed, match=r"scale_rows\[2\]\(x=\[8, 16\] float32, .* memory is full") as caught:
        backend.run(_call())
    assert "NRT_RESOURCE" in str(caught.value.__cause__)


def test_compile_failure_names_kernel_and_shapes_and_keeps_its_cause(backend):
    MACHINE.broken_kernels["scale_rows"] = "NCC_IXCG967: internal compiler error\nlong log"
    with pytest.raises(LaunchFailed, match=r"x=\[8, 16\] float32.*NCC_IXCG967: internal compiler error") as caught:
        backend.run(_call())
    assert "long log" not in str(caught.value)
    assert "long log" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("kernel", "rule"),
    [("hbm_output", "output-shared-hbm"), ("returns_input", "output-fresh")],
)
def test_wrong_outputs_are_refused_by_the_contract(backend, kernel, rule):
    with pytest.raises(LaunchFailed) as caught:
        backend.run(KernelCall(kernel=kernel, tensors={"x": _x()}, constants={}, lnc=2))
    assert caught.value.__cause__.rule == rule


def test_a_keyword_only_parameter_is_refused_when_the_kernel_is_loaded(backend):
    with pytest.raises(Refused, match="signature-kinds"):
        backend.run(KernelCall(kernel="keyword_only", tensors={"x": _x()}, constants={"scale": 1.0}, lnc=2))


@pytest.mark.parametrize("signature", ["x, /", "x, *, scale", "x, *more", "x, **more", "x, scale=1.0"])
def test_the_lint_names_every_signature_that_is_refused(signature):
    function = {}
    exec(f"def kernel({signature}): return x", function)
    source = f"from nki_hf.lang import nki, nl\n\n\n@nki.jit\ndef kernel({signature}):\n    return nl.zeros(x.shape, nl.int8)\n"
    found = {finding.rule for finding in lint_source(source)} & {"keyword-only", "variadic", "positional-only"}
    if found:
        with pytest.raises(Refused, match="signature-kinds"):
            FakeKernel(function["kernel"])
    else:
        FakeKernel(function["kernel"])
    assert bool(found) == (signature != "x, scale=1.0")


@torch.no_grad()
def test_a_fallback_in_float64_does_not_call_narrowed_numbers_right():
    call_log.reset()
    q = torch.randn(1, 2, 8, 16, dtype=torch.float64).to("neuron:0")
    with pytest.warns(FallbackWarning, match=r"those of a narrower type \(neuron has no float64\), the speed is torch's"):
        nki_hf.attention(q, q, q)
    call_log.reset()
    with pytest.warns(FallbackWarning, match="The numbers are right"):
        nki_hf.attention(q.cpu(), q.cpu(), q.cpu())


def test_shared_parts_of_kernels_speak_the_language_of_the_kernel(backend):
    (out,) = backend.run(KernelCall(kernel="uses_part", tensors={"x": _x()}, constants={}, lnc=2)).outputs
    torch.testing.assert_close(out.cpu(), _x().cpu())
    for language, module in (("neuron", "nki.language"), ("simulator", "nki_hf.sim.language")):
        part = lang.load("contract_kernels.uses_part", language).uses_part.function.__globals__["copy_in"]
        assert part.__globals__["nl"].__name__ == module


def test_output_that_one_core_did_not_write_is_seen(backend):
    (out,) = backend.run(KernelCall(kernel="half_written", tensors={"x": _x()}, constants={}, lnc=2)).outputs
    assert out.cpu()[4:].isnan().all()
    assert not out.cpu()[:4].isnan().any()


def test_a_late_change_of_the_environment_is_refused(backend, monkeypatch):
    assert backend.unavailable() is None  # the LNC is read once, here
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    with pytest.raises(LaunchFailed) as caught:
        backend.run(_call())
    assert caught.value.__cause__.rule == "environment-early"


# ---- mutations: our code with one rule taken out must be refused by the fake --------------------------------------------


def _no_dense(monkeypatch):
    original = neuron_launch._tensor
    monkeypatch.setattr(neuron_launch, "_tensor", lambda call, name, t: t if t is not None else original(call, name, t))


MUTATIONS = {
    "tensor-dense": (_no_dense, lambda: _call(_x(16, 8).t())),
    "tensor-offset": (_no_dense, lambda: _call(_x(12, 16)[4:])),
    "tensor-plain": (_no_dense, lambda: _call(torch.nn.Parameter(_x()))),
    "tensor-dtype": (_no_dense, lambda: _call(_x().to(torch.int64))),
    "constant-kind": (
        lambda patch: patch.setattr(neuron_launch, "_constant", lambda call, name, value: value),
        lambda: _call(scale=[0.5]),
    ),
    "tensor-top-level": (
        lambda patch: patch.setattr(neuron_launch, "_constant", lambda call, name, value: value),
        lambda: _call(scale=(_x(),)),
    ),
    "tensor-on-device": (
        lambda patch: patch.setattr(neuron_launch, "device_world", lambda kind: "native"),
        lambda: _call(torch.ones(8, 16)),
    ),
    "tensor-one-device": (
        lambda patch: patch.setattr(neuron_launch, "arguments_of", lambda call, _: [_x(), _x(device="neuron:1"), 0.5, False]),
        _call,
    ),
    "all-parameters": (
        lambda patch: patch.setattr(neuron_launch, "arguments_of", lambda call, _: [call.tensors["x"], None, 0.5]),
        _call,
    ),
    "lnc-bare-int": (lambda patch: _bracket(patch, lambda kernel, lnc: kernel[(lnc,)]), _call),
    "lnc-agrees": (lambda patch: _bracket(patch, lambda kernel, lnc: kernel), _call),
}


def _bracket(patch, choose):
    class Wrapped:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, lnc):
            return choose(self.kernel, lnc)

    original = NeuronBackend._kernel
    patch.setattr(NeuronBackend, "_kernel", lambda self, *names: Wrapped(original(self, *names)))


@pytest.mark.parametrize("rule", MUTATIONS)
def test_without_our_care_the_contract_refuses(rule, backend, monkeypatch):
    mutate, make = MUTATIONS[rule]
    mutate(monkeypatch)
    with pytest.raises((Refused, LaunchFailed)) as caught:
        backend.run(make())
    refused = caught.value if isinstance(caught.value, Refused) else caught.value.__cause__
    assert getattr(refused, "rule", refused) == rule


@pytest.mark.parametrize(("version", "rule"), [("0.6.0", "lnc-one-per-process"), ("0.7.0", "lnc-agrees")])
def test_a_second_lnc_in_one_process_never_reaches_nki(backend, monkeypatch, version, rule):
    """Before 0.7 nki takes any LNC, on half of the core pair, and its cache does not tell the two kernels apart."""
    MACHINE.nki_version = version
    backend.run(_call())
    with pytest.raises(UnsupportedProblem) as caught:
        backend.run(_call(lnc=1))
    assert caught.value.reasons[0].field == "lnc"
    _bracket(monkeypatch, lambda kernel, lnc: kernel[1])
    with pytest.raises(LaunchFailed) as caught:
        backend.run(_call())
    assert caught.value.__cause__.rule == rule


# ---- our own kernel, through the adapter --------------------------------------------------------------------------------


def _attention(device="neuron:0", keys=40, **changes):
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, length, 16, generator=draw) for heads, length in ((4, 24), (2, keys), (2, keys)))
    if device is None:
        return nki_hf.attention(q, k, v, **changes)
    return nki_hf.attention(*(on_device(x, device) for x in (q, k, v)), **changes)


@pytest.mark.parametrize("version", ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0"])
def test_our_kernel_runs_under_the_front_end_of_every_version(version):
    MACHINE.nki_version = version
    with nki_hf.using(strict=True):
        for _ in range(2):
            out = _attention(causal=True)
            torch.testing.assert_close(out.cpu(), _attention(None, causal=True), rtol=0, atol=0)
    assert MACHINE.count("kernel") == 1


LOOPS = [
    ("0.3.0", None, False),
    ("0.5.0", None, False),
    ("0.5.0", "tracer", False),
    ("0.6.0", None, False),
    ("0.6.0", "tracer", True),
    ("0.7.0", None, True),
    ("0.7.0+standin", "tracer", True),
    ("0.7.0", "custom", False),
    ("0.10.1", None, True),
]


@pytest.mark.parametrize(("version", "chosen", "loops"), LOOPS)
def test_a_kernel_with_loops_of_run_time_is_chosen_only_where_a_tracer_takes_them(version, chosen, loops, monkeypatch):
    MACHINE.nki_version = version
    monkeypatch.setattr(nki, "__version__", version)
    monkeypatch.delenv("NKI_COMPILER_FRONTEND", raising=False)
    if chosen is not None:
        monkeypatch.setenv("NKI_COMPILER_FRONTEND", chosen)
    monkeypatch.setattr(dispatch, "features", lang.features.__wrapped__)
    problem = Problem(
        batch=1,
        num_heads_q=4,
        num_heads_kv=2,
        seqlen_q=512,
        seqlen_kv=512,
        head_dim=64,
        head_dim_v=64,
        dtype="bfloat16",
        mask=Mask(ahead=1),
    )
    decision = dispatch.decide.__wrapped__(problem, backend="neuron", chip="trn2", lnc=2)
    assert decision.kernel == ("flash_const_max" if loops else "flash_prefill")


@pytest.mark.parametrize(("version", "taken"), [("0.6.0", False), ("0.7.0", True)])
def test_source_that_only_the_tracer_takes_is_refused_by_the_parser(backend, version, taken):
    MACHINE.nki_version = version
    call = KernelCall(kernel="for_the_tracer", tensors={"x": _x()}, constants={"scale": None}, lnc=2)
    if taken:
        torch.testing.assert_close(backend.run(call).outputs[0].cpu(), _x().cpu())
        return
    with pytest.raises(LaunchFailed, match=r"tuple-loop|builtin") as caught:
        backend.run(call)
    assert caught.value.__cause__.rule == "front-end"


def test_a_kernel_that_reads_a_changed_global_is_refused(backend):
    call = KernelCall(kernel="reads_global", tensors={"x": _x()}, constants={}, lnc=2)
    backend.run(call)
    lang.load("contract_kernels.reads_global", "neuron").FACTOR = 3.0
    with pytest.raises(LaunchFailed, match=r"FACTOR=2\.0, which is 3\.0") as caught:
        backend.run(call)
    assert caught.value.__cause__.rule == "kernel-pure"


def test_a_bool_mask_reaches_the_kernel_as_bytes():
    mask = torch.rand(1, 1, 24, 40, generator=torch.Generator().manual_seed(1)) > 0.3
    found = _attention(mask=on_device(mask, "neuron:0"))
    torch.testing.assert_close(found.cpu(), _attention(None, mask=mask), rtol=0, atol=0)


@pytest.mark.parametrize("rows", [1, 24])
def test_the_lse_of_a_call_without_keys_is_not_the_sink_itself(rows):
    empty = on_device(torch.zeros(1, 4, 0, 16), "neuron:0")
    q, sink = on_device(torch.ones(1, 4, rows, 16), "neuron:0"), on_device(torch.arange(4.0), "neuron:0")
    out, lse = nki_hf.attention(q, empty, empty, sink=sink, return_lse=True)
    assert torch.equal(out.cpu(), torch.zeros(1, 4, rows, 16))
    assert torch.equal(lse.cpu(), torch.arange(4.0)[None, :, None].expand(1, 4, rows))


def test_our_op_in_a_compiled_graph_holds_the_kernel_and_takes_tensors_of_the_device():
    torch._dynamo.reset()
    compiled = torch.compile(nki_hf.attention, backend="neuron", fullgraph=True, dynamic=False)
    inputs = [torch.randn(1, 2, 32, 16) for _ in range(3)]
    found = compiled(*(x.to("neuron") for x in inputs))
    torch.testing.assert_close(found.cpu(), nki_hf.attention(*inputs), rtol=0, atol=0)
    assert (MACHINE.count("graph"), MACHINE.count("kernel")) == (1, 1)


def test_a_graph_with_an_input_on_the_cpu_is_refused():
    torch._dynamo.reset()
    with pytest.raises(Exception, match="graph-device"):
        torch.compile(lambda x, y: x + y.to("neuron"), backend="neuron", fullgraph=True)(_x(), torch.ones(8, 16))


def test_a_call_outside_of_a_graph_is_warned_of_once_with_its_cost_and_the_way_out(monkeypatch):
    monkeypatch.setattr(neuron_eager, "_warned", False)
    q = torch.zeros(1, 2, 4, 16).to("neuron")
    with pytest.warns(neuron_eager.EagerCallWarning, match=r"about 50 ms of host time.*torch\.compile"):
        nki_hf.attention(q, q, q, causal=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", neuron_eager.EagerCallWarning)
        nki_hf.attention(q, q, q, causal=True)
