"""How a subscript `t[...]` becomes shape, strides and offset, with the language's rules about partitions and bounds."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from nki_hf.sim.faults import fault
from nki_hf.sim.tensors.registers import VirtualRegister
from nki_hf.sim.tensors.scalars import NkiScalar

if TYPE_CHECKING:
    from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["DynamicSlice", "RunTimeSubscript", "ds", "is_register", "normalize_index"]


_ALL = slice(None)


class RunTimeSubscript(Exception):
    """A register stands in a subscript."""


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
    """Shape, strides and offset of `tensor[key]`; a subscript that is no index of the language is a fault."""
    try:
        return _normalized(tensor, key)
    except TypeError:
        fault(
            "argument",
            "index",
            f"[{_shown(key)}] of {tensor!r}",
            limit="subscripts are ints, slices of ints, nl.ds and ...",
            advice="Use expand_dim for new axes, and .ap(vector_offset=...) for a list of rows",
        )


def _normalized(tensor: NkiTensor, key: Any) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Shape, strides and offset of `tensor[key]`.

    Integers drop an axis in HBM; on chip an integer on axis 0 keeps it with size 1, and the result keeps two axes.
    An index or slice that leaves the tensor is a fault that names the offending index.
    """
    keys = key if type(key) is tuple else (key,)
    axes = len(tensor.shape)
    if len(keys) != axes:
        for position, item in enumerate(keys):
            if item is Ellipsis:
                keys = keys[:position] + (_ALL,) * (axes - len(keys) + 1) + keys[position + 1 :]
                break
        if len(keys) > axes:
            fault("bounds", "index", f"{len(keys)} subscripts on {tensor!r}", limit=f"it has {axes} axes")
        keys = keys + (_ALL,) * (axes - len(keys))

    on_chip = tensor.storage.on_chip
    shape: list[int] = []
    strides: list[int] = []
    offset, axis = tensor.offset, -1
    # this loop runs for every operand that a kernel slices, hence no calls on the common road
    for item, size, stride in zip(keys, tensor.shape, tensor.strides):  # noqa: B905  (as many of each, see above)
        axis += 1
        kind = type(item)
        if kind is int and 0 <= item < size:
            offset += item * stride
            if axis == 0 and on_chip:
                shape.append(1)
                strides.append(stride)
        elif kind is slice:
            start, stop, step = item.start, item.stop, item.step
            if type(start) is int and type(stop) is int and step is None and 0 <= start <= stop <= size:
                offset += start * stride
                shape.append(stop - start)
                strides.append(stride)
                continue
            if start is None and stop is None and step is None:
                shape.append(size)
                strides.append(stride)
                continue
            if type(start) is not int:
                start = 0 if start is None else operator.index(start)
            if type(stop) is not int:
                stop = size if stop is None else operator.index(stop)
            if start < 0:
                start += size
            if stop < 0:
                stop += size
            if step is not None and (step := operator.index(step)) != 1:
                if step < 1:
                    fault("bounds", "index", f"step={step} on axis {axis} of {tensor!r}", limit="steps must be 1 or more")
                shape.append(max(0, -(-(stop - start) // step)))
                strides.append(stride * step)
            else:
                shape.append(stop - start)
                strides.append(stride)
            if start < 0 or stop > size or start > stop:
                _leaves(tensor, axis, item, start, stop, size)
            offset += start * stride
        elif kind is DynamicSlice:
            if type(item.start) is not int and is_register(item.start):
                raise RunTimeSubscript
            start = operator.index(item.start)
            if type(item.size) is not int:
                item = DynamicSlice(start, operator.index(item.size))
            if start < 0 or start + item.size > size or item.size < 0:
                _leaves(tensor, axis, item, start, start + item.size, size)
            offset += start * stride
            shape.append(item.size)
            strides.append(stride)
        else:
            if item is Ellipsis:  # one of as many subscripts as axes: it stands for its own
                return _normalized(tensor, (*keys[:axis], _ALL, *keys[axis + 1 :]))
            if type(item) is not int and is_register(item):
                raise RunTimeSubscript
            index = operator.index(item)
            if not -size <= index < size:
                fault(
                    "bounds",
                    "index",
                    f"index {index} on axis {axis} of {tensor!r}",
                    limit=f"must be {-size} to {size - 1}",
                    index=index,
                    axis=axis,
                    size=size,
                )
            offset += (index % size) * stride
            if axis == 0 and on_chip:
                shape.append(1)
                strides.append(stride)
    while len(shape) < (2 if on_chip else 1):
        shape.append(1)
        strides.append(1)
    return tuple(shape), tuple(strides), offset


def is_register(value: Any) -> bool:
    """True for a register, whose value is read when an instruction executes; a scalar of 0.7 is no subscript."""
    return isinstance(value, VirtualRegister) and not isinstance(value, NkiScalar)


def _shown(item: Any) -> str:
    if isinstance(item, tuple):
        return ", ".join(_shown(part) for part in item)
    if isinstance(item, DynamicSlice):
        return f"nl.ds({item.start!r}, {item.size!r})"
    if isinstance(item, slice):
        text = ":".join("" if part is None else repr(part) for part in (item.start, item.stop))
        return text if item.step is None else f"{text}:{item.step!r}"
    return repr(item)


def _leaves(tensor: NkiTensor, axis: int, item: Any, start: int, stop: int, size: int) -> None:
    # the first index that is outside: the start, or else the tensor's end
    fault(
        "bounds",
        "index",
        f"slice {_shown(item)} on axis {axis} of {tensor!r}",
        limit=f"must stay within 0:{size}",
        index=start if start < 0 or start >= size or stop <= size else size,
        axis=axis,
        size=size,
    )
