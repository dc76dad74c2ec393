"""NkiScalar of NKI 0.7: a run-time integer with arithmetic, which is executed when the instruction stream reaches it."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from nki_hf.sim.execution.current_machine import current_machine
from nki_hf.sim.faults import fault
from nki_hf.sim.tensors.registers import AS_CONDITION, RunTimeValue, VirtualRegister

__all__ = ["LoopIndex", "NkiScalar"]


class NkiScalar(RunTimeValue):
    """A run-time scalar of `int32` or `int64` with arithmetic, as `nisa.scalar_load` returns it (NKI 0.7).

    `int32` takes + - * // % and signs, `int64` + - * and signs. Results are new scalars and wrap at the width. What the
    documents leave unusable or reject is refused: comparisons, and every use of the value in the kernel's Python.

    Args:
      state: its value.
      dtype: `nl.int32` (also None) or `nl.int64`.
      is_comparison: the documented third parameter; True is refused, as comparisons are.
    """

    __slots__ = ()

    def __init__(self, state: int | None, dtype: Any = None, is_comparison: bool = False) -> None:
        self._set_up(state, "int32" if dtype is None else dtype, frozen=False)
        if self.dtype.name not in ("int32", "int64"):
            fault("dtype", "NkiScalar", f"dtype={self.dtype}", limit="int32 or int64")
        if is_comparison:
            self._compared()

    def _combine(self, other: Any, symbol: str, *, swapped: bool = False) -> NkiScalar:
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

    def __rfloordiv__(self, other: Any) -> NkiScalar:
        return self._combine(other, "//", swapped=True)

    def __mod__(self, other: Any) -> NkiScalar:
        return self._combine(other, "%")

    def __rmod__(self, other: Any) -> NkiScalar:
        return self._combine(other, "%", swapped=True)

    def __neg__(self) -> NkiScalar:
        return self._combine(0, "-", swapped=True)

    def __pos__(self) -> NkiScalar:
        return self._combine(0, "+")

    def _compared(self, other: object = None) -> NoReturn:
        fault(
            "unsupported",
            "NkiScalar",
            "a run-time scalar is compared",
            limit="comparisons give nothing that can be used",
            advice="Compute the condition with nisa.tensor_scalar on a (1, 1) tile",
        )

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _compared
    __hash__ = None  # type: ignore[assignment]

    def _no_operator(self, other: object = None, modulo: object = None) -> NoReturn:
        fault(
            "unsupported",
            "NkiScalar",
            f"an operator other than + - * // % on {self!r}",
            limit="int32 scalars take + - * // % and signs, int64 scalars + - * and signs",
            advice="Compute other functions on a (1, 1) tile",
        )

    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _no_operator
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __divmod__ = __rdivmod__ = __invert__ = __abs__ = _no_operator

    def _in_python(self) -> NoReturn:
        fault(
            "unsupported",
            "NkiScalar",
            f"the kernel's Python reads {self!r} (if, while, range, int, an index or a slice)",
            limit="its value is not known while the kernel is built",
            advice=AS_CONDITION,
        )

    __bool__ = __int__ = __index__ = __float__ = __round__ = __trunc__ = _in_python


class LoopIndex(NkiScalar, VirtualRegister):  # type: ignore[misc]  # scalars have no hash, registers do
    """What `nl.fori_loop` passes its body if no bound is a register: an NkiScalar in 0.7, a VirtualRegister in 0.6."""

    __slots__ = ()


_INT32_ONLY = ("//", "%")


def combine(left: Any, right: Any, symbol: str) -> NkiScalar:
    """A new scalar `left symbol right`; both sides are scalars or Python ints, the result wraps at their width."""
    machine = current_machine("scalar arithmetic")
    width = next(item.dtype for item in (left, right) if isinstance(item, NkiScalar))
    bits = 8 * width.itemsize
    for item in (left, right):
        if isinstance(item, NkiScalar) and item.dtype != width:
            fault("dtype", "NkiScalar", f"{left.dtype} {symbol} {right.dtype}", limit="both of one width")
        if not isinstance(item, NkiScalar | int | np.integer):
            fault("argument", "NkiScalar", f"operand {item!r}", limit="an int or a run-time scalar")
        if not isinstance(item, NkiScalar) and not -(1 << (bits - 1)) <= item < 1 << (bits - 1):
            fault(
                "argument",
                "NkiScalar",
                f"operand {item}",
                limit=f"must fit {width}, the width of the scalar",
                advice="Load from an int64 tile where a value needs more range",
            )
    if symbol in _INT32_ONLY and width.name != "int32":
        fault("dtype", "NkiScalar", f"int64 {symbol}", limit="int64 scalars take + - * only")
    for item in (left, right):
        if isinstance(item, NkiScalar):
            item.check_home("NkiScalar")
    result = NkiScalar(0, width)
    result.known = all(not isinstance(item, NkiScalar) or item.known for item in (left, right)) and not machine.loops
    result.follows(*[item.loads for item in (left, right) if isinstance(item, NkiScalar)])

    def value(item: Any) -> int:
        return item.read() if isinstance(item, NkiScalar) else int(item)

    def action() -> None:
        a, b = value(left), value(right)
        exact = a + b if symbol == "+" else a - b if symbol == "-" else a * b if symbol == "*" else _divide(a, b, symbol)
        wrapped = (exact + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
        result.write(np.array(wrapped, width.dtype))

    if result.known and not machine.options.values:
        action()
    machine.action(action)
    return result


def _divide(a: int, b: int, symbol: str) -> int:
    if b == 0:
        fault("argument", "NkiScalar", f"{a} {symbol} 0", limit="the divisor must not be 0")
    return a // b if symbol == "//" else a % b
