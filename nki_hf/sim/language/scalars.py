"""Arithmetic on run-time scalars, executed when the instruction stream reaches it."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim.faults import fault
from nki_hf.sim.machine import current_machine
from nki_hf.sim.registers import NkiScalar

__all__ = ["combine"]

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
            fault("argument", "NkiScalar", f"operand {item}", limit=f"must fit {width}, the width of the scalar",
                  advice="Load from an int64 tile where a value needs more range")  # fmt: skip
    if symbol in _INT32_ONLY and width.name != "int32":
        fault("dtype", "NkiScalar", f"int64 {symbol}", limit="int64 scalars take + - * only")
    for item in (left, right):
        if isinstance(item, NkiScalar):
            item.check_home("NkiScalar")
    result = NkiScalar(0, width)
    result.known = all(not isinstance(item, NkiScalar) or item.known for item in (left, right)) and not machine.loops

    def value(item: Any) -> int:
        return item.read() if isinstance(item, NkiScalar) else int(item)

    def step() -> None:
        a, b = value(left), value(right)
        exact = a + b if symbol == "+" else a - b if symbol == "-" else a * b if symbol == "*" else _divide(a, b, symbol)
        wrapped = (exact + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
        result.write(np.array(wrapped, width.dtype))

    if result.known and not machine.options.values:
        step()
    machine.step(step)
    return result


def _divide(a: int, b: int, symbol: str) -> int:
    if b == 0:
        fault("argument", "NkiScalar", f"{a} {symbol} 0", limit="the divisor must not be 0")
    return a // b if symbol == "//" else a % b
