"""Fake of `torch_neuronx.nki_op`: a torch custom op whose own function is also its fake implementation."""

import functools
import inspect

import torch

from fake_neuron.kernel import FakeKernel
from fake_neuron.rules import refuse
from fake_neuron.tensor import NKI_OPS, DeviceTensor

__all__ = ["nki_op"]


def nki_op(name, *, mutates_args=()):
    """Decorator for a plain function that calls kernels; gives a `CustomOpDef`."""
    if name.count("::") != 1 or not all(name.split("::")):
        refuse("op-qualified-name", f"nki_op({name!r})")

    def decorate(function):
        if isinstance(function, FakeKernel):
            refuse("op-plain-function", f"nki_op({name!r}) decorates the kernel {function.__name__}")
        _check_annotations(name, function)
        checked = _fresh_outputs(name, function)
        op = torch.library.custom_op(name, checked, mutates_args=set(mutates_args))
        op.register_fake(checked)
        NKI_OPS[name] = checked
        return op

    return decorate


def _check_annotations(name, function):
    signature = inspect.signature(function)
    named = {**{key: value.annotation for key, value in signature.parameters.items()}, "return": signature.return_annotation}
    for key, annotation in named.items():
        if annotation is inspect.Signature.empty or isinstance(annotation, str):
            refuse("op-annotations", f"{name}: {key} is annotated with {annotation!r}")
    try:
        torch.library.infer_schema(function, mutates_args=())
    except ValueError as error:
        refuse("op-annotations", f"{name}: {error}")


def _fresh_outputs(name, function):
    @functools.wraps(function)
    def checked(*args, **kwargs):
        outputs = function(*args, **kwargs)
        taken = {_storage(value) for value in [*args, *kwargs.values()] if isinstance(value, torch.Tensor)}
        for output in outputs if isinstance(outputs, tuple) else (outputs,):
            if _storage(output) in taken:
                refuse("op-fresh-outputs", f"{name} returns an input or a view of one")
        return outputs

    return checked


def _storage(tensor):
    inner = tensor.inner if isinstance(tensor, DeviceTensor) else tensor
    return inner.untyped_storage()._cdata
