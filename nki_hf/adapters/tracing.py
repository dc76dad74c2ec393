"""Whether values of tensors can be read here, or belong to a graph or a transform that is being made."""

from __future__ import annotations

import torch

__all__ = ["traced", "tracing"]

_TRACERS = (
    torch._C._TorchDispatchModeKey.FAKE,
    torch._C._TorchDispatchModeKey.PROXY,
    torch._C._TorchDispatchModeKey.FUNCTIONAL,
)


def traced(tensor: torch.Tensor) -> bool:
    """True if a tensor has no values yet, or they would become constants of the graph or the transform that is being made."""
    return tracing() or type(tensor) is not torch.Tensor or tensor.is_meta


def tracing() -> bool:
    """True where what is made of a tensor belongs to a graph or a transform."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None:  # in a transform of torch.func tensors are wrapped
        return True
    if torch._C._len_torch_dispatch_stack():
        for mode in _TRACERS:
            if torch._C._get_dispatch_mode(mode) is not None:
                return True
    return False
