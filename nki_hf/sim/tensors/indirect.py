"""Indirection: readers and writers of views whose elements are chosen by run-time indices.

`access(tensor)` turns any tensor, indirect or not, into a reader and a writer that look at the index values at the time of
execution, so that a recorded launch that is replayed with other index values touches other elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nki_hf.sim.tensors.chosen_elements import checker, flat_of, grid, index_reader, locator, row_starts
from nki_hf.sim.tensors.offsets import ScalarOffset, VectorOffset

if TYPE_CHECKING:
    from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["Access", "access", "gather"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Access:
    """How an instruction reaches a tensor's elements when it executes.

    Attributes:
      read: gives `(values, valid)`: values in the view's shape and storage type (a live view where nothing is indirect),
        and a bool array that broadcasts to that shape, or None if every index is in bounds.
      write: takes `(values, valid)`; elements that are not valid, here or by the argument, keep their value.
      rows: of a run of whole rows of an input: gives the first ones `[n, width]`, all others being 0, or None out of bounds.
    """

    read: Callable[[], tuple[Array, Array | None]]
    write: Callable[[Array, Array | None], None]
    rows: Callable[[], Array | None] | None = None


def gather(tensor: NkiTensor) -> Callable[[], Array]:
    """Closure that gives the tensor's values at execution; an index out of bounds is a fault."""
    if tensor.indirection is None:
        array = tensor.array()
        return lambda: array
    read = access(tensor).read
    return lambda: read()[0]


def access(tensor: NkiTensor, *, skip: bool | None = None, group: int = 16) -> Access:
    """Reader and writer of a tensor.

    Args:
      tensor: direct or indirect.
      skip: True reports indices out of bounds as not valid (`oob_mode.skip`); False makes them a fault, None too, of an
        instruction without an `oob_mode`.
      group: partitions that share one list of offsets of a `TensorIndirection`: 16, or 32 on the Tensor engine.
    """
    indirection = tensor.indirection
    if indirection is None:
        array, noted = tensor.array(), tensor.written() if tensor.storage.tracked else None
        unseen = tensor.storage.written if noted is None else None  # seen at another width: one element writes all

        def write_direct(values: Array, valid: Array | None) -> None:
            if valid is None:
                array[...] = values
            elif valid.size == len(array) and values.shape == array.shape:  # whole rows
                rows = np.flatnonzero(valid)
                array[rows] = values[rows]
            else:
                np.copyto(array, values, where=valid)
            if noted is not None:
                noted[...] |= True if valid is None else valid
            elif unseen is not None:
                unseen[...] = True

        return Access(lambda: (array, None), write_direct)
    flat = flat_of(tensor)
    if isinstance(indirection, ScalarOffset) and tensor.storage.buffer.role == "input" and _is_rows(tensor, indirection.stride):
        read_rows = _block_reader(tensor, indirection, skip, flat)
        read_block = _padded(read_rows, tensor.shape, flat.dtype, tensor.storage.buffer.shape[-1])
    else:
        read_rows, read_block, tensor.storage.seen = None, None, True
    locate = locator(tensor, indirection, skip, group)
    flags = tensor.storage.written
    same_size = tensor.dtype.itemsize == tensor.storage.buffer.dtype.itemsize

    def read() -> tuple[Array, Array | None]:
        elements, valid = locate()
        return flat[elements], valid

    if isinstance(indirection, VectorOffset):
        read = _row_reader(tensor, row_starts(tensor, indirection, skip), flat)

    def write(values: Array, valid: Array | None) -> None:
        elements, inside = locate()
        if inside is not None:
            valid = inside if valid is None else inside & valid
        if valid is not None:
            keep = np.broadcast_to(valid, elements.shape)
            elements, values = elements[keep], np.broadcast_to(values, keep.shape)[keep]
        flat[elements] = values
        if flags is not None:
            flags[elements if same_size else ...] = True

    return Access(read_block or read, write, read_rows)


