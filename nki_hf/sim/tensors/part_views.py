"""Views of some of a tensor's elements: slices, single elements, and rows or columns that run-time indices choose.

The constraints are those of the public stub (nki/api/nki/language/__init__.py: NkiTensor); each broken one is a fault.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nki_hf.sim.execution.current_machine import running_machine
from nki_hf.sim.faults import fault
from nki_hf.sim.tensors.offsets import GROUPS, ScalarOffset, TensorIndirection, VectorOffset, check_offsets
from nki_hf.sim.tensors.registers import RunTimeValue
from nki_hf.sim.tensors.strides import reshaped_strides
from nki_hf.sim.tensors.viewed import Viewed, check_index_dtype, replaced
from nki_hf.sim.whole import whole

if TYPE_CHECKING:
    from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["PartViews"]


class PartViews(Viewed):
    """Methods of `NkiTensor` that take a part of it."""

    __slots__ = ()

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """Elements `start` to `end` (exclusive) of axis `dim`, every `step`-th."""
        self._check_dim("slice", dim)
        start, end = whole("slice", "start", start), whole("slice", "end", end)
        step = whole("slice", "step", step)
        if not 0 <= start < end <= self.shape[dim] or step < 1:
            self._wrong(
                "slice",
                f"start={start}, end={end}, step={step} on axis {dim} of {self!r}",
                f"0 <= start < end <= {self.shape[dim]} and step >= 1",
                kind="bounds",
                index=start if start < 0 or start >= self.shape[dim] or end <= self.shape[dim] else self.shape[dim],
                axis=dim,
                size=self.shape[dim],
            )
        self._not_indirect_along("slice", dim)
        view = self._view(
            replaced(self.shape, dim, -(-(end - start) // step)),
            replaced(self.strides, dim, self.strides[dim] * step),
            self.offset + start * self.strides[dim],
        )
        if self.free_start is not None and dim > 0:
            view.free_start = self.free_start + start * self.strides[dim]
        return view

    def select(self, dim: int, index: Any) -> NkiTensor:
        """One element of axis `dim`, which is removed; `index` is an int, or a tensor or register of one value at run time."""
        self._check_dim("select", dim)
        if not isinstance(index, RunTimeValue) and not hasattr(index, "storage"):
            index = whole("select", "index", index)
            if not 0 <= index < self.shape[dim]:
                self._wrong(
                    "select",
                    f"index={index} on axis {dim} of {self!r}",
                    f"0 to {self.shape[dim] - 1}",
                    kind="bounds",
                    index=index,
                    axis=dim,
                    size=self.shape[dim],
                )
            self._not_indirect_along("select", dim)
            return self[(slice(None),) * dim + (index,)]
        self._direct("select")
        if dim == 0 and self._on_chip:
            self._wrong("select", "a run-time index on axis 0", "the partition axis takes none on chip")
        moved = ScalarOffset(self._scalar_index(index, "select"), self.strides[dim], self.shape[dim], -1)
        shape, strides = replaced(self.shape, dim), replaced(self.strides, dim)
        if not shape:
            shape, strides = (1,), (1,)
        return self._view(shape, strides, self.offset, indirection=moved)

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Row `vector_offset[p]` of axis 0 for each partition `p`; HBM tensors only, `vector_offset` is `(P, 1)` in SBUF."""
        self._direct("vector_select")
        if dim != 0:
            self._wrong("vector_select", f"dim={dim}", "only axis 0 can be selected by a vector")
        if self._on_chip:
            self._wrong("vector_select", f"{self!r} is on chip", "only HBM tensors can be selected by a vector")
        if len(vector_offset.shape) != 2 or vector_offset.shape[1] != 1 or vector_offset.space != "sbuf":
            self._wrong("vector_select", f"vector_offset {vector_offset!r}", "must be a (partitions, 1) tile in SBUF")
        check_index_dtype("vector_select", "vector_offset", vector_offset)
        moved = VectorOffset(vector_offset, self.strides[0], self.shape[0])
        return self._view((vector_offset.shape[0], *self.shape[1:]), self.strides, self.offset, indirection=moved)

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        """Columns chosen by `index` (snake order in each partition group) as `(P, num_elem)`; NeuronCore-v4 and later."""
        self._direct("indirect")
        machine = running_machine()
        if machine is not None and machine.chip.generation < 4:
            fault("generation", "indirect", f"the chip is {machine.chip.name}", limit="NeuronCore-v4 (trn3) and later only")
        if not self._on_chip or index.space != "sbuf" or index.shape[0] != self.shape[0]:
            self._wrong("indirect", f"{self!r} with index {index!r}", "an on-chip tile and as many partitions of index in SBUF")
        check_index_dtype("indirect", "index", index)
        count = math.prod(index.shape) if num_elem is None else whole("indirect", "num_elem", num_elem)
        if count < 1:
            self._wrong("indirect", f"num_elem={count}", "must be 1 or more")
        free = reshaped_strides(self.shape[1:], self.strides[1:], (math.prod(self.shape[1:]),))
        if free is None:
            self._wrong("indirect", f"strides {self.strides}", "the free axes must be contiguous in memory")
        check_offsets((self.shape[0], count), index, *GROUPS)
        moved = TensorIndirection(index, free[0], math.prod(self.shape[1:]))
        return self._view((self.shape[0], count), (self.strides[0], free[0]), self.offset, indirection=moved)
