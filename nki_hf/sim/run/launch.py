"""Kernel and launch: `jit`, `kernel[lnc](...)`, `simulate`, and the recorded form that back ends replay."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nki_hf.sim.execution.cores import Alone, Cooperation
from nki_hf.sim.execution.current_machine import entered, running_machine
from nki_hf.sim.execution.loop_events import turns_of
from nki_hf.sim.execution.loop_rules import check_closed, check_trip_counts, leaves
from nki_hf.sim.execution.run import Run
from nki_hf.sim.options import BLOCK, Block, SimOptions, target_chip
from nki_hf.sim.run.arguments import Arguments, returned_tensors
from nki_hf.sim.run.memory_use import check_memory
from nki_hf.sim.run.outputs import check_outputs, warn_second_writes
from nki_hf.sim.run.program import Program
from nki_hf.sim.stream.events import Event
from nki_hf.sim.uncollected import uncollected

__all__ = ["Kernel", "LaunchResult", "jit", "launch", "simulate"]


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """What one simulated launch gave.

    Attributes:
      outputs: NumPy arrays of the tensors that the kernel returned, in order, over all containers.
      returned: the kernel's return value as it is, with each tensor as an array of the inputs' kind.
      events: the event stream.
      program: the replayable form, if `options.record` and the run allows it.
      run: the run itself (buffers, cores), for observers.
    """

    outputs: tuple[np.ndarray[Any, Any], ...]
    returned: Any
    events: Sequence[Event]
    program: Program | None
    run: Run


class Kernel:
    """A function decorated with `nki.jit`; `kernel[lnc](...)` launches it on `lnc` cores, `kernel(...)` on one.

    Attributes:
      function: the kernel's Python.
      lnc: cores of the launch grid; None = launched without a grid, on one core.
      block: the block it was made in, whose options its launches take unless a launch gives its own.
      target: platform target that its launches stand for; None = the chip of the options.
    """

    def __init__(
        self, function: Callable[..., Any], lnc: int | None = None, block: Block | None = None, target: str | None = None
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.lnc = lnc
        self.block = block
        self.target = target

    def __getitem__(self, lnc: int) -> Kernel:
        if isinstance(lnc, bool) or not isinstance(lnc, int) or lnc not in (1, 2):
            raise ValueError(f"lnc={lnc!r} is not a logical-core degree: launch with kernel[1] or kernel[2], a bare int.")
        return Kernel(self.function, lnc, self.block, self.target)

    def options(self) -> SimOptions:
        """Options of a launch that happens now and gives none."""
        block = self.block or BLOCK.get()
        options = block.options() if block is not None else SimOptions()
        return options if self.target is None else replace(options, chip=target_chip(self.target))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The kernel's return value on NumPy arrays or torch tensors, in kind; inside another kernel it runs in place."""
        if running_machine() is not None:
            return self.function(*args, **kwargs)
        return launch(self, args, kwargs).returned


def jit(fn: Callable[..., Any] | None = None, *, platform_target: str | None = None, **kwargs: Any) -> Any:
    """Decorator that makes a function a kernel, whose every launch is simulated (what NKI_SIMULATOR=1 does to the SDK's).

    Args:
      fn: the kernel.
      platform_target: chip that its launches stand for, in the words of NEURON_PLATFORM_TARGET_OVERRIDE.
      **kwargs: arguments for the compiler (`mode`, `compile_config`, `specialization_config`, ...), without effect here.
    """
    if fn is None:
        return functools.partial(jit, platform_target=platform_target)
    if platform_target is not None:
        target_chip(platform_target)
    return Kernel(fn, block=BLOCK.get(), target=platform_target)


def simulate(kernel: Any) -> Kernel:
    """The kernel as a callable on host arrays; `simulate(kernel)[2](...)` and `simulate(kernel[2])(...)` are the same."""
    return kernel if isinstance(kernel, Kernel) else Kernel(kernel, block=BLOCK.get())


def launch(
    kernel: Kernel | Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    options: SimOptions | None = None,
    lnc: int | None = None,
    first_core: bool = False,
) -> LaunchResult:
    """Run a kernel once; other Python objects than arrays reach it as they are.

    Args:
      kernel: a `Kernel` or a plain function.
      args, kwargs: its arguments; NumPy arrays and torch CPU tensors become HBM tensors that share their memory where it
        is contiguous. What the kernel writes to them is visible afterwards in every case.
      options: see `SimOptions`; default: those of the kernel, of the block, else the default ones.
      lnc: size of the launch grid; default is the kernel's own.
      first_core: run core 0 of the launch alone, on shapes: for kernels whose cores do the same each on its share.

    Raises:
      CoresMeet: `first_core`, and the cores meet.
    """
    kernel = kernel if isinstance(kernel, Kernel) else Kernel(kernel)
    if lnc is not None and lnc not in (1, 2):
        raise ValueError(f"lnc={lnc!r} is not a logical-core degree: it is 1 or 2.")
    if first_core and (options is None or options.values or options.checks):
        raise ValueError("first_core=True needs values=False and checks=False: half of a launch has no result to judge.")
    grid = lnc or kernel.lnc
    run = Run(options or kernel.options(), grid or 1, grid=grid is not None)
    try:
        bound = inspect.signature(kernel.function).bind(*args, **(kwargs or {}))
    except TypeError as error:
        raise TypeError(f"{getattr(kernel.function, '__name__', 'kernel')}: {error}") from None
    bound.apply_defaults()
    arguments = Arguments(run.cores[0])
    for name, value in bound.arguments.items():
        bound.arguments[name] = arguments.bind(name, value)
    function = functools.partial(kernel.function, *bound.args, **bound.kwargs)
    keeps = run.options.record or not run.options.values  # actions or events stay until the end in any case
    with uncollected() if keeps else nullcontext():
        if run.lnc == 1 or first_core:
            run.cooperation = Alone() if run.lnc > 1 else None
            with entered(run.cores[0]):
                value = function()
        else:
            run.cooperation = Cooperation(run)
            value = run.cooperation.execute(function)[0]
    check_closed(run)
    check_trip_counts(run)
    outputs = returned_tensors(value)
    run.returned = tuple([tensor.storage.buffer.number for tensor in outputs])
    for tensor in outputs:
        if tensor.storage.buffer.number in run.closed:
            leaves("return", repr(tensor), run.closed[tensor.storage.buffer.number])
    if run.options.checks:
        check_outputs(outputs, third_party=run.options.third_party)
        warn_second_writes(outputs, run.events)
        check_memory(run.events, run.options)
        for loop in run.short:
            check_memory(turns_of(loop, 2), run.options)
    program = Program(run, arguments.tensors, outputs) if run.options.record and run.replayable else None
    if not run.options.values:
        return LaunchResult(outputs=(), returned=None, events=run.events, program=None, run=run)
    arguments.write_back()
    arrays = tuple(tensor.array().copy() for tensor in outputs)
    return LaunchResult(outputs=arrays, returned=arguments.release(value), events=run.events, program=program, run=run)
