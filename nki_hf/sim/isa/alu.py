"""One arithmetic stage of an instruction: an operator applied to two operands, bound as a closure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.sim.isa.operators import Operator
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import Array, bit_reader, column

__all__ = ["Stage", "bit_column", "shift_safe", "stage"]

Stage = Callable[..., Array]
"""`stage(values, out=None)`: the operator applied to the running value."""


def stage(op: Operator, operand: Any, reverse: bool) -> Stage:
    """The stage `values <op> operand` (`operand <op> values` if reversed) in float32.

    `operand` is an immediate, a per-partition tile or a closure that gives an array; unary operators ignore it.
    """
    compute = op.compute
    if op.arity == 1:
        return compute
    if isinstance(operand, NkiTensor) or callable(operand):
        get = column(operand) if isinstance(operand, NkiTensor) else operand
        if reverse:
            return lambda values, out=None: compute(get(), values, out=out)
        return lambda values, out=None: compute(values, get(), out=out)
    number = np.float32(operand)
    if reverse:
        return lambda values, out=None: compute(number, values, out=out)
    return lambda values, out=None: compute(values, number, out=out)


def bit_column(operand: Any, bits: np.dtype[Any]) -> Callable[[], Any]:
    """Closure that gives a per-partition operand as a bit pattern of the width of `bits`."""
    if isinstance(operand, NkiTensor):
        read = bit_reader(operand)
        return lambda: read().astype(bits)
    number = np.asarray(int(operand), np.int64).astype(bits)[()]
    return lambda: number


def shift_safe(op: Operator) -> Stage:
    """The operator on unsigned bit patterns; shifts by the width or more give 0."""
    if "shift" not in op.name:
        return op.compute

    def compute(values: Any, count: Any, out: Array | None = None) -> Array:
        width = 8 * np.asarray(values).dtype.itemsize
        shifted = op.compute(values, np.minimum(count, np.asarray(width - 1).astype(np.asarray(count).dtype)))
        return np.where(np.asarray(count) >= width, np.asarray(0).astype(shifted.dtype), shifted)

    return compute
