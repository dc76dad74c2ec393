"""The mutants of tools/mutation/contract.py: our source with one precaution taken out, and the rule that must refuse it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MUTANTS", "NO_MUTANT", "Change", "ContractMutant", "Without"]


@dataclass(frozen=True)
class Change:
    """In `file` (relative to the project), `old`, which stands there exactly once (see replacing.py), becomes `new`."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class ContractMutant:
    """One precaution taken out.

    Attributes:
      rule: of the contract, which must refuse the mutant.
      suite: in tests/fakes/suites.
      tests: of that suite that are run, as pytest's -k takes them.
      what: what is left of the precaution, in words.
      changes: of the source.
    """

    rule: str
    suite: str
    tests: str
    what: str
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Without:
    """A rule that no change of our source can break: the reason, and the test in which the stand-in refuses."""

    reason: str
    test: str


_LAUNCH = "nki_hf/backends/neuron_launch.py"
_NEURON = "nki_hf/backends/neuron.py"
_OP = "nki_hf/backends/neuron_op.py"
_TORCH_OP = "nki_hf/adapters/torch_op.py"
_KERNEL = "nki_hf/kernels/flash_prefill/kernel.py"
_WORLDS = "nki_hf/tools/model_bench/worlds.py"
_TRACED = "nki_hf/tools/model_bench/device/traced.py"
_MODEL = "nki_hf/tools/model_bench/model.py"
_BENCH = "examples/qwen3_bench.py"


def _mutant(rule: str, tests: str, what: str, *changes: tuple[str, str, str]) -> ContractMutant:
    suite, _, chosen = tests.partition("::")
    return ContractMutant(rule, suite, chosen, what, tuple(Change(*change) for change in changes))


_CALLED = "outputs = kernel[lnc](*arguments)"
_COMPILED = 'torch.compile(module, backend="neuron", fullgraph=True, dynamic=False)'
_PASSED = "_constant(call, name, named[name]) for name in parameters"
_NATIVE_OP = 'register_native_op("nki_hf_neuron::attention", attention, _native_backward, save)'