def _is_rows(tensor: NkiTensor, stride: int) -> bool:
    """True if the view is a run of whole rows of its buffer, in a row, wherever steps of `stride` move it."""
    width, run = tensor.storage.buffer.shape[-1] if tensor.storage.buffer.shape else 0, 1
    for size, step in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size != 1 and step != run:
            return False
        run *= size
    whole = width and not any(number % width for number in (run, tensor.offset, stride))
    return bool(whole) and tensor.dtype == tensor.storage.buffer.dtype


def _block_reader(tensor: NkiTensor, indirection: ScalarOffset, skip: bool | None, flat: Array) -> Callable[[], Array | None]:
    """Reader of a run of whole rows of an input, from what the caller lent in its place if there is such: the first of them
    [n, width], all others are 0; None out of bounds.
    """
    storage, buffer = tensor.storage, tensor.storage.buffer.shape
    size, width = math.prod(tensor.shape), buffer[-1]
    check, read_index = checker(tensor, indirection, skip), index_reader(indirection.index)

    def read() -> Array | None:
        index = read_index().reshape(1)
        start = tensor.offset + index * indirection.stride
        if check(index, start, size - 1) is not None:
            return None
        first = int(start[0])
        if storage.lent is None:
            return flat[first : first + size].reshape(-1, width)
        return _lent_rows(storage.lent, buffer, first // width, size // width)

    return read


def _padded(
    read_rows: Callable[[], Array | None], shape: tuple[int, ...], dtype: Any, width: int
) -> Callable[[], tuple[Array, Array | None]]:
    """The same with all rows, in the view's shape, and which of them are in bounds: all (None) or none."""
    count = math.prod(shape) // width
    nothing, out = np.zeros(shape, dtype), np.zeros((1,) * len(shape), np.bool_)

    def read() -> tuple[Array, Array | None]:
        found = read_rows()
        if found is None:
            return nothing, out
        if len(found) < count:
            rows = np.zeros((count, width), found.dtype)
            rows[: len(found)] = found
            found = rows
        return found.reshape(shape), None

    return read


def _lent_rows(lent: Array, shape: tuple[int, ...], first: int, count: int) -> Array:
    """Rows `first` to `first + count` of an array `[..., keys, width]` of that shape, of which `lent` holds the beginning of
    every axis; the rest is 0, and is left out where it is the last rows of one plane.
    """
    length = shape[-2] if len(shape) > 1 else 1
    plane, row = divmod(first, length)
    index = np.unravel_index(plane, shape[:-2]) if len(shape) > 2 else ()
    inside = all(place < size for place, size in zip(index, lent.shape, strict=False))
    if len(shape) > 1 and row + count <= length and inside and lent.shape[-1] == shape[-1]:
        return lent[tuple(index)][row : row + count]
    rows = np.zeros((count, shape[-1]), lent.dtype)
    for number in range(count):  # over the end of a plane
        places = np.unravel_index(first + number, shape[:-1])
        if all(place < size for place, size in zip(places, lent.shape, strict=False)):
            rows[number, : lent.shape[-1]] = lent[places]
    return rows


def _row_reader(
    tensor: NkiTensor, starts: Callable[[], tuple[Array, Array | None]], flat: Array
) -> Callable[[], tuple[Array, Array | None]]:
    """Reader of whole rows: a view of all rows that there could be, from which those of now are copied."""
    shape, strides = tensor.shape[1:], tensor.strides[1:]
    last = sum(step * (size - 1) for step, size in zip(strides, shape, strict=True))
    tail = (1,) * len(shape)
    if min(strides, default=0) < 0 or last >= flat.size or 0 in shape:  # no row fits
        rest = grid(shape, strides)

        def read_elements() -> tuple[Array, Array | None]:
            first, valid = starts()
            if valid is not None and last >= flat.size:
                first = np.zeros_like(first)
            return flat[first.reshape(-1, *tail) + rest], None if valid is None else valid.reshape(-1, *tail)

        return read_elements
    steps = tuple(step * flat.itemsize for step in (1, *strides))
    windows: Array = np.ndarray((flat.size - last, *shape), flat.dtype, flat.view(np.uint8), strides=steps)

    def read() -> tuple[Array, Array | None]:
        first, valid = starts()
        return windows[first], None if valid is None else valid.reshape(-1, *tail)

    return read
