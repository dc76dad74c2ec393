"""Element-wise tile math: `nl.add(x, y)`, `nl.exp(x)`, ... Each makes a new SBUF tile with real instructions.

Which instruction an operator becomes: arithmetic on the Vector engine (tensor_tensor, tensor_scalar), functions that the
Scalar engine has tables for as an activation, the rest (sine outside [-pi, pi], cosine, rounding) as several of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim.dtypes import DType, as_dtype
from nki_hf.sim.faults import fault
from nki_hf.sim.isa import operators as op
from nki_hf.sim.language.movement import sbuf_tile
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["apply", "promote", "same_shape"]

_NOT_MATH = ("prelu", "bypass", "average")
_TWO_PI_HIGH = float(np.float32(6.28125))  # few mantissa bits, so that n * high is exact for |n| < 2**15
_TWO_PI_LOW = 2 * math.pi - 6.28125


def apply(operator: op.Operator, x: Any, y: Any = None, dtype: Any = None) -> NkiTensor:
    """The operator on tiles and numbers, as a new tile in SBUF.

    Args:
      operator: what `nl.<name>` is.
      x, y: tiles of shapes that broadcast along free axes, or numbers; at least one tile. Unary operators take `x` alone;
        their second positional argument is `dtype`.
      dtype: element type of the result; default is that of the tile, or the wider one of two tiles.
    """
    if operator.name in _NOT_MATH:
        raise TypeError(f"nl.{operator.name} is only an op of instructions: it cannot be called on tiles.")
    if operator.arity == 1:
        dtype = y if dtype is None else dtype
        tile = _tile(operator, x)
        result = sbuf_tile(tile.shape, tile.dtype if dtype is None else dtype)
        _UNARY.get(operator.name, _activation)(operator, result, tile)
    else:
        result = _binary(operator, x, y, dtype)
    result.compared = operator.kind in ("compare", "logical")
    return result


def promote(first: DType, second: DType) -> DType:
    """The element type of a result of two tiles: the same one, a float before an integer, else the wider one.

    Two different types of one width give float32 (floats) or int32.
    """
    if first == second:
        return first
    if first.is_float != second.is_float:
        return first if first.is_float else second
    if first.itemsize != second.itemsize:
        return first if first.itemsize > second.itemsize else second
    return as_dtype("float32" if first.is_float else "int32")


def same_shape(operator: str, x: NkiTensor, y: NkiTensor) -> tuple[NkiTensor, NkiTensor]:
    """Both tiles as views of one shape: free axes of size 1 are repeated."""
    rank = max(x.ndim, y.ndim)
    x, y = _to_rank(x, rank), _to_rank(y, rank)
    shape = tuple(max(a, b) for a, b in zip(x.shape, y.shape, strict=True))
    for tile in (x, y):
        if tile.shape[0] != shape[0]:
            fault(
                "shape", operator, f"{x!r} with {y!r}", limit="as many partitions in both", advice="Use nl.broadcast_to first"
            )
    return _repeated(operator, x, shape), _repeated(operator, y, shape)


def _to_rank(tile: NkiTensor, rank: int) -> NkiTensor:
    while tile.ndim < rank:
        tile = tile.expand_dim(1)
    return tile


def _repeated(operator: str, tile: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    for axis, (have, want) in enumerate(zip(tile.shape, shape, strict=True)):
        if have == want:
            continue
        if have != 1:
            fault("shape", operator, f"{tile!r}", limit=f"must broadcast to {list(shape)}")
        tile = tile.broadcast(axis, want)
    return tile


def _binary(operator: op.Operator, x: Any, y: Any, dtype: Any) -> NkiTensor:
    if isinstance(x, NkiTensor) and isinstance(y, NkiTensor):
        wanted = promote(x.dtype, y.dtype) if dtype is None else dtype
        x, y = same_shape(operator.name, x, y)
        result = sbuf_tile(x.shape, wanted)
        nisa.tensor_tensor(dst=result, data1=x, data2=y, op=operator)
        return result
    tile, number, reverse = (x, y, False) if isinstance(x, NkiTensor) else (_tile(operator, y), x, True)
    if not isinstance(number, int | float | np.number):
        fault("argument", operator.name, f"operand {number!r}", limit="must be a tile or a number")
    result = sbuf_tile(tile.shape, tile.dtype if dtype is None else dtype)
    nisa.tensor_scalar(dst=result, data=tile, op0=operator, operand0=number, reverse0=reverse)
    return result


def _tile(operator: op.Operator, value: Any) -> NkiTensor:
    if not isinstance(value, NkiTensor) or not value.on_chip:
        fault("argument", operator.name, f"operand {value!r}", limit="must be a tile in SBUF or PSUM", advice="Load it first")
    return value


def _activation(operator: op.Operator, dst: NkiTensor, data: NkiTensor) -> None:
    nisa.activation(dst=dst, op=operator, data=data)


def _copy(_: op.Operator, dst: NkiTensor, data: NkiTensor) -> None:
    nisa.tensor_copy(dst=dst, src=data)


def _negative(_: op.Operator, dst: NkiTensor, data: NkiTensor) -> None:
    nisa.tensor_scalar(dst=dst, data=data, op0=op.multiply, operand0=-1.0)


def _reciprocal(_: op.Operator, dst: NkiTensor, data: NkiTensor) -> None:
    nisa.reciprocal(dst=dst, data=data)


def _invert(_: op.Operator, dst: NkiTensor, data: NkiTensor) -> None:
    nisa.tensor_scalar(dst=dst, data=data, op0=op.bitwise_xor, operand0=-1)


def _logical_not(_: op.Operator, dst: NkiTensor, data: NkiTensor) -> None:
    nisa.tensor_scalar(dst=dst, data=data, op0=op.logical_xor, operand0=1.0)


def _rounded(data: NkiTensor) -> NkiTensor:
    """Nearest whole number (ties to even) in float32: the cast to int32 rounds."""
    whole, back = sbuf_tile(data.shape, "int32"), sbuf_tile(data.shape, "float32")
    nisa.tensor_copy(dst=whole, src=data)
    nisa.tensor_copy(dst=back, src=whole)
    return back


def _stepped(comparison: op.Operator, direction: op.Operator) -> Callable[[op.Operator, NkiTensor, NkiTensor], None]:
    """Floor or ceiling of |x| < 2**31: the nearest whole number, moved by one where it lies on the wrong side."""

    def compute(_: op.Operator, dst: NkiTensor, data: NkiTensor) -> None:
        whole, wrong = _rounded(data), sbuf_tile(data.shape, "float32")
        nisa.tensor_tensor(dst=wrong, data1=whole, data2=data, op=comparison)
        nisa.tensor_tensor(dst=dst, data1=whole, data2=wrong, op=direction)

    return compute


def _trunc(_: op.Operator, dst: NkiTensor, data: NkiTensor) -> None:
    size, side, floor = (sbuf_tile(data.shape, "float32") for _ in range(3))
    nisa.activation(dst=size, op=op.abs, data=data)
    nisa.activation(dst=side, op=op.sign, data=data)
    _stepped(op.greater, op.subtract)(op.floor, floor, size)
    nisa.tensor_tensor(dst=dst, data1=floor, data2=side, op=op.multiply)


def _wrapped(data: NkiTensor, shift: float) -> NkiTensor:
    """`data + shift` minus the whole number of turns that brings it into [-pi, pi], in float32."""
    turns, rest, result = (sbuf_tile(data.shape, "float32") for _ in range(3))
    nisa.tensor_scalar(
        dst=turns, data=data, op0=op.multiply, operand0=1 / (2 * math.pi), op1=op.add, operand1=shift / (2 * math.pi)
    )
    turns = _rounded(turns)
    nisa.scalar_tensor_tensor(dst=rest, data=turns, op0=op.multiply, operand0=-_TWO_PI_HIGH, op1=op.add, operand1=data)
    nisa.scalar_tensor_tensor(dst=result, data=turns, op0=op.multiply, operand0=-_TWO_PI_LOW, op1=op.add, operand1=rest)
    limit = float(np.nextafter(np.float32(math.pi), np.float32(0)))
    nisa.tensor_scalar(dst=result, data=result, op0=op.add, operand0=shift)
    nisa.tensor_scalar(dst=result, data=result, op0=op.minimum, operand0=limit, op1=op.maximum, operand1=-limit)
    return result


def _sin(_: op.Operator, dst: NkiTensor, data: NkiTensor) -> None:
    nisa.activation(dst=dst, op=op.sin, data=_wrapped(data, 0.0))


def _cos(_: op.Operator, dst: NkiTensor, data: NkiTensor) -> None:
    nisa.activation(dst=dst, op=op.sin, data=_wrapped(data, math.pi / 2))


def _tan(_: op.Operator, dst: NkiTensor, data: NkiTensor) -> None:
    upper, lower, inverse = (sbuf_tile(data.shape, "float32") for _ in range(3))
    _sin(op.sin, upper, data)
    _cos(op.cos, lower, data)
    nisa.reciprocal(dst=inverse, data=lower)
    nisa.tensor_tensor(dst=dst, data1=upper, data2=inverse, op=op.multiply)


_UNARY: dict[str, Callable[[op.Operator, NkiTensor, NkiTensor], None]] = {
    "copy": _copy,
    "negative": _negative,
    "reciprocal": _reciprocal,
    "invert": _invert,
    "logical_not": _logical_not,
    "floor": _stepped(op.greater, op.subtract),
    "ceil": _stepped(op.less, op.add),
    "trunc": _trunc,
    "sin": _sin,
    "cos": _cos,
    "tan": _tan,
}
