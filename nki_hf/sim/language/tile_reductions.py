"""Reductions of a tile along its trailing free axes: `nl.sum(x, axis=1)` and its relatives."""

# The public names are those of NumPy.

from __future__ import annotations

import math
from typing import Any

from nki_hf.sim import isa as nisa
from nki_hf.sim.faults import fault
from nki_hf.sim.isa import operators as op
from nki_hf.sim.language.movement import sbuf_tile
from nki_hf.sim.language.tile_math import same_shape
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["all", "max", "mean", "min", "prod", "reduced_axes", "sum", "var"]


def sum(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Sum along `axis`, the last free axis or axes of the tile."""
    return _reduced(op.add, x, axis, dtype, keepdims)


def max(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Maximum along `axis`, the last free axis or axes of the tile."""
    return _reduced(op.maximum, x, axis, dtype, keepdims)


def min(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Minimum along `axis`, the last free axis or axes of the tile."""
    return _reduced(op.minimum, x, axis, dtype, keepdims)


def prod(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Product along `axis`, the last free axis or axes of the tile."""
    return _reduced(op.multiply, x, axis, dtype, keepdims)


def all(x: NkiTensor, axis: Any, dtype: Any = None) -> NkiTensor:
    """1 where every element along `axis` is true, else 0."""
    result = _reduced(op.logical_and, x, axis, dtype, keepdims=False)
    result.compared = True
    return result


def mean(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Arithmetic mean along `axis`; the sum is kept in float32."""
    count = _count(x, axis)
    total = _reduced(op.add, x, axis, "float32", keepdims)
    result = sbuf_tile(total.shape, x.dtype if dtype is None else dtype)
    nisa.tensor_scalar(dst=result, data=total, op0=op.multiply, operand0=1.0 / count)
    return result


def var(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Variance along `axis` (divided by the number of elements); the axes always stay with size 1."""
    centre, values = same_shape("var", mean(x, axis, "float32", keepdims=True), x)
    deviation, square = sbuf_tile(x.shape, "float32"), sbuf_tile(x.shape, "float32")
    nisa.tensor_tensor(dst=deviation, data1=values, data2=centre, op=op.subtract)
    nisa.activation(dst=square, op=op.square, data=deviation)
    return mean(square, axis, x.dtype if dtype is None else dtype, keepdims=True)


def reduced_axes(what: str, x: NkiTensor, axis: Any) -> tuple[int, ...]:
    """`axis` (int or sequence, negative allowed) as ascending axes, which must be the tile's last ones."""
    given = tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    axes = tuple(sorted(item % x.ndim if -x.ndim <= item < x.ndim else item for item in given))
    if not axes or axes != tuple(range(x.ndim - len(axes), x.ndim)) or axes[0] == 0:
        fault("shape", what, f"axis={axis} of {x!r}", limit="must be the last free axis or axes, never the partition axis")
    return axes


def _count(x: NkiTensor, axis: Any) -> int:
    return math.prod(x.shape[item] for item in reduced_axes("mean", x, axis))


def _reduced(operator: op.Operator, x: NkiTensor, axis: Any, dtype: Any, keepdims: bool) -> NkiTensor:
    axes = reduced_axes(operator.name, x, axis)
    kept = x.shape[: axes[0]]
    if keepdims:
        shape = kept + (1,) * len(axes)
    else:  # a tile never has fewer than two axes, so (128, 512) reduces to (128, 1)
        shape = kept if len(kept) > 1 else (*kept, 1)
    result = sbuf_tile(shape, x.dtype if dtype is None else dtype)
    nisa.tensor_reduce(dst=result, op=operator, data=x, axis=axes)
    return result
