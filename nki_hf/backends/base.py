"""Backend: what runs one kernel call. The simulator, the chip and the torch reference share this protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from nki_hf.sim.events import Event

__all__ = ["Backend", "KernelCall", "RunResult"]


@dataclass(frozen=True, kw_only=True)
class KernelCall:
    """One call of one kernel, in the kernel's own layouts.

    Attributes:
      kernel: its name, e.g. `flash_prefill`; its module is `nki_hf.kernels.<kernel>`.
      tensors: array arguments by parameter name, in the kernel's order; None where an optional one is absent. torch
        tensors on the device that the back end serves, or NumPy arrays for the simulator.
      constants: compile-time arguments by parameter name, in order: None, bool, int, float, str or (nested) tuples.
      lnc: logical-core degree of the launch, 1 or 2.
    """

    kernel: str
    tensors: Mapping[str, Any]
    constants: Mapping[str, Any]
    lnc: int = 1


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a call gave: the kernel's outputs, in its order and of the kind of its inputs, and what was seen.

    Attributes:
      outputs: fresh arrays or tensors.
      events: the event stream, if the back end has one and was asked to keep it.
    """

    outputs: tuple[Any, ...]
    events: Sequence[Event] = field(default=())


class Backend(Protocol):
    """One way to run kernels."""

    @property
    def name(self) -> str:
        """`simulator`, `neuron` or `torch_reference`."""

    def unavailable(self) -> str | None:
        """None if it can run here, else one sentence that says why not and what to do."""

    def run(self, call: KernelCall) -> RunResult:
        """Run one kernel call."""
