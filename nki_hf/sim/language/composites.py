"""Functions of a tile that take several instructions: softmax, rms_norm, where, dropout."""

from __future__ import annotations

from typing import Any

from nki_hf.sim import isa as nisa
from nki_hf.sim.isa import operators as op
from nki_hf.sim.language import tile_reductions as reductions
from nki_hf.sim.language.movement import sbuf_tile
from nki_hf.sim.language.tile_math import same_shape
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["dropout", "rms_norm", "softmax", "where"]


def softmax(x: NkiTensor, axis: Any = -1, dtype: Any = None) -> NkiTensor:
    """`exp(x - max) / sum` along `axis`, the last free axis or axes, in float32."""
    axes = reductions.reduced_axes("softmax", x, axis)
    values, peak = same_shape("softmax", x, reductions.max(x, axes, "float32", keepdims=True))
    shifted, power = sbuf_tile(x.shape, "float32"), sbuf_tile(x.shape, "float32")
    nisa.tensor_tensor(dst=shifted, data1=values, data2=peak, op=op.subtract)
    nisa.activation(dst=power, op=op.exp, data=shifted)
    total = reductions.sum(power, axes, "float32", keepdims=True)
    inverse = sbuf_tile(total.shape, "float32")
    nisa.reciprocal(dst=inverse, data=total)
    left, right = same_shape("softmax", power, inverse)
    result = sbuf_tile(x.shape, x.dtype if dtype is None else dtype)
    nisa.tensor_tensor(dst=result, data1=left, data2=right, op=op.multiply)
    return result


def rms_norm(
    x: NkiTensor, w: NkiTensor, axis: Any, n: int, epsilon: float = 1e-6, dtype: Any = None, compute_dtype: Any = None
) -> NkiTensor:
    """`x / sqrt(sum(x * x) / n + epsilon) * w` along `axis`.

    Args:
      x: tile.
      w: weights of a shape that broadcasts to it.
      axis: last free axis or axes.
      n: number that the sum of squares is divided by.
      epsilon: added under the root.
      dtype: element type of the result; default that of `x`.
      compute_dtype: element type of what lies between; default float32.
    """
    between = "float32" if compute_dtype is None else compute_dtype
    square = sbuf_tile(x.shape, between)
    nisa.activation(dst=square, op=op.square, data=x)
    total = reductions.sum(square, axis, "float32", keepdims=True)
    factor = sbuf_tile(total.shape, "float32")
    nisa.tensor_scalar(dst=factor, data=total, op0=op.multiply, operand0=1.0 / n, op1=op.add, operand1=epsilon)
    nisa.activation(dst=factor, op=op.rsqrt, data=factor)
    normal = sbuf_tile(x.shape, between)
    left, right = same_shape("rms_norm", x, factor)
    nisa.tensor_tensor(dst=normal, data1=left, data2=right, op=op.multiply)
    left, right = same_shape("rms_norm", normal, w)
    result = sbuf_tile(left.shape, x.dtype if dtype is None else dtype)
    nisa.tensor_tensor(dst=result, data1=left, data2=right, op=op.multiply)
    return result


def where(condition: NkiTensor, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """`x` where the condition is not 0, else `y`; each is a tile or a number."""
    tiles = [item for item in (x, y) if isinstance(item, NkiTensor)]
    wanted = dtype if dtype is not None else tiles[0].dtype if tiles else condition.dtype
    chosen, other = (_as_tile(item, condition, wanted) for item in (x, y))
    predicate = sbuf_tile(condition.shape, "uint8")
    nisa.tensor_scalar(dst=predicate, data=condition, op0=op.not_equal, operand0=0.0)
    nisa.tensor_copy_predicated(dst=other, src=chosen, predicate=predicate)
    return other


def dropout(x: NkiTensor, rate: Any, dtype: Any = None) -> NkiTensor:
    """`x` with each element zeroed with probability `rate`, a number or a tile `[partitions, 1]`; nothing is rescaled."""
    result = sbuf_tile(x.shape, x.dtype if dtype is None else dtype)
    nisa.dropout(dst=result, data=x, prob=rate)
    return result


def _as_tile(value: Any, condition: NkiTensor, dtype: Any) -> NkiTensor:
    tile = sbuf_tile(condition.shape, dtype)
    if isinstance(value, NkiTensor):
        nisa.tensor_copy(dst=tile, src=same_shape("where", value, condition)[0])
    else:
        nisa.memset(dst=tile, value=value)
    return tile
