"""What ALU operators of instructions give in float64 and how far off a reduction may be, for the models of rare steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from tools.fuzz.rare_site import UNIT, Array

__all__ = ["ALU", "Result", "combined", "folded"]

Result = tuple[Array, Any]
"""Values, and how far an element may be off."""
ALU: dict[str, Any] = {
    "bypass": lambda x, y: x,
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


def combined(alu: str, one: Any, two: Any, reverse: bool = False) -> Array:
    """`one alu two`, or the other way round."""
    found: Array = ALU[alu](*((two, one) if reverse else (one, two)))
    return found


def folded(alu: str, values: Array, slack: Any = 0.0) -> Result:
    """The reduction of float64 rows, each element of which may be off by `slack`."""
    slack = np.broadcast_to(slack, values.shape)
    if alu == "add":
        sums = np.abs(values).sum(1, keepdims=True)
        return values.sum(1, keepdims=True), UNIT * values.shape[1] * sums + slack.sum(1, keepdims=True) + 2.0**-126
    if alu in ("abs_max", "abs_min"):
        size = np.abs(values)
        place = (size.argmax(1) if alu == "abs_max" else size.argmin(1))[:, None]
        chosen = np.take_along_axis(values, place, 1)
        both = (np.abs(values + chosen) <= 2 * slack).any(1, keepdims=True)  # which sign such a tie has no document says
        return chosen, np.where(both, np.inf, slack.max(1, keepdims=True))
    if alu == "multiply":
        found = np.prod(values, 1, keepdims=True)
        far = np.abs(np.log2(np.where(values == 0, 1.0, np.abs(values)))).sum(1, keepdims=True) > 120
        return found, np.where(far, np.inf, UNIT * values.shape[1] * np.abs(found) + 2.0**-126)
    return ALU[alu].reduce(values, axis=1, keepdims=True), slack.max(1, keepdims=True)
