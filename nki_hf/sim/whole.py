"""Whole numbers: what sizes, steps, offsets and patterns must be when the kernel is built."""

from __future__ import annotations

import operator
from typing import Any

from nki_hf.sim.faults import fault

__all__ = ["whole", "whole_pairs", "whole_sizes"]


def whole(opcode: str, name: str, value: Any) -> int:
    """`value` as an int: Python's and NumPy's integers pass, everything else is a fault (a float is never cut).

    Raises:
      KernelFault: `value` is a float, a tensor, a register or no number.
    """
    if type(value) is int:
        return value
    if not hasattr(value, "read") and not hasattr(value, "storage"):
        try:
            return operator.index(value)
        except TypeError:
            pass
    advice = "Divide with //" if isinstance(value, float) else ""
    fault("argument", opcode, f"{name}={value!r}", limit="must be an int when the kernel is built", advice=advice)


def whole_sizes(opcode: str, name: str, sizes: Any) -> tuple[int, ...]:
    """A shape as a tuple of ints; one int is a shape of one axis."""
    if not isinstance(sizes, tuple | list):
        return (whole(opcode, name, sizes),)
    for size in sizes:
        if type(size) is not int:
            return tuple(whole(opcode, f"{name}={tuple(sizes)!r}: size", item) for item in sizes)
    return tuple(sizes)


def whole_pairs(opcode: str, pattern: Any) -> tuple[tuple[int, int], ...]:
    """An access pattern `[[step, count], ...]` as pairs of ints."""
    if not isinstance(pattern, tuple | list) or any(not isinstance(pair, tuple | list) or len(pair) != 2 for pair in pattern):
        fault("argument", opcode, f"pattern={pattern!r}", limit="must be a list of pairs [step, count]")
    return tuple(
        (whole(opcode, f"pattern={pattern!r}: step", step), whole(opcode, f"pattern={pattern!r}: count", count))
        for step, count in pattern
    )
