"""Scalar arguments as the numbers that kernels and torch take: Python's, NumPy's, or a tensor of one element."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.autograd import forward_ad

from nki_hf.backends.neuron_world import device_world
from nki_hf.errors import Reason, UnsupportedProblem

__all__ = ["as_float", "as_int", "learned_scale"]


def as_int(name: str, value: Any, *, least: int | None = None) -> int:
    """An argument that counts keys or rows.

    Args:
      name: the argument's name.
      value: an int, a NumPy integer or an integer tensor of one element.
      least: the least that means something; None = any.

    Raises:
      ValueError: not an integer (bool is none), or below `least`.
    """
    if isinstance(value, torch.SymInt):
        return value  # the length of a graph: reading it would fix it
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise ValueError(f"{name}={value!r} is not supported: it must be an integer.")
    if least is not None and number < least:
        raise ValueError(f"{name}={number} is not supported: {name} counts the query itself, so it is >= {least} or None.")
    return number


def as_float(name: str, value: Any) -> float:
    """An argument that multiplies or caps scores, as a number; what is beyond Python's floats is infinite.

    Args:
      name: the argument's name.
      value: a real number, or a tensor of one element, whose gradient is the caller's affair.

    Raises:
      UnsupportedProblem: not one real number.
    """
    if isinstance(value, torch.Tensor):
        value = _element(name, value)
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        raise _refusal(name, repr(value), "must be one real number") from None


def learned_scale(q: torch.Tensor, scale: Any, name: str = "scale") -> tuple[torch.Tensor, float | None]:
    """`q` and the scale as a number. The derivatives of a scale that has any go through q, whose values stay as they are.

    Raises:
      UnsupportedProblem: see `as_float`; or the scale has derivatives and is zero.
    """
    if scale is None or type(scale) is float:
        return q, scale
    number = as_float(name, scale)
    if not isinstance(scale, torch.Tensor) or not _has_derivatives(scale):
        return q, number
    if number == 0:
        raise _refusal(name, 0, "must not be 0 where it has a gradient", f"Multiply q by it, and pass {name}=1.0.")
    one = (scale / scale.detach()).reshape(()).to(device=q.device, dtype=q.dtype)  # 1, and as steep as the scale
    return q * one, number


def _element(name: str, value: torch.Tensor) -> Any:
    if value.numel() != 1 or value.is_complex():
        raise _refusal(name, f"{list(value.shape)} of {value.dtype}", "must be one real number")
    if device_world(value.device.type) is not None:
        # Reading waits for the device, and inside torch_neuronx.trace would freeze the example's value for good.
        raise _refusal(f"{name}.device", value.device, "must be cpu", f"Pass {name} as a number.")
    if name == "softcap" and _has_derivatives(value):
        raise _refusal("softcap.requires_grad", True, "must be False: no gradient reaches it", "Pass softcap.item().")
    return value.detach().item()


def _refusal(field: str, value: object, limit: str, advice: str = "") -> UnsupportedProblem:
    return UnsupportedProblem([Reason(kernel="attention", field=field, value=str(value), limit=limit, advice=advice)])


def _has_derivatives(value: torch.Tensor) -> bool:
    if value.requires_grad and torch.is_grad_enabled():
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(value).tangent is not None
