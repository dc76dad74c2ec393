"""Backend: what runs one kernel call. The simulator, the chip and the torch reference share this protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

__all__ = ["Backend", "KernelCall", "RunResult"]


@dataclass(frozen=True, kw_only=True)
class KernelCall:
    """One call of one kernel, in the kernel's own layouts.

    Attributes:
      kernel: its name, e.g. `flash_prefill`, as `kernels.registry` knows it.
      tensors: array arguments by parameter name, in the kernel's order; None where an optional one is absent. torch
        tensors on the device that the back end serves, or NumPy arrays for the simulator.
      extended: tensors that the kernel sees longer than they are, by parameter name: the axis, and the length to which the
        back end fills it up with zeros. So a growing cache is copied once, by whoever copies it anyway.
      constants: compile-time arguments by parameter name, in order: None, bool, int, float, str or (nested) tuples.
      lnc: logical-core degree of the launch, 1 or 2.
      entry: the function of the kernel's module; empty = the kernel's name.
      passed: names of the kernel's optional outputs that it returns.
      instructions: about how many instructions the call has in one launch; 0 = it is always one launch.
    """

    kernel: str
    tensors: Mapping[str, Any]
    constants: Mapping[str, Any]
    extended: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    lnc: int = 1
    entry: str = ""
    passed: frozenset[str] = frozenset()
    instructions: int = 0

    @property
    def shapes(self) -> dict[str, tuple[int, ...] | None]:
        """Shape of each tensor as the kernel sees it, by parameter name."""
        return {name: None if tensor is None else self.shape(name, tensor) for name, tensor in self.tensors.items()}

    def shape(self, name: str, tensor: Any) -> tuple[int, ...]:
        """Shape of a tensor argument, or of a part of it, as the kernel sees it."""
        shape = tuple(tensor.shape)
        if name not in self.extended:
            return shape
        axis, length = self.extended[name]
        return (*shape[:axis], length, *shape[axis + 1 :])

    def filled(self) -> KernelCall:
        """The same call with every extended torch tensor as a longer one."""
        if not self.extended:
            return self
        import torch.nn.functional as F  # only calls on torch tensors come here

        tensors = dict(self.tensors)
        for name, (axis, length) in self.extended.items():
            tensor = tensors[name]
            behind = [0] * (2 * (tensor.dim() - axis))
            behind[-1] = length - tensor.shape[axis]
            tensors[name] = F.pad(tensor, behind)
        return replace(self, tensors=tensors, extended={})


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a call gave.

    Attributes:
      outputs: fresh, in the kernel's order and of the kind of its inputs.
      turns: turns of each of the kernel's loops of run time, by its name, over all cores; empty where nobody counts them.
    """

    outputs: tuple[Any, ...]
    turns: Mapping[str, int] = field(default_factory=dict)


class Backend(Protocol):
    """One way to run kernels."""

    @property
    def name(self) -> str:
        """`simulator`, `neuron` or `torch_reference`."""

    def unavailable(self) -> str | None:
        """None if it can run here, else one sentence that says why not and what to do."""

    def run(self, call: KernelCall) -> RunResult:
        """Run one kernel call."""
