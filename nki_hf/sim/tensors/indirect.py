"""Indirection: views whose elements are chosen by run-time indices, resolved when the instruction executes.

A view carries one of the three records below in `tensor.indirection`. `access(tensor)` turns any tensor, indirect or
not, into a reader and a writer that look at the index values at the time of execution, so that a recorded launch that
is replayed with other index values touches other elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nki_hf.errors import FaultRecord, KernelFault
from nki_hf.sim.faults import fault, kernel_position

if TYPE_CHECKING:
    from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = [
    "LARGEST_GROUP",
    "Access",
    "ScalarOffset",
    "TensorIndirection",
    "VectorOffset",
    "access",
    "check_offsets",
    "check_unique",
    "gather",
    "index_tensors",
    "reached",
]

Array = np.ndarray[Any, Any]

LARGEST_GROUP = 32
"""Partitions that share one list of offsets on the Tensor engine; 16 on the others."""


@dataclass(frozen=True, slots=True, eq=False)
class ScalarOffset:
    """The whole view moves by `index * stride` elements.

    Attributes:
      index: a one-element tensor or a `VirtualRegister`.
      stride: elements of the view's dtype per index step.
      size: valid indices are 0 to size - 1; None = only the storage's end counts.
      dim: axis of the view that the index moves along, -1 if it is gone from the view.
    """

    index: Any
    stride: int
    size: int | None
    dim: int


@dataclass(frozen=True, slots=True, eq=False)
class VectorOffset:
    """Row `p` of the view starts at `offset + index[p] * stride`; a `(P, N)` index is read column by column."""

    index: NkiTensor
    stride: int
    size: int | None
    dim: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TensorIndirection:
    """Column `i` of the view is column `index[i % G, i // G]` of each partition group of G (NeuronCore-v4)."""

    index: NkiTensor
    stride: int
    size: int | None
    dim: int = 1


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


def index_tensors(tensors: tuple[NkiTensor, ...]) -> tuple[NkiTensor, ...]:
    """The index tensors that these operands' indirections read."""
    indirect = (tensor.indirection for tensor in tensors if tensor.indirection is not None)
    return tuple(item.index for item in indirect if hasattr(item.index, "storage"))


def gather(tensor: NkiTensor) -> Callable[[], Array]:
    """Closure that gives the tensor's values at execution; an index out of bounds is a fault."""
    if tensor.indirection is None:
        array = tensor.array()
        return lambda: array
    read = access(tensor).read
    return lambda: read()[0]


def reached(tensor: NkiTensor) -> Array:
    """Numbers of the elements that an indirect tensor's indices choose now, in order; those out of bounds are left out."""
    elements, valid = _locator(tensor, tensor.indirection, True, 16)()
    return np.unique(elements if valid is None else elements[np.broadcast_to(valid, elements.shape)])


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
        array, noted = tensor.array(), tensor.written() if tensor.storage.written is not None else None
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
    flat = _flat(tensor)
    if isinstance(indirection, ScalarOffset) and tensor.storage.buffer.role == "input" and _is_rows(tensor, indirection.stride):
        read_rows = _block_reader(tensor, indirection, skip, flat)
        read_block = _padded(read_rows, tensor.shape, flat.dtype, tensor.storage.buffer.shape[-1])
    else:
        read_rows, read_block, tensor.storage.seen = None, None, True
    locate = _locator(tensor, indirection, skip, group)
    flags = tensor.storage.written
    same_size = tensor.dtype.itemsize == tensor.storage.buffer.dtype.itemsize

    def read() -> tuple[Array, Array | None]:
        elements, valid = locate()
        return flat[elements], valid

    if isinstance(indirection, VectorOffset):
        read = _row_reader(tensor, _row_starts(tensor, indirection, skip), flat)

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