MUTANTS = (
    # launching a kernel
    _mutant("lnc-bare-int", "native_contract::test_a_kernel_runs_on_the_device", "the degree is a launch grid",
            (_LAUNCH, _CALLED, "outputs = kernel[(lnc,)](*arguments)")),
    _mutant("lnc-agrees", "native_contract::test_a_kernel_runs_on_the_device", "the bracket is forgotten",
            (_LAUNCH, _CALLED, "outputs = kernel(*arguments)")),
    _mutant("lnc-one-per-process", "native_contract::test_a_second_lnc", "the call chooses its degree",
            (_LAUNCH, "if call.lnc != lnc:", "if False:"),
            (_LAUNCH, _CALLED, "outputs = kernel[call.lnc](*arguments)")),
    _mutant("tensor-on-device", "native_contract::test_arguments_that_nki_refuses", "the tensors' device is not asked",
            (_LAUNCH, "if len(devices) != 1 or device_world(next(iter(devices)).split(\":\")[0]) is None:", "if False:")),
    _mutant("tensor-one-device", "native_contract::test_arguments_that_nki_refuses", "only one tensor's device is asked",
            (_LAUNCH, "if len(devices) != 1 or device_world(", "if device_world(")),
    _mutant("tensor-top-level", "native_contract::test_arguments_that_nki_refuses", "what a tuple holds is not looked at",
            (_LAUNCH, "return tuple(_constant(call, name, item) for item in value)", "return value")),
    _mutant("tensor-dense", "native_contract::test_views_and_parameters", "views are passed on",
            (_LAUNCH, "return tensor.contiguous()", "return tensor")),
    _mutant("tensor-dense", "native_contract::test_our_kernel_runs", "the adapter's transposed views are passed on",
            (_LAUNCH, "if not tensor.is_contiguous():", "if not tensor.transpose(-1, -2).is_contiguous():")),
    _mutant("tensor-offset", "native_contract::test_views_and_parameters", "slices are passed on",
            (_LAUNCH, "return tensor.clone() if tensor.storage_offset() else tensor", "return tensor")),
    _mutant("tensor-dtype", "native_contract::test_arguments_that_nki_refuses", "every element type is passed on",
            (_LAUNCH, "if dtype not in DEVICE_DTYPES:", "if False:")),
    _mutant("tensor-dtype", "native_contract::test_arguments_that_nki_refuses", "64-bit integers count as a device's",
            (_LAUNCH, '"int8", "uint8")', '"int8", "uint8", "int64")')),
    _mutant("tensor-plain", "native_contract::test_views_and_parameters", "Parameters are passed on",
            (_LAUNCH, "tensor = tensor.detach()", "pass")),
    _mutant("constant-kind", "native_contract::test_arguments_that_nki_refuses", "lists are passed on",
            (_LAUNCH, "type(value) in (bool, str):", "type(value) in (bool, str, list):")),
    _mutant("constant-kind", "native_contract::test_arguments_that_nki_refuses", "integers of any width are passed on",
            (_LAUNCH, "if type(value) is int and value in _INT32:", "if type(value) is int:")),
    _mutant("all-parameters", "native_contract::test_a_kernel_runs_on_the_device or test_one_scale",
            "absent tensors and constants are left out",
            (_LAUNCH, _PASSED, _PASSED + " if named[name] is not None")),
    _mutant("environment-early", "native_contract_environment::test_the_benchmarks_variables",
            "the benchmark sets its variables after its imports",
            (_BENCH, "    prepare_environment(options)\n    check_files(options)", "    check_files(options)"),
            (_BENCH, "    device = choose_device(options.device)\n", "    prepare_environment(options)\n"
             "    device = choose_device(options.device)\n")),
    _mutant("simulator-off", "native_contract::test_with_nkis_own_simulator", "NKI_SIMULATOR is not asked",
            (_NEURON, "detect_nki(self._host).problem or simulator_problem(self._host)", "detect_nki(self._host).problem")),
    # what a kernel is
    _mutant("signature-kinds", "native_contract::test_our_kernel_runs", "options are keyword-only",
            (_KERNEL, "    v,\n    lo=None,", "    v,\n    *,\n    lo=None,")),
    _mutant("output-shared-hbm", "native_contract::test_our_kernel_runs", "the output lies in the core's own memory",
            (_KERNEL, "dtype=q.dtype, buffer=nl.shared_hbm", "dtype=q.dtype, buffer=nl.hbm")),
    _mutant("front-end", "native_contract::test_our_kernel_runs", "the pipeline's state is a dictionary by number",
            (_KERNEL, "live = [None, None, None, None, None]", "live = {0: None, 1: None, 2: None, 3: None, 4: None}")),
    _mutant("front-end", "native_contract::test_our_kernel_runs", "the element type is that of 0.5",
            (_KERNEL, "scaled = softcap ==", "newest = nl.float8_e8m0fnu\n    scaled = softcap ==")),
    _mutant("kernel-pure", "native_contract::test_our_kernel_runs", "a count of the launches names the output",
            (_KERNEL, "@nki.jit\n", "COUNT = 0\n\n\n@nki.jit\n"),
            (_KERNEL, "    program, programs = 0, 1\n", "    global COUNT\n    COUNT += 1\n    program, programs = 0, 1\n")),
    _mutant("output-fresh", "native_contract::test_our_kernel_runs", "the kernel returns what it was given",
            (_KERNEL, "return out, lse, row_shift, row_sum return out, lse",
             "return out, lse, row_shift, row_sum\n    return q, lse")),
    # custom ops and graphs
    _mutant("op-plain-function", "native_contract::test_our_op_in_a_compiled_graph", "the kernel itself is made the op",
            (_TORCH_OP, _NATIVE_OP,
             _NATIVE_OP.partition(" attention,")[0]
             + ' backend_of.__globals__["neuron_backend"]()._kernel("flash_prefill"))'),
            (_OP, "    function.__annotations__ = typing.get_type_hints(function)\n",
             '    if hasattr(function, "__globals__"):\n        function.__annotations__ = typing.get_type_hints(function)\n')),
    _mutant("op-qualified-name", "native_contract::test_our_op_in_a_compiled_graph", "the op has no namespace",
            (_TORCH_OP, _NATIVE_OP, _NATIVE_OP.replace("nki_hf_neuron::", ""))),
    _mutant("op-annotations", "native_contract::test_our_op_in_a_compiled_graph", "annotations stay text",
            (_OP, "    function.__annotations__ = typing.get_type_hints(function)\n", "")),
    _mutant("op-annotations", "native_contract::test_our_op_in_a_compiled_graph", "a parameter of the op has no annotation",
            (_TORCH_OP, "ahead: int | None) -> tuple[torch.Tensor, torch.Tensor]:",
             "ahead) -> tuple[torch.Tensor, torch.Tensor]:")),
    _mutant("op-fresh-outputs", "native_contract::test_the_lse_of_a_call", "the lse of a call without keys is the sink itself",
            ("nki_hf/adapters/layouts.py", ".expand_as(lse).clone(memory_format=torch.contiguous_format)", ".expand_as(lse)")),
    _mutant("graph-static", "native_bench::test_headline", "the benchmark's graph has dynamic shapes",
            (_WORLDS, _COMPILED, _COMPILED.replace("dynamic=False", "dynamic=True"))),
    _mutant("graph-mode", "native_bench::test_headline", "the benchmark chooses another mode",
            (_WORLDS, _COMPILED, _COMPILED.replace("dynamic=False", 'dynamic=False, mode="max-autotune"'))),
    _mutant("graph-opaque-op", "native_contract::test_our_op_in_a_compiled_graph", "the device gets the op of the CPU",
            (_TORCH_OP, "native_ops_are_registered() ops = (torch.ops.nki_hf_neuron.attention, torch.ops.nki_hf_neuron.",
             "ops = (attention_op, torch.ops.nki_hf.")),
    _mutant("op-lowering", "native_contract::test_our_op_in_a_compiled_graph", "the op sorts the values",
            ("nki_hf/adapters/layouts.py", 'return found["out"], lse.contiguous()',
             'return found["out"].sort(dim=-1).values, lse.contiguous()')),
    _mutant("dtype-view", "native_contract::test_a_bool_mask_reaches", "a bool mask is seen as bytes on every device",
            ("nki_hf/adapters/layouts.py",
             'array.view(torch.uint8) if array.device.type == "cpu" else array.to(torch.uint8)', "array.view(torch.uint8)")),
    _mutant("graph-device", "native_bench::test_headline", "the benchmark's token ids stay on the CPU",
            (_WORLDS, 'subject.prompt.input_ids.to(torch.int32).to("neuron")', "subject.prompt.input_ids.to(torch.int32)")),
    _mutant("graph-integers", "native_bench::test_headline", "the benchmark's token ids stay 64 bits wide",
            (_WORLDS, 'subject.prompt.input_ids.to(torch.int32).to("neuron")', 'subject.prompt.input_ids.to("neuron")')),
    # torch_neuronx.trace (xla)
    _mutant("trace-cpu-inputs", "xla_bench::test_headline", "the example inputs have no data on the CPU",
            (_TRACED, "            tuple(inputs),\n", '            tuple(x.to("meta") for x in inputs),\n')),
    _mutant("trace-keywords", "xla_bench::test_headline", "the compiler's folder is passed by position",
            (_TRACED, "            compiler_workdir=str(", "            str(")),
    _mutant("trace-outputs", "xla_bench::test_headline", "the traced module returns the model's output object",
            (_MODEL, "use_cache=False).last_hidden_state", "use_cache=False)")),
    _mutant("trace-static", "xla_bench::test_padded_and_window", "the key of a traced model omits its inputs",
            (_TRACED, '        "inputs": [[list(tensor.shape), str(tensor.dtype)] for tensor in inputs],\n', "")),
    _mutant("trace-lnc", "xla_bench::test_headline", "the compiler is told another degree",
            (_WORLDS, 'arguments = compiler_arguments("xla", lnc)', 'arguments = compiler_arguments("xla", 1)')),
    _mutant("trace-weights", "xla_bench::test_headline", "the weights stay outside of the compiled model",
            (_TRACED, "inline_weights_to_neff=True", "inline_weights_to_neff=False")),
)  # fmt: skip
"""Every mutant, in the order of the rules."""

NO_MUTANT = {
    "kernels-per-graph": Without(
        "no precaution is known: a model of several layers has a kernel for each; the failure says so",
        "chips::test_trn1_takes_one_kernel_in_a_graph",
    ),
    "core-one-process": Without(
        "no precaution of one place; the benchmark's parent launches nothing before its compiling child has ended",
        "test_rehearsal::test_the_core_belongs_to_one_process_at_a_time",
    ),
}
"""Rules that no small change of our source can break."""
