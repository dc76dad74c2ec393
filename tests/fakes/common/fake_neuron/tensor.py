"""Device tensors without a device: a tensor subclass whose device really is `neuron:0` or `xla:0` and whose data is on CPU.

torch's PrivateUse1 slot is renamed to `neuron` through torch's own (experimental) support for back ends written in Python,
so `.device.type`, `.to("neuron")`, autograd and `torch.compile` behave as for a C++ back end. What is not the same: the real
native tensors are plain `torch.Tensor` objects. torch has no such support for `xla`, so those tensors live in the same
PrivateUse1 slot, under another name, and their `.device` says `xla:0`; new tensors appear there inside `trace` only.
"""

import torch
import torch.utils.backend_registration
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map

from fake_neuron.kept import reserve_core
from fake_neuron.lowering import check_inside_op, check_view
from fake_neuron.machine import MACHINE

__all__ = ["NKI_OPS", "DeviceTensor", "XlaTensor", "adopted", "install_device", "on_device"]

NKI_OPS = {}
"""Ops made by nki_op: qualified name -> the plain function."""

_library = None
_autocast = None


class DeviceTensor(torch.Tensor):
    """`inner` (a CPU or fake tensor) seen as a tensor on `device`."""

    @staticmethod
    def __new__(cls, inner, device):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=device,
            requires_grad=inner.requires_grad,
        )

    def __init__(self, inner, device):
        if not isinstance(inner, FakeTensor):
            reserve_core()
        self.inner = inner

    def __repr__(self):
        return f"DeviceTensor({self.inner!r}, device={self.device})"

    def __tensor_flatten__(self):
        return ["inner"], str(self.device)

    @staticmethod
    def __tensor_unflatten__(inner, device, size, stride):
        return on_device(inner["inner"], device)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        MACHINE.raise_latched()
        kwargs = dict(kwargs or {})
        args, kwargs = tree_map(adopted, (args, kwargs))
        function = NKI_OPS.get(func._schema.name)
        if function is not None:
            before, MACHINE.inside_op = MACHINE.inside_op, True
            try:
                return function(*args, **kwargs)
            finally:
                MACHINE.inside_op = before
        check_view(func, args)
        if MACHINE.inside_op:
            check_inside_op(func._schema.name)
        devices = []

        def unwrap(value):
            if isinstance(value, DeviceTensor):
                devices.append(str(value.device))
                return value.inner
            return value

        inner_args, inner_kwargs = tree_map(unwrap, args), tree_map(unwrap, kwargs)
        target = kwargs.get("device")
        if MACHINE.where == "trace" and (func is torch.ops.aten._local_scalar_dense.default or str(target) == "cpu"):
            MACHINE.frozen.append(func._schema.name)  # the value, read while tracing, is part of the graph from now on
        device = str(target) if target is not None else devices[0]
        if target is not None:
            inner_kwargs["device"] = torch.device("cpu")
        out = func(*inner_args, **inner_kwargs)
        MACHINE.ops.append((func._schema.name, sorted(value.numel() for value in (out,) if isinstance(value, torch.Tensor))))
        if device == "cpu":
            return out
        device = device if ":" in device else f"{device}:0"
        wrapped = tree_map(lambda value: on_device(value, device) if isinstance(value, torch.Tensor) else value, out)
        return return_and_correct_aliasing(func, args, kwargs, wrapped)


def adopted(value):
    """A fake tensor that torch itself made on the device (a factory call under torch.compile), as a device tensor."""
    if not isinstance(value, FakeTensor) or value.device.type == "cpu":
        return value
    with value.fake_mode:
        inner = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
    return on_device(inner, "neuron:0")


class XlaTensor(DeviceTensor):
    """A device tensor that says it is on `xla:0`."""

    @staticmethod
    def __new__(cls, inner, device):
        return DeviceTensor.__new__(cls, inner, "fakexla:0")

    @property
    def device(self):
        return torch.device("xla:0")


def on_device(tensor, device):
    """The data of a CPU (or fake) tensor seen on `device`."""
    return (XlaTensor if str(device).startswith("xla") else DeviceTensor)(tensor, device)


def install_device(name, module=None):
    """Fill torch's PrivateUse1 slot with a device `name` whose tensors are `DeviceTensor`, and `module` as `torch.<name>`."""
    global _library, _autocast
    if _library is not None:
        return
    torch.utils.backend_registration._setup_privateuseone_for_python_backend(name, backend_module=module)
    _library = torch.library.Library("aten", "IMPL")
    _autocast = torch.library.Library("_", "IMPL")  # the real package lets autocast fall through too: it casts nothing
    _autocast.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")

    def empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
        return on_device(torch.empty(size, dtype=dtype), f"{name}:0".replace("fakexla", "xla"))

    def empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
        return on_device(torch.empty_strided(size, stride, dtype=dtype), f"{name}:0".replace("fakexla", "xla"))

    def copy_from(source, target, non_blocking=False):
        target.inner.copy_(source.inner if isinstance(source, DeviceTensor) else source)
        return target

    _library.impl("empty.memory_format", empty, "PrivateUse1")
    _library.impl("_copy_from", copy_from, "PrivateUse1")
    _library.impl("empty_strided", empty_strided, "PrivateUse1")
