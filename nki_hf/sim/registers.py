"""VirtualRegister: a run-time scalar that loops, `scalar_offset` and the register instructions share."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim.dtypes import DType, as_dtype
from nki_hf.sim.faults import fault, kernel_position
from nki_hf.sim.machine import running_machine
from nki_hf.sim.objects import NKIObject

__all__ = ["NkiScalar", "VirtualRegister"]


class VirtualRegister(NKIObject):
    """A scalar register of an engine's sequencer.

    The value lives in a one-element array, so that recorded instructions read what is in it when they run. Reading it
    in the kernel's Python (`while reg:`, `int(reg)`, `range(reg)`) makes the launch not replayable, because another
    run's value could steer the kernel elsewhere.

    Attributes:
      dtype: type of the value; integer registers wrap at its width.
      cell: `[1]` array with the value.
      frozen: True for the induction variable of a loop, which the kernel may not write.
    """

    __slots__ = ("cell", "dtype", "frozen", "initialized")

    def __init__(self, value: int | float | None = None, dtype: Any = "int32", *, frozen: bool = False) -> None:
        self.dtype: DType = as_dtype(dtype)
        self.cell: np.ndarray[Any, Any] = np.zeros(1, self.dtype.dtype)
        self.frozen = frozen
        self.initialized = value is not None
        if value is not None:
            self.cell[0] = np.array(value).astype(self.dtype.dtype)

    def read(self) -> int | float:
        """The value now, for an instruction's own use at its time of execution."""
        value = self.cell[0].item()
        return value if self.dtype.is_integer else float(value)

    def write(self, value: Any) -> None:
        """Set the value; integers wrap at the register's width."""
        self.cell[...] = np.asarray(value).reshape(1).astype(self.cell.dtype)
        self.initialized = True

    def peek(self, what: str) -> int | float:
        """The value for the kernel's Python: needs an initialised register and ends the launch's replayability."""
        if not self.initialized:
            fault("uninitialized", what, "the register was never written", limit="load or move a value into it first")
        machine = running_machine()
        if machine is not None:
            file, line = kernel_position()
            machine.run.not_replayable(f"the kernel's Python reads a register ({what}, {file}:{line})")
        return self.read()

    def __bool__(self) -> bool:
        return bool(self.peek("register truth value"))

    def __int__(self) -> int:
        return int(self.peek("int(register)"))

    def __index__(self) -> int:
        return int(self.peek("register as an index"))

    def __repr__(self) -> str:
        return f"VirtualRegister({self.read() if self.initialized else 'uninitialized'}, {self.dtype})"


class NkiScalar(VirtualRegister):
    """A run-time scalar of `int32` or `int64` with arithmetic, as `nisa.scalar_load` returns it (NKI 0.7).

    `int32` takes + - * // % and negation, `int64` only + - *. Results wrap at the width. Comparisons are refused: on the
    chip their results cannot be used.
    """

    __slots__ = ()

    def __init__(self, value: int | None = None, dtype: Any = "int32") -> None:
        super().__init__(value, dtype)
        if self.dtype.name not in ("int32", "int64"):
            fault("dtype", "NkiScalar", f"dtype={self.dtype}", limit="int32 or int64")

    def _combine(self, other: Any, symbol: str, *, swapped: bool = False) -> NkiScalar:
        from nki_hf.sim.language.scalars import combine

        return combine(other, self, symbol) if swapped else combine(self, other, symbol)

    def __add__(self, other: Any) -> NkiScalar:
        return self._combine(other, "+")

    def __radd__(self, other: Any) -> NkiScalar:
        return self._combine(other, "+", swapped=True)

    def __sub__(self, other: Any) -> NkiScalar:
        return self._combine(other, "-")

    def __rsub__(self, other: Any) -> NkiScalar:
        return self._combine(other, "-", swapped=True)

    def __mul__(self, other: Any) -> NkiScalar:
        return self._combine(other, "*")

    def __rmul__(self, other: Any) -> NkiScalar:
        return self._combine(other, "*", swapped=True)

    def __floordiv__(self, other: Any) -> NkiScalar:
        return self._combine(other, "//")

    def __mod__(self, other: Any) -> NkiScalar:
        return self._combine(other, "%")

    def _refuse(self, other: object) -> bool:
        fault(
            "unsupported", "NkiScalar", "a run-time scalar is compared", limit="+ - * only",
            advice="Compute the condition with nisa.tensor_scalar on a (1, 1) tile",
        )  # fmt: skip

    __lt__ = __le__ = __gt__ = __ge__ = _refuse
