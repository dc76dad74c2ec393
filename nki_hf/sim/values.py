"""Operand values: how an instruction reads a tile into compute precision and rounds a result into its destination.

Engines compute in float32 and round once, to nearest even, when they write ("compute in fp32, round once to dst"). The
functions return closures bound to the operands' memory, so that a recorded instruction costs only its NumPy calls when it
is replayed. Compute operands have the form `[partitions, elements per partition]`, whatever the rank of the view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.sim.casts import cast, widen
from nki_hf.sim.tensor import NkiTensor

__all__ = [
    "Array", "Reader", "Writer", "bit_reader", "bit_writer", "cast", "column", "float_target", "mark_written", "native_reader",
    "reader", "writer",
]  # fmt: skip

Array = np.ndarray[Any, Any]
Reader = Callable[[], Array]
Writer = Callable[[Array], None]

_BITS: dict[int, Any] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}


def reader(tensor: NkiTensor) -> Reader:
    """Closure that gives the operand in float32 as `[partitions, free_size]`; float32 tiles are not copied."""
    native = native_reader(tensor)
    dtype = tensor.array().dtype if tensor.indirection is None else tensor.dtype.dtype
    if dtype == np.float32:
        return native
    convert = widen(dtype)
    return lambda: convert(native())


def native_reader(tensor: NkiTensor) -> Reader:
    """Closure that gives the operand in its own element type as `[partitions, free_size]`."""
    array = tensor.array()
    flat = _flat(array, tensor.partitions, tensor.free_size)
    if flat is not None:
        return lambda: flat
    shape = (tensor.partitions, tensor.free_size)
    return lambda: array.reshape(shape)


def bit_reader(tensor: NkiTensor) -> Reader:
    """Closure that gives the operand's bit patterns as unsigned integers, `[partitions, free_size]`."""
    native = native_reader(tensor)
    bits = _BITS[tensor.array().dtype.itemsize]
    return lambda: native().view(bits)


def writer(tensor: NkiTensor) -> Writer:
    """Closure that rounds a result `[partitions, free_size]` (or broadcast to it) into the tensor."""
    array, dtype = tensor.array(), tensor.dtype
    flat = _flat(array, tensor.partitions, tensor.free_size)
    plain = (array.dtype == np.float32 and dtype.name != "tfloat32") or array.dtype.name in ("bfloat16", "float16")
    if flat is not None:
        if plain:

            def write(values: Array) -> None:
                flat[...] = values

        else:

            def write(values: Array) -> None:
                flat[...] = cast(values, dtype)

        return write
    shape, wanted = tensor.shape, (tensor.partitions, tensor.free_size)

    def write_strided(values: Array) -> None:
        rounded = values if plain else cast(values, dtype)
        if rounded.shape != wanted:
            rounded = np.broadcast_to(rounded, wanted)
        array[...] = rounded.reshape(shape)

    return write_strided


def bit_writer(tensor: NkiTensor) -> Writer:
    """Closure that stores unsigned integers as the tensor's bit patterns, cut or zero-extended to its width."""
    array = tensor.array()
    bits = _BITS[array.dtype.itemsize]
    raw, shape = array.view(bits), tensor.shape

    def write(values: Array) -> None:
        raw[...] = values.astype(bits, copy=False).reshape(shape)

    return write


def float_target(tensor: NkiTensor) -> Array | None:
    """The tensor's memory as a float32 `[partitions, free_size]` array that a NumPy function may write to; None if it is
    stored otherwise.
    """
    array = tensor.array()
    if array.dtype != np.float32 or tensor.dtype.name == "tfloat32":
        return None
    return _flat(array, tensor.partitions, tensor.free_size)


def column(value: Any) -> Callable[[], Any]:
    """Closure that gives a per-partition operand: float32 `[partitions, 1]` of a tile, or the immediate as float32."""
    if isinstance(value, NkiTensor):
        return reader(value)
    number = np.float32(value)
    return lambda: number


def mark_written(tensor: NkiTensor) -> None:
    """Note, at trace time, that an instruction writes these elements."""
    flags = tensor.storage.written
    if flags is not None:
        view = tensor.written() if tensor.indirection is None else None
        if view is None:
            flags[...] = True
        else:
            view[...] = True


def _flat(array: Array, partitions: int, free: int) -> Array | None:
    if array.ndim == 2:
        return array
    merged = array.reshape(partitions, free)
    return merged if np.may_share_memory(merged, array) else None
