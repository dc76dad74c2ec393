"""Operand values: how an instruction reads a tile into compute precision and rounds a result into its destination.

Engines compute in float32 and round once, to nearest even, when they write (facts of the public documentation:
"compute in fp32, round once to dst"). The helpers return closures bound to the operands' memory, so that a recorded
instruction costs only its NumPy calls when it is replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.sim.dtypes import DType
from nki_hf.sim.tensor import NkiTensor

__all__ = ["Array", "Reader", "Writer", "cast", "reader", "reader2d", "writer"]

Array = np.ndarray[Any, Any]
Reader = Callable[[], Array]
Writer = Callable[[Array], None]


def reader(tensor: NkiTensor) -> Reader:
    """Closure that gives the operand in float32, shaped as the view; float32 tiles are not copied."""
    array = tensor.array()
    if array.dtype == np.float32:
        return lambda: array
    return lambda: array.astype(np.float32)


def reader2d(tensor: NkiTensor) -> Reader:
    """Closure that gives the operand in float32 as `[partitions, free_size]`."""
    read = reader(tensor)
    if tensor.ndim == 2:
        return read
    shape = (tensor.partitions, tensor.free_size)
    return lambda: read().reshape(shape)


def writer(tensor: NkiTensor) -> Writer:
    """Closure that rounds a float32 result of as many elements into the tensor, and marks its elements as written."""
    mark_written(tensor)
    array, dtype, shape = tensor.array(), tensor.dtype, tensor.shape
    if array.dtype == np.float32 and dtype.name == "float32":

        def write(values: Array) -> None:
            array[...] = values if values.shape == shape else values.reshape(shape)

    else:

        def write(values: Array) -> None:
            array[...] = cast(values, dtype).reshape(shape)

    return write


def mark_written(tensor: NkiTensor) -> None:
    """Note, at trace time, that an instruction writes these elements."""
    flags = tensor.storage.written
    if flags is not None:
        view = tensor.written()
        if view is None:
            flags[...] = True
        else:
            view[...] = True


def cast(values: Array, dtype: DType) -> Array:
    """Values rounded to `dtype` as the engines do: nearest even; integers saturate and NaN becomes 0.

    Source: NKI 0.6 release notes (simulator: fp32 to int rounds to nearest even and saturates).
    """
    target = dtype.dtype
    if values.dtype == target and dtype.name != "tfloat32":
        return values
    if dtype.name == "tfloat32":
        bits = values.astype(np.float32).view(np.uint32)
        rounded = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
        return (rounded & np.uint32(0xFFFFE000)).view(np.float32)
    if dtype.family == "bool":
        return values != 0
    if dtype.is_integer:
        if values.dtype.kind in "iub":
            return np.clip(values, np.iinfo(target).min, np.iinfo(target).max).astype(target)
        info = np.iinfo(target)
        wide = np.rint(values.astype(np.float64))
        return np.nan_to_num(np.clip(wide, info.min, info.max), nan=0.0).astype(target)
    return values.astype(target)
