"""Fake of `torch_neuronx.trace`: a module compiled for one set of shapes, CPU tensors in and out."""

import os

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from fake_neuron.machine import MACHINE
from fake_neuron.rules import refuse
from fake_neuron.tensor import DeviceTensor, on_device

__all__ = ["FactoriesOnDevice", "Traced", "trace"]

DEVICE = "xla:0"


class Traced:
    """A compiled module. It takes tensors of the traced shapes and dtypes, on the CPU, and gives CPU tensors."""

    def __init__(self, function, signature, weights_inside):
        self.function, self.signature = function, signature
        self.core = None
        self.weights_inside = weights_inside

    def __call__(self, *inputs):
        if not self.weights_inside and self.core is None:
            refuse("trace-weights", "a traced model without its weights was called before move_trace_to_device")
        _check_on_host("an input of a traced model", inputs)
        if _signature(inputs) != self.signature:
            refuse("trace-static", f"traced for {self.signature}, called with {_signature(inputs)}")
        before, MACHINE.where = MACHINE.where, "neff"
        try:
            return _run(self.function, inputs)
        finally:
            MACHINE.where = before


def trace(
    func,
    example_inputs,
    *_positional,
    input_output_aliases=None,
    compiler_workdir=None,
    compiler_args=None,
    partitioner_config=None,
    inline_weights_to_neff=True,
    cpu_backend=False,
):
    """Compile `func` for the shapes of `example_inputs`."""
    if _positional:
        refuse("trace-keywords", f"trace was given {len(_positional)} more positional arguments")
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    _check_on_host("an example input", inputs)
    flags = compiler_args.split() if isinstance(compiler_args, str) else list(compiler_args or [])
    for position, flag in enumerate(flags):
        name, _, value = flag.partition("=")
        if name in ("--lnc", "--logical-nc-config"):
            value = value or "".join(flags[position + 1 : position + 2])
            if value != str(MACHINE.lnc):
                refuse("trace-lnc", f"compiler argument {name} {value} on a runtime of LNC {MACHINE.lnc}")
    MACHINE.compiled("trace", (_signature(inputs), tuple(flags)), "trace")
    before, MACHINE.where = MACHINE.where, "trace"
    MACHINE.in_graph.clear()
    try:
        outputs = _run(func, inputs)
    finally:
        MACHINE.where = before
    for output in outputs if isinstance(outputs, tuple) else (outputs,):
        if not isinstance(output, torch.Tensor):
            refuse("trace-outputs", f"the traced function returns {type(output).__name__}")
    if compiler_workdir is not None:
        os.makedirs(compiler_workdir, exist_ok=True)
        with open(os.path.join(compiler_workdir, "graph.neff"), "w") as file:
            file.write("fake")
    return Traced(func, _signature(inputs), inline_weights_to_neff)


class FactoriesOnDevice(TorchDispatchMode):
    """Tensors that the model makes on the lazy device, which torch cannot allocate."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        target = kwargs.get("device")
        has_device_tensor = any(issubclass(kind, DeviceTensor) for kind in types)
        if target is not None and torch.device(target).type == "xla" and not has_device_tensor:
            kwargs["device"] = torch.device("cpu")
            return on_device(func(*args, **kwargs), DEVICE)
        return func(*args, **kwargs)


def _run(function, inputs):
    with torch.no_grad(), FactoriesOnDevice():
        values = [on_device(value, DEVICE) for value in inputs]
        if isinstance(function, torch.nn.Module):
            state = {**dict(function.named_parameters()), **dict(function.named_buffers())}
            state = {name: on_device(value, DEVICE) for name, value in state.items()}
            outputs = torch.func.functional_call(function, state, tuple(values), tie_weights=True)
        else:
            outputs = function(*values)
    return tree_map(lambda value: value.inner if isinstance(value, DeviceTensor) else value, outputs)


def _check_on_host(what, inputs):
    for value in inputs:
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
            refuse("trace-cpu-inputs", f"{what} is {type(value).__name__} on {getattr(value, 'device', 'no device')}")


def _signature(inputs):
    return tuple((tuple(value.shape), str(value.dtype)) for value in inputs)
