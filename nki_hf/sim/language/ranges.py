"""Loops: unrolled ranges, and loops whose bounds or condition are run-time values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nki_hf.sim.faults import fault
from nki_hf.sim.registers import VirtualRegister

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
    """Registers that run from `start` to `stop`, bounds being ints or registers. Removed from the language in NKI 0.7."""
    lower, upper = (0, start) if stop is None else (start, stop)
    for value in _values(lower, upper, step, "dynamic_range"):
        yield VirtualRegister(value, frozen=True)


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[VirtualRegister], Any], step: int = 1) -> None:
    """Call `body_fun(i)` for `i` from `lower` to `upper` (exclusive); `i` is a register that may not be written.

    Args:
      lower, upper: int or register; a register bound makes the launch not replayable.
      body_fun: the loop's body.
      step: positive int.
    """
    for value in _values(lower, upper, step, "fori_loop"):
        body_fun(VirtualRegister(value, frozen=True))


def while_loop(init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """Call `register = body_fun(register)` for as long as the register is not 0, beginning with `init`."""
    register = init
    while register.peek("while_loop"):
        # passed by value: what the body writes to its argument must not reach the caller's register
        register = body_fun(VirtualRegister(register.read(), register.dtype))
        if not isinstance(register, VirtualRegister):
            fault("argument", "while_loop", f"body_fun returned {register!r}", limit="it must return a register")


def _values(lower: Any, upper: Any, step: Any, what: str) -> range:
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        fault("argument", what, f"step={step!r}", limit="must be a positive int")
    bounds = [int(b.peek(what)) if isinstance(b, VirtualRegister) else int(b) for b in (lower, upper)]
    return range(bounds[0], bounds[1], step)