def _flat(tensor: NkiTensor) -> Array:
    data, dtype = tensor.storage.data, tensor.dtype.dtype
    if data is None:
        raise RuntimeError(f"{tensor!r} has no values in a run on shapes alone.")
    return data[: data.size // dtype.itemsize * dtype.itemsize].view(dtype)


def _locator(tensor: NkiTensor, indirection: Any, skip: bool | None, group: int) -> Callable[[], tuple[Array, Array | None]]:
    """Closure that gives the flattened element numbers `[shape]` of the view now, and which of them are in bounds."""
    shape, strides, stride = tensor.shape, tensor.strides, indirection.stride
    check, read_index = _checker(tensor, indirection, skip), _index_reader(indirection.index)

    if isinstance(indirection, TensorIndirection):
        check_offsets(shape, indirection.index, group)
        rows = np.arange(shape[0])
        source = np.arange(shape[1])
        start = tensor.offset + rows[:, None] * strides[0]

        def locate_columns() -> tuple[Array, Array | None]:
            index = read_index().reshape(indirection.index.shape[0], -1)
            chosen = index[(rows // group * group)[:, None] + source % group, source // group]
            first = start + chosen * stride
            valid = check(chosen, first, 0)
            return (first if valid is None else np.where(valid, first, 0)), valid

        return locate_columns

    if isinstance(indirection, VectorOffset):
        starts, rest = _row_starts(tensor, indirection, skip), _grid(shape[1:], strides[1:])
        tail = (1,) * (len(shape) - 1)

        def locate_rows() -> tuple[Array, Array | None]:
            first, valid = starts()
            return first.reshape(-1, *tail) + rest, None if valid is None else valid.reshape(-1, *tail)

        return locate_rows

    rest = _grid(shape, strides)
    last = int(rest.max()) if rest.size else 0

    def locate_block() -> tuple[Array, Array | None]:
        index = read_index().reshape(1)
        first = tensor.offset + index * stride
        valid = check(index, first, last)
        if valid is not None:
            return np.zeros(shape, np.int64), np.zeros((1,) * len(shape), np.bool_)
        return first[0] + rest, None

    return locate_block


def _checker(tensor: NkiTensor, indirection: Any, skip: bool | None) -> Callable[[Array, Array, int], Array | None]:
    """Function of indices, the elements where they start, and the distance of the furthest element from a start: which starts
    are in bounds, None if all.
    """
    size, stride, limit = indirection.size, indirection.stride, _flat(tensor).size
    if size is None and tensor.on_chip and stride > 0:  # what leaves its partition leaves the tensor
        row = tensor.storage.buffer.bytes_per_partition // tensor.dtype.itemsize
        last_free = sum(step * (count - 1) for step, count in zip(tensor.strides[1:], tensor.shape[1:], strict=True))
        size = (row - 1 - tensor.offset % row - last_free) // stride + 1
    position, buffer = kernel_position(), tensor.storage.buffer
    name = f"{tensor.name}{list(buffer.shape)} {buffer.dtype} {buffer.space}"

    def check(index: Array, first: Array, last: int) -> Array | None:
        bad = (index < 0) | (first + last >= limit) if size is None else (index < 0) | (index >= size) | (first + last >= limit)
        if not bad.any():
            return None
        if not skip:
            where = int(np.flatnonzero(bad)[0])
            reach = (limit - 1 - last - tensor.offset) // stride + 1 if size is None and stride > 0 else size
            _out_of_bounds(name, position, index.reshape(-1)[where], where, reach, has_mode=skip is not None)
        return ~bad

    return check


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
    check, read_index = _checker(tensor, indirection, skip), _index_reader(indirection.index)

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


def _row_starts(tensor: NkiTensor, indirection: VectorOffset, skip: bool | None) -> Callable[[], tuple[Array, Array | None]]:
    """Closure that gives the element number of each row's start now, and which of them are in bounds; others are 0."""
    count, rest = tensor.shape[0], _grid(tensor.shape[1:], tensor.strides[1:])
    last = int(rest.max()) if rest.size else 0
    check, read_index = _checker(tensor, indirection, skip), _index_reader(indirection.index)

    def starts() -> tuple[Array, Array | None]:
        index = read_index()
        index = index.reshape(index.shape[0], -1).T.reshape(-1)[:count]
        first = tensor.offset + index * indirection.stride
        valid = check(index, first, last)
        return (first if valid is None else np.where(valid, first, 0)), valid

    return starts


def _row_reader(
    tensor: NkiTensor, starts: Callable[[], tuple[Array, Array | None]], flat: Array
) -> Callable[[], tuple[Array, Array | None]]:
    """Reader of whole rows: a view of all rows that there could be, from which those of now are copied."""
    shape, strides = tensor.shape[1:], tensor.strides[1:]
    last = sum(step * (size - 1) for step, size in zip(strides, shape, strict=True))
    tail = (1,) * len(shape)
    if min(strides, default=0) < 0 or last >= flat.size or 0 in shape:  # no row fits
        rest = _grid(shape, strides)

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


def check_unique(tensor: NkiTensor, opcode: str) -> Callable[[], None]:
    """Closure that faults if two rows of a `VectorOffset` are the same one, at execution; those out of bounds do not count."""
    moved, position = tensor.indirection, kernel_position()
    read_index, count, flat = _index_reader(moved.index), tensor.shape[0], _flat(tensor).size

    def check() -> None:
        index = read_index()
        index = index.reshape(index.shape[0], -1).T.reshape(-1)[:count]
        first = tensor.offset + index * moved.stride
        values, times = np.unique(index[(first >= 0) & (first < flat)], return_counts=True)
        if (times > 1).any():
            raise KernelFault(
                FaultRecord(
                    kind="argument",
                    instruction=opcode,
                    message=f"row {int(values[times > 1][0])} is among the indices twice",
                    limit="the indices of a scatter that reads, adds and writes must be unique",
                    advice="Add the rows of equal index first, or scatter them in separate instructions",
                    file=position[0],
                    line=position[1],
                )
            )

    return check


def check_offsets(shape: tuple[int, ...], index: NkiTensor, group: int) -> None:
    """A fault if a view `(P, num_elem)` takes more offsets than its index has for a group of so many partitions."""
    offered = min(group, shape[0]) * math.prod(index.shape[1:])
    if shape[1] > offered:
        fault(
            "bounds",
            "indirect",
            f"num_elem={shape[1]} of index {index!r}",
            limit=f"a group of {min(group, shape[0])} partitions has {offered} offsets in it",
            advice=f"Pass num_elem={offered} or less to indirect (left out it is all {math.prod(index.shape)} of the index)",
            num_elem=shape[1],
            offered=offered,
        )


def _grid(shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """Element numbers of a strided block, relative to its first element."""
    total = np.zeros((1,) * len(shape), np.int64)
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        steps = np.arange(size, dtype=np.int64) * stride
        total = total + steps.reshape((1,) * axis + (size,) + (1,) * (len(shape) - axis - 1))
    return total


def _index_reader(index: Any) -> Callable[[], Array]:
    if not hasattr(index, "storage"):
        return lambda: np.array([index.read()], np.int64)
    array = index.array()
    return lambda: array.astype(np.int64)


def _out_of_bounds(name: str, position: tuple[str, int], index: Any, where: int, size: int | None, *, has_mode: bool) -> None:
    raise KernelFault(
        FaultRecord(
            kind="bounds",
            instruction="index",
            message=f"run-time index {int(index)} (entry {where}) leaves {name}",
            limit="must stay within the tensor" if size is None or size < 1 else f"must be 0 to {size - 1}",
            advice="Use oob_mode.skip where indices may be out of bounds" if has_mode else "",
            file=position[0],
            line=position[1],
            details={"index": int(index), "entry": where, "size": size},
        )
    )
