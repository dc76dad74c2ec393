"""Which elements run-time indices choose when an instruction executes, and which of these are in bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from nki_hf.errors import FaultRecord, KernelFault
from nki_hf.sim.faults import kernel_position
from nki_hf.sim.tensors.offsets import TensorIndirection, VectorOffset, check_offsets

if TYPE_CHECKING:
    from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["check_unique", "checker", "flat_of", "grid", "index_reader", "locator", "chosen", "row_starts"]

Array = np.ndarray[Any, Any]


def chosen(tensor: NkiTensor) -> Array:
    """Numbers of the elements that an indirect tensor's indices choose now; those out of bounds are left out."""
    elements, valid = locator(tensor, tensor.indirection, True, 16)()
    return elements.reshape(-1) if valid is None else elements[np.broadcast_to(valid, elements.shape)]


def locator(tensor: NkiTensor, indirection: Any, skip: bool | None, group: int) -> Callable[[], tuple[Array, Array | None]]:
    """Closure that gives the flattened element numbers `[shape]` of the view now, and which of them are in bounds."""
    shape, strides, stride = tensor.shape, tensor.strides, indirection.stride
    check, read_index = checker(tensor, indirection, skip), index_reader(indirection.index)

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
        starts, rest = row_starts(tensor, indirection, skip), grid(shape[1:], strides[1:])
        tail = (1,) * (len(shape) - 1)

        def locate_rows() -> tuple[Array, Array | None]:
            first, valid = starts()
            return first.reshape(-1, *tail) + rest, None if valid is None else valid.reshape(-1, *tail)

        return locate_rows

    rest = grid(shape, strides)
    last = int(rest.max()) if rest.size else 0

    def locate_block() -> tuple[Array, Array | None]:
        index = read_index().reshape(1)
        first = tensor.offset + index * stride
        valid = check(index, first, last)
        if valid is not None:
            return np.zeros(shape, np.int64), np.zeros((1,) * len(shape), np.bool_)
        return first[0] + rest, None

    return locate_block


def row_starts(tensor: NkiTensor, indirection: VectorOffset, skip: bool | None) -> Callable[[], tuple[Array, Array | None]]:
    """Closure that gives the element number of each row's start now, and which of them are in bounds; others are 0."""
    count, rest = tensor.shape[0], grid(tensor.shape[1:], tensor.strides[1:])
    last = int(rest.max()) if rest.size else 0
    check, read_index = checker(tensor, indirection, skip), index_reader(indirection.index)

    def starts() -> tuple[Array, Array | None]:
        index = read_index()
        index = index.reshape(index.shape[0], -1).T.reshape(-1)[:count]
        first = tensor.offset + index * indirection.stride
        valid = check(index, first, last)
        return (first if valid is None else np.where(valid, first, 0)), valid

    return starts


def checker(tensor: NkiTensor, indirection: Any, skip: bool | None) -> Callable[[Array, Array, int], Array | None]:
    """Function of indices, the elements where they start, and the distance of the furthest element from a start: which starts
    are in bounds, None if all.
    """
    size, stride, limit = indirection.size, indirection.stride, flat_of(tensor).size
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


def check_unique(tensor: NkiTensor, opcode: str) -> Callable[[], None]:
    """Closure that faults if two rows of a `VectorOffset` are the same one, at execution; those out of bounds do not count."""
    moved, position = tensor.indirection, kernel_position()
    read_index, count, flat = index_reader(moved.index), tensor.shape[0], flat_of(tensor).size

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


def flat_of(tensor: NkiTensor) -> Array:
    """The storage of a tensor as one row of elements of its type."""
    data, dtype = tensor.storage.data, tensor.dtype.dtype
    if data is None:
        raise RuntimeError(f"{tensor!r} has no values in a run on shapes alone.")
    return data[: data.size // dtype.itemsize * dtype.itemsize].view(dtype)


def grid(shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """Element numbers of a strided block, relative to its first element."""
    total = np.zeros((1,) * len(shape), np.int64)
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        steps = np.arange(size, dtype=np.int64) * stride
        total = total + steps.reshape((1,) * axis + (size,) + (1,) * (len(shape) - axis - 1))
    return total


def index_reader(index: Any) -> Callable[[], Array]:
    """Closure that gives the indices of a tile or register now, as int64."""
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
