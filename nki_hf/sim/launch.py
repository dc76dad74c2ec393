"""Kernel and launch: `jit`, `kernel[lnc](...)`, `simulate`, and the recorded form that back ends replay."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nki_hf.sim.dtypes import as_dtype
from nki_hf.sim.events import Event
from nki_hf.sim.faults import fault
from nki_hf.sim.machine import Machine, Run, entered, running_machine
from nki_hf.sim.options import SimOptions
from nki_hf.sim.program import Program
from nki_hf.sim.tensor import NkiTensor

__all__ = ["Kernel", "LaunchResult", "jit", "launch", "simulate"]


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """What one simulated launch gave.

    Attributes:
      outputs: NumPy arrays, in the order the kernel returned them.
      events: the event stream.
      program: the replayable form, if `options.record` and the run allows it.
      run: the run itself (buffers, cores), for observers.
    """

    outputs: tuple[np.ndarray[Any, Any], ...]
    events: Sequence[Event]
    program: Program | None
    run: Run


class Kernel:
    """A function decorated with `nki.jit`; `kernel[lnc](...)` launches it on `lnc` cores, `kernel(...)` on one."""

    def __init__(self, function: Callable[..., Any], lnc: int = 1) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.lnc = lnc

    def __getitem__(self, lnc: int) -> Kernel:
        if isinstance(lnc, bool) or not isinstance(lnc, int) or lnc not in (1, 2):
            raise ValueError(f"lnc={lnc!r} is not a logical-core degree: launch with kernel[1] or kernel[2], a bare int.")
        return Kernel(self.function, lnc)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Launch on NumPy arrays (or run in place inside another kernel); one output comes bare, several as a tuple."""
        if running_machine() is not None:
            return self.function(*args, **kwargs)
        outputs = launch(self, args, kwargs).outputs
        return outputs[0] if len(outputs) == 1 else outputs


def jit(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    """Decorator that makes a function a kernel; compiler arguments are accepted and have no effect here."""
    return jit if function is None else Kernel(function)


def simulate(kernel: Any) -> Kernel:
    """The kernel as a callable on NumPy arrays; `simulate(kernel)[2](...)` and `simulate(kernel[2])(...)` are the same."""
    return kernel if isinstance(kernel, Kernel) else Kernel(kernel)


def launch(
    kernel: Kernel | Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    options: SimOptions | None = None,
    lnc: int | None = None,
) -> LaunchResult:
    """Run a kernel once on NumPy arrays; other Python objects reach it as they are.

    Args:
      kernel: a `Kernel` or a plain function.
      args, kwargs: its arguments; arrays become HBM tensors that share their memory.
      options: see `SimOptions`; default is the default options.
      lnc: number of cores; default is the kernel's own.
    """
    kernel = kernel if isinstance(kernel, Kernel) else Kernel(kernel)
    run = Run(options or SimOptions(), lnc or kernel.lnc)
    bound = inspect.signature(kernel.function).bind(*args, **(kwargs or {}))
    bound.apply_defaults()
    inputs: dict[str, NkiTensor] = {}
    for name, value in bound.arguments.items():
        if isinstance(value, np.ndarray):
            bound.arguments[name] = inputs[name] = _as_input(run.cores[0], name, value)
    returned: list[Any] = []
    for machine in run.cores:
        with entered(machine):
            returned.append(kernel.function(*bound.args, **bound.kwargs))
    outputs = _check_outputs(returned[0])
    program = Program(run, inputs, outputs) if run.options.record and run.replayable else None
    arrays = tuple(tensor.array().copy() for tensor in outputs) if run.options.values else ()
    return LaunchResult(outputs=arrays, events=run.events, program=program, run=run)


def _as_input(machine: Machine, name: str, value: np.ndarray[Any, Any]) -> NkiTensor:
    dtype = as_dtype(value.dtype)
    data = np.ascontiguousarray(value).view(np.uint8).reshape(-1) if value.size else np.empty(0, np.uint8)
    storage = machine.allocate(tuple(value.shape), dtype, "hbm", name=name, role="input", data=data)
    return NkiTensor(tuple(value.shape), dtype, storage, name=name)


def _check_outputs(value: Any) -> list[NkiTensor]:
    values = list(value) if isinstance(value, tuple | list) else [] if value is None else [value]
    for item in values:
        if isinstance(item, NkiTensor) and item.on_chip:
            fault("output", "return", f"the kernel returns {item!r}", limit="outputs must be in shared_hbm",
                  advice="Copy it with dma_copy into nl.ndarray(..., buffer=nl.shared_hbm)")  # fmt: skip
    return [item for item in values if isinstance(item, NkiTensor)]
