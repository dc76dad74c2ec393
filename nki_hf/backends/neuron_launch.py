"""One launch on a Neuron device: `kernel[lnc](...)` with every argument, in order, of the kinds that nki documents.

The rules enforced here are nki's, before nki sees the call, because its own reaction is late (minutes of compilation) or
missing (a strided tensor is read as if it were dense). Tensors are touched only through their methods, so this file does
not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nki_hf.backends.base import KernelCall
from nki_hf.backends.neuron_advice import Cause, cause_of, lines_of
from nki_hf.backends.neuron_world import device_world
from nki_hf.errors import DeviceFailed, Reason, UnsupportedProblem
from nki_hf.kernels.division import axis_sizes
from nki_hf.kernels.registry import find

__all__ = ["DEVICE_DTYPES", "LaunchFailed", "arguments_of", "launch", "signature_key"]

DEVICE_DTYPES = ("bfloat16", "float16", "float32", "int32", "uint32", "int16", "uint16", "int8", "uint8")
"""Element types that a launch passes on. 64-bit types are downcast or refused by the compiler depending on its version, and
bool was read as uint8 before nki 0.4; callers convert."""

_BISECT = {
    "batch": "batch",
    "heads": "num_heads_q",
    "kv-heads": "num_heads_kv",
    "seqlen": "seqlen_q",
    "seqlen-kv": "seqlen_kv",
    "head-dim": "head_dim",
    "head-dim-v": "head_dim_v",
}
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_INT32 = range(-(2**31), 2**31)


class LaunchFailed(DeviceFailed):
    """A kernel did not compile or run on the device: which kernel, shapes and constants; the cause is chained.

    Attributes:
      kernel: name of the kernel.
      arguments: its tensors and constants, one text each.
    """

    def __init__(self, call: KernelCall, cause: BaseException) -> None:
        self.kernel, self.arguments = call.kernel, tuple(_texts(call))
        lines = lines_of(cause)
        known = cause_of(lines)
        quoted = list(dict.fromkeys([lines[0], known[1] if known else lines[0]]))
        super().__init__(
            f"{call.kernel}[{call.lnc}]({', '.join(self.arguments)}) failed on the device: {type(cause).__name__}: "
            f"{': '.join(line.rstrip('.:') for line in quoted)}. {_advice(known[0] if known else None, call)}"
        )


def launch(kernel: Any, call: KernelCall, parameters: Sequence[str], lnc: int) -> tuple[Any, ...]:
    """The kernel's outputs, in its order.

    Args:
      kernel: the `nki.jit` object.
      call: what to run.
      parameters: names of the kernel's parameters, in its order; the call must name all of them and no other.
      lnc: the device's logical-core degree; `call.lnc` must be the same.

    Raises:
      UnsupportedProblem: an argument of a kind that nki refuses or misreads.
      LaunchFailed: the toolchain or the device failed; the cause is chained.
    """
    if type(lnc) is not int or lnc not in (1, 2):
        raise ValueError(f"lnc={lnc!r} is not a logical-core degree: it must be the bare int 1 or 2.")
    if call.lnc != lnc:
        raise UnsupportedProblem([_reason(call, "lnc", call.lnc, f"must be the device's, {lnc}, in the whole process")])
    arguments = arguments_of(call, parameters)
    try:
        outputs = kernel[lnc](*arguments)
    except Exception as error:  # the toolchain raises types of its own, which cannot be imported where it is missing
        raise LaunchFailed(call, error) from error
    return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)


def arguments_of(call: KernelCall, parameters: Sequence[str]) -> list[Any]:
    """One value per kernel parameter, in the kernel's order, ready to be passed by position.

    All are passed, those with defaults too: nki's in-memory cache does not tell apart calls that differ in which
    optional argument was left out. Tensors come out dense, at offset 0 and detached; float constants are rounded to
    float32, so that two ways of computing one scale are one compiled kernel.
    """
    named = {**call.tensors, **call.constants}
    missing = [name for name in parameters if name not in named]
    unknown = [name for name in named if name not in parameters]
    twice = sorted(set(call.tensors) & set(call.constants))
    if missing or unknown or twice:
        raise ValueError(
            f"{call.kernel}({', '.join(parameters)}) was called with missing={missing}, unknown={unknown}, twice={twice}: "
            "every parameter must be passed, once."
        )
    devices = {str(tensor.device) for tensor in call.tensors.values() if tensor is not None}
    if len(devices) != 1 or device_world(next(iter(devices)).split(":")[0]) is None:
        raise UnsupportedProblem(
            [_reason(call, "device", " and ".join(sorted(devices)), "must be one Neuron device for all tensors")]
        )
    return [
        _tensor(call, name, named[name]) if name in call.tensors else _constant(call, name, named[name]) for name in parameters
    ]


def signature_key(call: KernelCall) -> tuple[Any, ...]:
    """What one compiled kernel stands for: kernel and entry, LNC, shape and dtype of each tensor, and each constant.

    Two calls with equal keys share one compilation; a new key costs minutes on a device.
    """
    tensors = tuple(
        (name, None if tensor is None else (tuple(tensor.shape), _dtype(tensor))) for name, tensor in call.tensors.items()
    )
    constants = tuple((name, _constant(call, name, value)) for name, value in call.constants.items())
    return call.kernel, call.entry, call.lnc, tensors, constants


def _tensor(call: KernelCall, name: str, tensor: Any) -> Any:
    if tensor is None:
        return None
    dtype = _dtype(tensor)
    if dtype not in DEVICE_DTYPES:
        limit = f"must be one of {', '.join(DEVICE_DTYPES)}"
        raise UnsupportedProblem([_reason(call, f"{name}.dtype", dtype, limit, "Convert it before the call.")])
    if any(type(size) is not int for size in tensor.shape):
        limit = "must be fixed: a kernel is compiled for one shape"
        advice = "Compile with dynamic=False, one callable per bucket of lengths."
        raise UnsupportedProblem([_reason(call, f"{name}.shape", list(tensor.shape), limit, advice)])
    if tensor.requires_grad:
        tensor = tensor.detach()  # the launch is not differentiable by itself, and a Parameter is not a plain tensor
    if not tensor.is_contiguous():
        return tensor.contiguous()
    return tensor.clone() if tensor.storage_offset() else tensor


def _constant(call: KernelCall, name: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_constant(call, name, item) for item in value)
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int and value in _INT32:
        return value
    if type(value) is float:
        import numpy as np  # here, so that `nki_hf env` can report from a machine where it is broken

        return float(np.float32(value))
    limit = "must be None, a bool, an int of 32 bits, a float, a str, or a tuple of these"
    advice = "Convert it to a tuple." if isinstance(value, list) else ""
    raise UnsupportedProblem([_reason(call, name, f"{value!r} ({type(value).__name__})", limit, advice)])


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _texts(call: KernelCall) -> list[str]:
    named: Mapping[str, Any] = {**call.tensors, **call.constants}
    return [
        f"{name}={list(value.shape)} {_dtype(value)}" if hasattr(value, "shape") else f"{name}={value}"
        for name, value in named.items()
    ]


def _reason(call: KernelCall, field: str, value: Any, limit: str, advice: str = "") -> Reason:
    return Reason(kernel=call.kernel, field=field, value=str(value), limit=limit, advice=advice)


def _advice(cause: Cause | None, call: KernelCall) -> str:
    flags = _bisect_flags(call)
    if cause is not None and not (cause.bisect and flags):
        return cause.advice
    if not flags:
        return "Run `nki_hf env`: it names the versions, and combinations that are known to fail."
    bisect = f"python examples/device_bisect.py {' '.join(flags)}"
    if cause is not None:
        return f"{cause.advice} The command that repeats it: {bisect}"
    return f"See whether the kernel or the graph fails, at this shape alone: {bisect}"


def _bisect_flags(call: KernelCall) -> list[str]:
    """The flags of examples/device_bisect.py that give this shape; [] for a kernel that has no binding."""
    binding, shapes = find(call.kernel), call.shapes
    if binding is None or any(shapes.get(item.name) is None for item in binding.arguments if not item.optional):
        return []
    sizes = axis_sizes(binding, shapes)
    first = next(tensor for tensor in call.tensors.values() if tensor is not None)
    flags = [f"--{flag} {sizes[axis]}" for flag, axis in _BISECT.items() if axis in sizes]
    dtype = _SHORT.get(_dtype(first), _dtype(first))
    return ["--device", str(first.device).split(":")[0], *flags, f"--dtype {dtype}"]
