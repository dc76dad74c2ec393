"""Operand values: how an instruction reads a tile into compute precision and rounds a result into its destination.

Engines compute in float32 and round once, to nearest even, when they write ("compute in fp32, round once to dst"). The
functions return closures bound to the operands' memory, so that a recorded instruction costs only its NumPy calls when it
is replayed. Compute operands have the form `[partitions, elements per partition]`, whatever the rank of the view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.sim.tensors.casts import cast, widen
from nki_hf.sim.tensors.indirect import access
from nki_hf.sim.tensors.strides import row_major
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = [
    "Array", "Reader", "Storer", "Writer", "bit_reader", "bit_type", "bit_writer", "cast", "column", "flat_view",
    "float_target", "mark_written", "native_reader", "note_writer", "reader", "storer", "writer",
]  # fmt: skip

Array = np.ndarray[Any, Any]
Reader = Callable[[], Array]
Writer = Callable[[Array], None]
Storer = Callable[..., None]


def reader(tensor: NkiTensor, group: int = 16) -> Reader:
    """Closure that gives the operand in float32 as `[partitions, free_size]`; float32 tiles are not copied.

    `group` is the number of partitions that share a list of offsets, if the operand is indirect (see sim/tensors/offsets.py).
    """
    native = native_reader(tensor, group)
    if tensor.dtype.dtype == np.float32:
        return native
    convert = widen(tensor.dtype.dtype)
    return lambda: convert(native())


def native_reader(tensor: NkiTensor, group: int = 16) -> Reader:
    """Closure that gives the operand in its own element type as `[partitions, free_size]`."""
    if tensor.indirection is not None:
        shape = (tensor.partitions, tensor.free_size)
        gather = access(tensor, group=group).read
        return lambda: gather()[0].reshape(shape)
    array = tensor.array()
    if array.ndim == 2:
        return lambda: array
    shape = (tensor.partitions, tensor.free_size)
    flat = _flat(array, *shape)
    if flat is not None:
        return lambda: flat
    return lambda: array.reshape(shape)


def bit_reader(tensor: NkiTensor) -> Reader:
    """Closure that gives the operand's bit patterns as unsigned integers, `[partitions, free_size]`."""
    native = native_reader(tensor)
    bits = bit_type(tensor)
    return lambda: native().view(bits)


def bit_type(tensor: NkiTensor) -> Any:
    """The unsigned NumPy type as wide as the tensor's elements."""
    return np.dtype(f"u{tensor.dtype.dtype.itemsize}")


def storer(tensor: NkiTensor, group: int = 16) -> Storer:
    """Closure `store(values, where=None)` of values in the tensor's own element type, `[partitions, free_size]` or
    broadcast to it; elements outside `where` keep what they have.
    """
    shape, wanted = tensor.shape, (tensor.partitions, tensor.free_size)
    if tensor.indirection is not None:
        scatter = access(tensor, group=group).write

        def store_indirect(values: Array, where: Array | None = None) -> None:
            values = np.broadcast_to(values, wanted).reshape(shape)
            scatter(values, None if where is None else np.broadcast_to(where, wanted).reshape(shape))

        return store_indirect
    array = tensor.array()
    flat = _flat(array, *wanted)
    if flat is not None:

        def store(values: Array, where: Array | None = None) -> None:
            if where is None:
                flat[...] = values
            else:
                np.copyto(flat, values, where=where)

        return store

    def store_strided(values: Array, where: Array | None = None) -> None:
        values = np.broadcast_to(values, wanted).reshape(shape)
        if where is None:
            array[...] = values
        else:
            np.copyto(array, values, where=np.broadcast_to(where, wanted).reshape(shape))

    return store_strided


def writer(tensor: NkiTensor, group: int = 16) -> Writer:
    """Closure that rounds a result `[partitions, free_size]` (or broadcast to it) into the tensor."""
    dtype = tensor.dtype
    store = storer(tensor, group)
    if dtype.name in ("float32", "bfloat16", "float16") and tensor.indirection is None:
        return store  # NumPy's own assignment rounds as the engines do
    return lambda values: store(cast(values, dtype))


def bit_writer(tensor: NkiTensor) -> Writer:
    """Closure that stores unsigned integers as the tensor's bit patterns, cut or zero-extended to its width."""
    bits, element = bit_type(tensor), tensor.dtype.dtype
    if tensor.indirection is None:
        raw = tensor.array().view(bits)
        flat = _flat(raw, tensor.partitions, tensor.free_size)
        if flat is not None:
            return lambda values: np.copyto(flat, values, casting="unsafe")
    store = storer(tensor)
    return lambda values: store(values.astype(bits).view(element))


def flat_view(tensor: NkiTensor) -> Array | None:
    """The tensor's memory as `[partitions, free_size]`, in its own element type; None if no view has that form."""
    return None if tensor.indirection is not None else _flat(tensor.array(), tensor.partitions, tensor.free_size)


def float_target(tensor: NkiTensor) -> Array | None:
    """The tensor's memory as a float32 `[partitions, free_size]` array that a NumPy function may write to; None if it is
    stored otherwise.
    """
    if tensor.dtype.dtype != np.float32 or tensor.dtype.name == "tfloat32" or tensor.indirection is not None:
        return None
    if 0 in tensor.strides:  # elements share memory: a result must not be read back from there
        return None
    return _flat(tensor.array(), tensor.partitions, tensor.free_size)


def column(value: Any) -> Callable[[], Any]:
    """Closure that gives a per-partition operand: float32 `[partitions, 1]` of a tile, or the immediate as float32."""
    if isinstance(value, NkiTensor):
        return reader(value)
    number = np.float32(value)
    return lambda: number


def mark_written(tensor: NkiTensor, where: Array | None = None) -> None:
    """Note that an instruction writes these elements (an indirect write notes it when it executes).

    `where` is a bool array that broadcasts to `[partitions, free_size]`, or None for all. Elements that are seen at another
    width than they are stored with count as written if any is.
    """
    storage = tensor.storage
    if not storage.tracked or tensor.indirection is not None or (pattern := tensor.pattern()) in storage.whole:
        return
    if where is None and _is_all(tensor):
        storage.all_written()
        storage.whole.add(pattern)
        return
    flags, view = storage.written, tensor.written()
    if flags is None:
        return
    if where is None:
        (flags if view is None else view)[...] = True
        storage.whole.add(pattern)
    elif view is not None:
        view |= np.broadcast_to(where, (tensor.partitions, tensor.free_size)).reshape(view.shape)
    elif where.any():
        flags[...] = True


def _is_all(tensor: NkiTensor) -> bool:
    """True for a view of all elements of its allocation, in their order."""
    buffer = tensor.storage.buffer
    return tensor.shape == buffer.shape and tensor.dtype is buffer.dtype and tensor.strides == row_major(tensor.shape)


def note_writer(tensor: NkiTensor, engine: str) -> None:
    """Note which elements of PSUM the Tensor engine wrote last, and which another one."""
    storage = tensor.storage
    if engine == "tensor":
        if storage.foreign is not None:
            tensor.written_by_others()[...] = False  # type: ignore[index]
        return
    if storage.foreign is None:
        storage.foreign = np.zeros(storage.buffer.elements, np.bool_)
    tensor.written_by_others()[...] = True  # type: ignore[index]


def _flat(array: Array, partitions: int, free: int) -> Array | None:
    if array.ndim == 2:
        return array
    merged = array.reshape(partitions, free)
    return merged if np.may_share_memory(merged, array) else None
