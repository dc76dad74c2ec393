"""Loops: unrolled ranges, and loops whose bounds or condition are run-time values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nki_hf.sim.faults import fault
from nki_hf.sim.machine import current_machine
from nki_hf.sim.registers import LoopIndex, NkiScalar, RunTimeValue, VirtualRegister

__all__ = ["affine_range", "dynamic_range", "fori_loop", "sequential_range", "static_range", "while_loop"]


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's `range`: the loop is unrolled. Iterations run in order."""
    return range(start) if stop is None else range(start, stop, step)


def sequential_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's `range`: the loop is unrolled."""
    return affine_range(start, stop, step)


def static_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's `range`: the loop is unrolled."""
    return affine_range(start, stop, step)


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[VirtualRegister]:
    """Frozen registers that run from `start` to `stop`, ints or registers. Removed from the language in NKI 0.7."""
    lower, upper = (0, start) if stop is None else (start, stop)
    for value in _values(lower, upper, step, "dynamic_range"):
        yield VirtualRegister(value, frozen=True)


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any], Any], step: int = 1) -> None:
    """Call `body_fun(i)` for `i` from `lower` to `upper` (exclusive). `i` is passed by value: writing it changes nothing.

    Args:
      lower, upper: int, register or int32 scalar; those of run time make the launch not replayable.
      body_fun: the loop's body; `i` is a register if a bound is one, else a scalar.
      step: positive int.
    """
    index: Callable[[int], Any] = LoopIndex
    if any(isinstance(bound, VirtualRegister) and not isinstance(bound, NkiScalar) for bound in (lower, upper)):
        index = VirtualRegister
    for value in _values(lower, upper, step, "fori_loop"):
        body_fun(index(value))


def while_loop(init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """Call `register = body_fun(register)` for as long as the register is not 0, beginning with `init`."""
    _not_in_order("while_loop")
    if not isinstance(init, VirtualRegister):
        fault("argument", "while_loop", f"init={init!r}", limit="must be a register",
              advice="Load the condition with nisa.register_load, or pass nisa.register_alloc(1)")  # fmt: skip
    register = init
    while VirtualRegister.peek(register, "while_loop"):
        # passed by value: what the body writes to its argument must not reach the caller's register
        register = body_fun(VirtualRegister(register.read()))
        if not isinstance(register, VirtualRegister):
            fault("argument", "while_loop", f"body_fun returned {register!r}", limit="it must return a register")


def _values(lower: Any, upper: Any, step: Any, what: str) -> range:
    _not_in_order(what)
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        fault("argument", what, f"step={step!r}", limit="must be a positive int")
    return range(_bound(lower, "lower", what), _bound(upper, "upper", what), step)


def _bound(value: Any, name: str, what: str) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    if not isinstance(value, RunTimeValue):
        advice = "Load the bound of a tile with nisa.register_load or nisa.scalar_load" if hasattr(value, "storage") else ""
        fault("argument", what, f"{name}={value!r}", limit="a bound is an int, a register or a scalar", advice=advice)
    if value.dtype.itemsize > 4:
        fault("dtype", what, f"{name}={value!r}", limit="a bound must be 32-bit: the loop's comparison has no 64-bit form",
              advice="Load the bound from an int32 tile")  # fmt: skip
    return value.peek(what)


def _not_in_order(what: str) -> None:
    if current_machine(f"nl.{what}").in_order:
        fault("unsupported", what, "a loop of run time inside nl.no_reorder", limit="only unrolled loops may stand there",
              advice="Put the no_reorder block into the loop's body")  # fmt: skip
