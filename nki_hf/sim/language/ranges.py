"""Loops: unrolled ranges, and loops whose bounds or condition are run-time values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nki_hf.sim.execution.current_machine import current_machine
from nki_hf.sim.execution.loop_execution import end_loop
from nki_hf.sim.execution.loop_rules import check_turns
from nki_hf.sim.execution.loops import Loop, begin_loop
from nki_hf.sim.faults import fault
from nki_hf.sim.tensors.registers import RunTimeValue, VirtualRegister
from nki_hf.sim.tensors.scalars import LoopIndex, NkiScalar

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
    """A loop of run time whose variable is a frozen register, from `start` to `stop`, ints or registers.

    The loop's body in the kernel's Python runs once (see sim/execution/loops.py). Removed from the language in NKI 0.7.
    """
    lower, upper = (0, start) if stop is None else (start, stop)
    turns, known = _turns(lower, upper, step, "dynamic_range")
    machine = current_machine("nl.dynamic_range")
    loop = begin_loop(machine, "dynamic_range", "")
    loop.loads = _loads(lower, upper)
    index = _index(VirtualRegister)
    index.frozen = True
    yield index  # what leaves the loop here is noticed when the kernel has ended: the loop is still open then
    end_loop(machine, loop, lambda: turns(loop, index), known)


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any], Any], step: int = 1) -> None:
    """A loop of run time: the instructions of `body_fun(i)` for `i` from `lower` to `upper` (exclusive).

    `body_fun` is called once (see sim/execution/loops.py). `i` is passed by value: writing it changes nothing.

    Args:
      lower, upper: int, register or int32 scalar, read when the loop is reached.
      body_fun: the loop's body; `i` is a register if a bound is one, else a scalar.
      step: positive int.
    """
    kind: type[VirtualRegister] = LoopIndex
    if any(isinstance(bound, VirtualRegister) and not isinstance(bound, NkiScalar) for bound in (lower, upper)):
        kind = VirtualRegister
    turns, known = _turns(lower, upper, step, "fori_loop")
    machine = current_machine("nl.fori_loop")
    loop = begin_loop(machine, "fori_loop", _name_of(body_fun))
    loop.loads = _loads(lower, upper)
    index = _index(kind)
    body_fun(index)
    end_loop(machine, loop, lambda: turns(loop, index), known)


def while_loop(init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """A loop of run time: `register = body_fun(register)` for as long as the register is not 0, beginning with `init`.

    `body_fun` is called once (see sim/execution/loops.py); the register that it returns is read at the end of each turn.
    """
    machine = current_machine("nl.while_loop")
    _not_in_order("while_loop")
    if not isinstance(init, VirtualRegister):
        fault(
            "argument",
            "while_loop",
            f"init={init!r}",
            limit="must be a register",
            advice="Load the condition with nisa.register_load, or pass nisa.register_alloc(1)",
        )
    _check_bound(init, "init", "while_loop")
    loop = begin_loop(machine, "while_loop", _name_of(body_fun))
    loop.loads = init.loads
    given = _index(VirtualRegister)  # passed by value: what the body writes to it must not reach the caller's register
    given.loads = init.loads
    returned = body_fun(given)
    if not isinstance(returned, VirtualRegister):
        fault("argument", "while_loop", f"body_fun returned {returned!r}", limit="it must return a register")
    loop.loads |= returned.loads

    def turns() -> Iterator[None]:
        value = init.read()
        while value:
            given.write(value)
            before = returned.writes
            yield
            value = returned.read()
            if value and returned.writes == before and not nested:
                fault(
                    "argument",
                    "while_loop",
                    f"the loop {loop.name} never ends: body_fun returned a register that holds {value} and that nothing in the "
                    "body writes",
                    limit="the loop ends when the register that body_fun returned is 0 at the end of a turn",
                    advice="Write it in the body with nisa.register_move or nisa.register_load",
                )

    nested = any(isinstance(node, Loop) for node in loop.nodes)  # one that has no turn now may write the register later
    nothing = init.known and not machine.loops[:-1] and init.read() == 0
    end_loop(machine, loop, turns, 0 if nothing else None)


Turns = Callable[[Loop, Any], Iterator[None]]


def _turns(lower: Any, upper: Any, step: Any, what: str) -> tuple[Turns, int | None]:
    """What sets an index in each turn, and the trip count if it follows from the kernel's constants."""
    machine = current_machine(f"nl.{what}")
    _not_in_order(what)
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        fault("argument", what, f"step={step!r}", limit="must be a positive int")
    bounds = [_check_bound(bound, name, what) for bound, name in ((lower, "lower"), (upper, "upper"))]

    def values() -> range:
        first, last = (bound.read() if isinstance(bound, RunTimeValue) else int(bound) for bound in bounds)
        return range(first, last, step)

    def turns(loop: Loop, index: Any) -> Iterator[None]:
        found = values()
        check_turns(loop, len(found), machine.options.most_turns)
        for value in found:
            index.write(value)
            yield

    constant = all(not isinstance(bound, RunTimeValue) or (bound.known and not machine.loops) for bound in bounds)
    return turns, len(values()) if constant else None


def _loads(*bounds: Any) -> frozenset[int]:
    """Numbers of the instructions that load what the bounds follow from."""
    found: frozenset[int] = frozenset()
    return found.union(*[bound.loads for bound in bounds if isinstance(bound, RunTimeValue)])


def _check_bound(value: Any, name: str, what: str) -> Any:
    """The bound, an int or a register that can be read as one."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    if not isinstance(value, RunTimeValue):
        advice = "Load the bound of a tile with nisa.register_load or nisa.scalar_load" if hasattr(value, "storage") else ""
        fault("argument", what, f"{name}={value!r}", limit="a bound is an int, a register or a scalar", advice=advice)
    if value.dtype.itemsize > 4:
        fault(
            "dtype",
            what,
            f"{name}={value!r}",
            limit="a bound must be 32-bit: the loop's comparison has no 64-bit form",
            advice="Load the bound from an int32 tile",
        )
    if not value.initialized:
        fault("uninitialized", what, f"{name} is a register that was never written", limit="load or move a value into it first")
    value.check_home(what)
    return value


def _index(kind: type[VirtualRegister]) -> Any:
    index = kind(0)
    index.known = False
    return index


def _name_of(body: Callable[..., Any]) -> str:
    name = getattr(body, "__name__", "")
    return "" if name == "<lambda>" else name


def _not_in_order(what: str) -> None:
    if current_machine(f"nl.{what}").in_order:
        fault(
            "unsupported",
            what,
            "a loop of run time inside nl.no_reorder",
            limit="only unrolled loops may stand there",
            advice="Put the no_reorder block into the loop's body",
        )
