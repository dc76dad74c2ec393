"""Origins: where the bits of a tile came from, if nothing but moves made it.

A transpose and the copy that takes it from PSUM to SBUF change no bit. A product that reads such a tile reads what it was made
of instead, through a view: the values are the same, and in a replay the moves need not be executed (sim/run/needed.py).
A tile's origin is known as long as neither the tile nor its source is written again. Inside loops of run time nothing is
noted: a source may be written in a later turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nki_hf.sim.execution.current_machine import running_machine
from nki_hf.sim.execution.storage import Storage
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["Origin", "forget_origins", "note_copy", "note_transpose", "origin_of"]

Array = np.ndarray[Any, Any]
Box = tuple[int, int, int, int]
_MOST = 64
"""Origins that a tile remembers: a PSUM bank's transposes are 8, a chunk of keys has 16."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A part of a tile and what it is a view of.

    Attributes:
      box: first and last partition, first and last element of each, ends excluded.
      values: NumPy view `[partitions, elements]` of the source's memory.
      source: whose memory, kept alive; `version`: how often it had been written.
    """

    box: Box
    values: Array
    source: Storage
    version: int

    @property
    def holds(self) -> bool:
        """The source has not been written since."""
        return self.source.version == self.version


def forget_origins(tensor: NkiTensor) -> None:
    """Note that an instruction writes these elements."""
    storage = tensor.storage
    storage.version += 1
    if storage.origins:
        box = _box(tensor)
        storage.origins = [] if box is None else [item for item in storage.origins if not _meet(item.box, box)]


def note_transpose(dst: NkiTensor, data: NkiTensor) -> None:
    """`dst` has just become the transpose of `data`, bit by bit."""
    _note(dst, data, transposed=True)


def note_copy(dst: NkiTensor, src: NkiTensor) -> None:
    """`dst` has just become a copy of `src`, bit by bit."""
    _note(dst, src, transposed=False)


def origin_of(tensor: NkiTensor) -> tuple[Array, Storage] | None:
    """A view `[partitions, elements]` with the tensor's values, and whose memory it is; None if that is its own."""
    machine = running_machine()
    if not tensor.storage.origins or machine is None or machine.loops:
        return None
    box = _box(tensor)
    found = None if box is None else _inside(tensor.storage, box)
    return None if found is None else (found.values, found.source)


def _note(dst: NkiTensor, src: NkiTensor, transposed: bool) -> None:
    machine = running_machine()
    if machine is None or machine.loops or not (dst.on_chip and src.on_chip) or dst.dtype != src.dtype:
        return
    if dst.dtype.name == "tfloat32" or dst.storage is src.storage:
        return
    to, given = _box(dst), _box(src)
    if to is None or given is None:
        return
    if transposed:
        values = _values(src)
        earlier = _inside(src.storage, given)
        made = Origin(to, values.T, src.storage, src.storage.version) if earlier is None else _moved(earlier, to, turned=True)
        dst.storage.origins.append(made)
    elif src.shape[0] == dst.shape[0]:
        down, right = to[0] - given[0], to[2] - given[2]
        for item in src.storage.origins:
            if item.holds and _within(item.box, given):
                box = (item.box[0] + down, item.box[1] + down, item.box[2] + right, item.box[3] + right)
                dst.storage.origins.append(_moved(item, box, turned=False))
    del dst.storage.origins[:-_MOST]


def _moved(item: Origin, box: Box, *, turned: bool) -> Origin:
    return Origin(box, item.values.T if turned else item.values, item.source, item.version)


def _inside(storage: Storage, box: Box) -> Origin | None:
    for item in storage.origins:
        if item.holds and _within(box, item.box):
            rows = slice(box[0] - item.box[0], box[1] - item.box[0])
            columns = slice(box[2] - item.box[2], box[3] - item.box[2])
            return Origin(box, item.values[rows, columns], item.source, item.version)
    return None


def _box(tensor: NkiTensor) -> Box | None:
    """Its partitions and elements if those are one run in each partition; None otherwise."""
    buffer = tensor.storage.buffer
    if tensor.indirection is not None or not tensor.on_chip or tensor.dtype != buffer.dtype:
        return None
    row, run = buffer.elements // buffer.shape[0], 1
    for size, step in zip(reversed(tensor.shape[1:]), reversed(tensor.strides[1:]), strict=True):
        if size != 1 and step != run:
            return None
        run *= size
    if tensor.shape[0] != 1 and tensor.strides[0] != row:
        return None
    partition, first = divmod(tensor.offset, row)
    return None if first + run > row else (partition, partition + tensor.shape[0], first, first + run)


def _values(tensor: NkiTensor) -> Array:
    array = tensor.array()
    return array.reshape(tensor.partitions, tensor.free_size)


def _within(inner: Box, outer: Box) -> bool:
    return inner[0] >= outer[0] and inner[1] <= outer[1] and inner[2] >= outer[2] and inner[3] <= outer[3]


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]
