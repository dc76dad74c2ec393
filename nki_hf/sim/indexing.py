"""How a subscript `t[...]` becomes shape, strides and offset, with the language's rules about partitions and bounds."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from nki_hf.sim.faults import fault

if TYPE_CHECKING:
    from nki_hf.sim.tensor import NkiTensor

__all__ = ["DynamicSlice", "ds", "normalize_index"]


class DynamicSlice:
    """`nl.ds(start, size)`: `size` elements from `start`."""

    __slots__ = ("size", "start")

    def __init__(self, start: Any, size: int) -> None:
        self.start = start
        self.size = size


def ds(start: Any, size: int) -> DynamicSlice:
    """A slice of `size` elements from `start`, for use in a subscript."""
    return DynamicSlice(start, size)


def normalize_index(tensor: NkiTensor, key: Any) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Shape, strides and offset of `tensor[key]`.

    Integers drop an axis in HBM; on chip an integer on axis 0 keeps it with size 1, and the result keeps two axes.
    An index or slice that leaves the tensor is a fault that names the offending index.
    """
    keys = key if isinstance(key, tuple) else (key,)
    if any(item is Ellipsis for item in keys):
        position = next(i for i, item in enumerate(keys) if item is Ellipsis)
        missing = tensor.ndim - (len(keys) - 1)
        keys = keys[:position] + (slice(None),) * missing + keys[position + 1 :]
    if len(keys) > tensor.ndim:
        fault("bounds", "index", f"{len(keys)} subscripts on {tensor!r}", limit=f"it has {tensor.ndim} axes")
    keys = keys + (slice(None),) * (tensor.ndim - len(keys))

    shape, strides, offset = [], [], tensor.offset
    dropped: list[int] = []
    for axis, (item, size, stride) in enumerate(zip(keys, tensor.shape, tensor.strides, strict=True)):
        if isinstance(item, DynamicSlice):
            start, stop, step = operator.index(item.start), operator.index(item.start) + item.size, 1
            _check_range(tensor, axis, start, stop, size)
        elif isinstance(item, slice):
            start, stop, step = _resolve_slice(tensor, axis, item, size)
        else:
            index = operator.index(item)
            if not -size <= index < size:
                fault(
                    "bounds", "index", f"index {index} on axis {axis} of {tensor!r}",
                    limit=f"must be below {size}", index=index, axis=axis,
                )  # fmt: skip
            index %= size
            offset += index * stride
            if axis == 0 and tensor.on_chip:
                shape.append(1)
                strides.append(stride)
            else:
                dropped.append(axis)
            continue
        offset += start * stride
        shape.append(max(0, -(-(stop - start) // step)))
        strides.append(stride * step)
    while tensor.on_chip and len(shape) < 2:
        shape.append(1)
        strides.append(1)
    if not shape:
        shape, strides = [1], [1]
    return tuple(shape), tuple(strides), offset


def _resolve_slice(tensor: NkiTensor, axis: int, item: slice, size: int) -> tuple[int, int, int]:
    step = 1 if item.step is None else operator.index(item.step)
    if step < 1:
        fault("bounds", "index", f"step={step} on axis {axis} of {tensor!r}", limit="steps must be 1 or more")
    start = 0 if item.start is None else operator.index(item.start)
    stop = size if item.stop is None else operator.index(item.stop)
    start = start + size if start < 0 else start
    stop = stop + size if stop < 0 else stop
    _check_range(tensor, axis, start, stop, size)
    return start, stop, step


def _check_range(tensor: NkiTensor, axis: int, start: int, stop: int, size: int) -> None:
    if start < 0 or stop > size or start > stop:
        fault(
            "bounds", "index", f"slice {start}:{stop} on axis {axis} of {tensor!r}",
            limit=f"must stay within 0:{size}", index=stop if stop > size else start, axis=axis,
        )  # fmt: skip
