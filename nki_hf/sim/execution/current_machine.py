"""Current machine: the simulated core whose kernel runs in this thread."""

from __future__ import annotations

import threading

from nki_hf.sim.execution.machine import Machine
from nki_hf.sim.execution.numerics import engine_numerics

__all__ = ["current_machine", "entered", "running_machine"]

_thread = threading.local()


def running_machine() -> Machine | None:
    """The machine whose kernel runs in this thread, or None."""
    return getattr(_thread, "machine", None)


def current_machine(what: str = "this operation") -> Machine:
    """The machine whose kernel runs in this thread; a RuntimeError names `what` was tried outside of one."""
    machine = running_machine()
    if machine is None:
        raise RuntimeError(f"{what} was called outside a running kernel: call it from a function launched with nki.jit.")
    return machine


class entered:  # noqa: N801  (a context manager used like a function)
    """Make `machine` the current one of this thread for a block of code, even if it raises.

    NumPy behaves as sim/execution/numerics.py says inside.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._numerics = engine_numerics()

    def __enter__(self) -> Machine:
        self._numerics.__enter__()
        self._previous = running_machine()
        _thread.machine = self._machine
        return self._machine

    def __exit__(self, *exc: object) -> None:
        _thread.machine = self._previous
        self._numerics.__exit__(None, None, None)
