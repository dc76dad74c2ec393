"""Run-time values: VirtualRegister of all versions, and NkiScalar of NKI 0.7 with its arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim.dtypes import DType, as_dtype
from nki_hf.sim.execution.current_machine import running_machine
from nki_hf.sim.execution.loop_rules import leaves
from nki_hf.sim.faults import fault, kernel_position
from nki_hf.sim.objects import NKIObject

__all__ = ["AS_CONDITION", "RunTimeValue", "VirtualRegister"]

AS_CONDITION = "Compute on a (1, 1) tile, loop with nl.fori_loop or nl.while_loop, address with scalar_offset"


class RunTimeValue(NKIObject):
    """An integer that exists when instructions execute, in a one-element array, so that replays read what is in it then.

    Attributes:
      dtype: type of the value, which wraps at its width.
      cell: `[1]` array with the value.
      frozen: True for the induction variable of `nl.dynamic_range`, which the kernel may not write.
      initialized: True once something was written to it.
      known: True while the value follows from the kernel's constants alone, so that a run on shapes has it too.
      home: the loop in whose body it was made, None outside of all.
      loads: numbers of the instructions (in `Run.loaded`) that load what its value follows from.
      writes: how often something was written to it.
      asked: how often the kernel's Python asked whether it is 0.
    """

    __slots__ = ("asked", "cell", "dtype", "frozen", "home", "initialized", "known", "loads", "writes")

    def _set_up(self, value: Any, dtype: Any, *, frozen: bool) -> None:
        self.dtype: DType = as_dtype(dtype)
        self.cell: np.ndarray[Any, Any] = np.zeros(1, self.dtype.dtype)
        self.frozen = frozen
        self.writes = self.asked = 0
        self.loads: frozenset[int] = frozenset()
        self.initialized = self.known = value is not None
        machine = running_machine()
        self.home = machine.loops[-1] if machine is not None and machine.loops else None
        if value is not None:
            self.cell[0] = np.array(value).astype(self.dtype.dtype)

    def read(self) -> int:
        """The value now, for an instruction's own use at its time of execution."""
        return int(self.cell[0].item())

    def write(self, value: Any) -> None:
        """Set the value; it wraps at the width."""
        self.cell[...] = np.asarray(value).reshape(1).astype(self.cell.dtype)
        self.writes += 1
        self.initialized = True

    def peek(self, what: str) -> int:
        """The value for the kernel's control flow: it must have been written, and the launch is not replayable then."""
        if not self.initialized:
            fault("uninitialized", what, "the register was never written", limit="load or move a value into it first")
        machine = running_machine()
        if machine is None:
            return self.read()
        if machine.loops or not (machine.options.values or self.known):
            where = f"while the body of the loop {machine.loops[-1].name} is recorded" if machine.loops else "on shapes alone"
            fault(
                "unsupported",
                what,
                f"the kernel's Python reads {type(self).__name__} {where}",
                limit="its value is not known then",
                advice=AS_CONDITION,
            )
        file, line = kernel_position()
        machine.run.not_replayable(f"the kernel's Python reads a register ({what}, {file}:{line})")
        return self.read()

    def set_now(self, known: bool, value: Any = None) -> None:
        """Note that an instruction writes the register. On shapes alone a known value is written at once."""
        machine = running_machine()
        self.initialized = True
        self.known = known and machine is not None and not machine.loops
        if self.known and machine is not None and not machine.options.values:
            self.write(value)

    def follows(self, *loads: frozenset[int]) -> None:
        """Note what the value follows from, and what the loops do whose bodies are being recorded."""
        machine = running_machine()
        around = [loop.loads for loop in machine.loops] if machine is not None else []
        self.loads = self.loads.union(*loads, *around)

    def check_home(self, what: str) -> None:
        """A fault if the register was made in the body of a loop that has ended."""
        machine = running_machine()
        if self.home is not None and machine is not None and self.home not in machine.loops:
            leaves(what, f"a {type(self).__name__}", self.home.name)

    def __repr__(self) -> str:
        held: Any = self.cell[0].item()
        if isinstance(held, float) and held.is_integer():
            held = int(held)
        return f"{type(self).__name__}({held if self.initialized else 'uninitialized'}, {self.dtype})"


class VirtualRegister(RunTimeValue):
    """A 32-bit register of an engine's sequencer, from `nisa.register_alloc`: an int32, or a float32 that was loaded.

    `while reg:` and `t[reg]` read it in the kernel's Python, as the parser front end of NKI 0.6 allows; the tracer of 0.7
    raises TypeError there. The launch is not replayable then, because another run's value could steer it elsewhere.

    Args:
      state: its value, or None if nothing was written yet.
      frozen: True forbids register_move and register_load into it.
    """

    __slots__ = ()

    def __init__(self, state: int | None = None, frozen: bool = False) -> None:
        self._set_up(state, "int32", frozen=frozen)

    def _set_up(self, value: Any, dtype: Any, *, frozen: bool) -> None:
        super()._set_up(None, dtype, frozen=frozen)
        self.cell = np.zeros(1, np.float64)  # holds every int32 and every float32
        if value is not None:
            self.write(value)
            self.known = True

    def read(self) -> int:
        """The value now; a fault if it is a float that was loaded and is not whole."""
        value = float(self.cell[0])
        if not value.is_integer():
            fault("dtype", "register", f"the register holds {value}", limit="offsets, bounds and conditions are integers")
        return int(value)

    def write(self, value: Any) -> None:
        """Set the value: integers wrap at 32 bits, floats are rounded to float32."""
        given = np.asarray(value).reshape(1)
        self.cell[...] = given.astype(np.float32 if given.dtype.kind == "f" else np.int32)
        self.writes += 1
        self.initialized = True

    def _compared(self, other: object) -> bool:
        if other is self:
            return True
        if other is None or isinstance(other, str | type):
            return False
        fault(
            "unsupported",
            "register",
            f"{self!r} is compared with {other!r}",
            limit="a register has no comparisons",
            advice="Compute the condition with nisa.tensor_scalar on a (1, 1) tile and load it with nisa.register_load",
        )

    __eq__ = _compared
    __lt__ = __le__ = __gt__ = __ge__ = _compared
    __hash__ = object.__hash__

    def __ne__(self, other: object) -> bool:
        return not self._compared(other)

    def __bool__(self) -> bool:
        found, machine = bool(self.peek("register truth value")), running_machine()
        self.asked += 1
        if found and machine is not None and self.asked > machine.options.most_turns:
            fault(
                "argument",
                "register",
                f"`while register:` has {self.asked:,} turns or more, and the register holds {self.read()}",
                limit=f"a loop of more than {machine.options.most_turns:,} turns counts as one that never ends",
                advice="Write the register in the body (nisa.register_move, nisa.register_load); if that many turns are meant, "
                "pass SimOptions(most_turns=N)",
            )
        return found

    def __int__(self) -> int:
        return self.peek("int(register)")

    def __index__(self) -> int:
        return self.peek("register as an index")
