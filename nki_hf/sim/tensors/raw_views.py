"""Raw views: an access pattern over the flattened storage (`ap`), and bytes read as another type (`view`).

The constraints are those of the public stub (nki/api/nki/language/__init__.py: NkiTensor); each broken one is a fault.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nki_hf.sim.dtypes import DType, as_dtype
from nki_hf.sim.execution.current_machine import running_machine
from nki_hf.sim.faults import fault, warn_unsure
from nki_hf.sim.tensors.offsets import ScalarOffset, VectorOffset
from nki_hf.sim.tensors.viewed import Viewed, check_index_dtype
from nki_hf.sim.whole import whole, whole_pairs

if TYPE_CHECKING:
    from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["RawViews"]


class RawViews(Viewed):
    """Methods of `NkiTensor` that leave its shape aside."""

    __slots__ = ()

    def ap(
        self,
        pattern: Any,
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> NkiTensor:
        """An explicit access pattern over the flattened storage; the view's own shape and strides do not matter.

        Args:
          pattern: `[[step, count], ...]` in elements of `dtype`; on chip the first pair runs over partitions and its step
            is the storage's elements per partition.
          offset: elements (of `dtype`) from the view's own start; None is 0. The access-pattern guide counts from the tensor's
            start instead: where the two differ there is a warning.
          scalar_offset: one-element tensor or register: moves the access along axis `indirect_dim` of this view.
          vector_offset: tensor of indices of axis 0, one for each row of the pattern's first pair, whose step is then
            ignored; a `(P, N)` tensor is read column by column.
          indirect_dim: axis of this view whose stride scales the run-time offset. The offset counts steps of this view as it
            is before `dtype`: with `dtype` a step still covers the same bytes (public sources leave the units open).
          dtype: element type to read the bytes as.
        """
        element = self.dtype if dtype is None else self._reinterpreted(dtype, "ap")
        pairs = list(whole_pairs("ap", pattern))
        if offset is not None and self.offset:
            warn_unsure(
                "argument",
                "ap",
                f"offset={offset} of {self!r}, a view that starts at element {self.offset:,} of its tensor",
                limit="it counts from the view's start here (docstring); the access-pattern guide counts from the tensor's",
            )
        start = self._rescaled(self.offset, element, "ap") + (0 if offset is None else whole("ap", "offset", offset))
        shape, strides = tuple(count for _, count in pairs), tuple(step for step, _ in pairs)
        moved = None
        if scalar_offset is not None or vector_offset is not None:
            moved = self._dynamic(scalar_offset, vector_offset, indirect_dim, element)
        strides = (self._partition_step(pairs, element), *strides[1:])
        view = self._view(shape, strides, start, element, moved)
        row = self.storage.buffer.bytes_per_partition // element.itemsize
        view.free_start = start % row if self._on_chip and row else 0
        if moved is None:
            view.indirection = None
        return view

    def view(self, dtype: Any) -> NkiTensor:
        """The bytes read as `dtype`; the last axis scales by the ratio of the sizes."""
        element = self._reinterpreted(dtype, "view")
        if self.indirection is not None:
            self._wrong("view", f"{self!r} is indirect", "run-time indices must come after the reinterpretation")
        old, new = self.dtype.itemsize, element.itemsize
        if old == new:
            return self._view(self.shape, self.strides, self.offset, element)
        if self.strides[-1] != 1 and self.shape[-1] != 1:
            self._wrong("view", f"the last axis has stride {self.strides[-1]}", "it must be contiguous to change the item size")
        if (self.shape[-1] * old) % new:
            self._wrong(
                "view", f"{self.shape[-1]} elements of {self.dtype} as {element}", f"a multiple of {new // old} is needed"
            )
        strides = (*(self._rescaled(step, element, "view") for step in self.strides[:-1]), 1)
        shape = (*self.shape[:-1], self.shape[-1] * old // new)
        view = self._view(shape, strides, self._rescaled(self.offset, element, "view"), element)
        if self.free_start is not None:
            view.free_start = self._rescaled(self.free_start, element, "view")
        return view

    reinterpret_cast = view

    def check_bounds(self) -> None:
        """A fault if the view leaves its storage (or on chip a partition). Run-time indices decide where they move it.

        Called when an instruction uses a view that `ap` made, or a part of one: kernels build views that are too long and
        use only parts of them.
        """
        if self.indirection is not None or 0 in self.shape:
            return
        buffer, pairs = self.storage.buffer, list(zip(self.strides, self.shape, strict=True))
        row = buffer.bytes_per_partition // self.dtype.itemsize
        low, high = _extent(self.offset, pairs)
        total = buffer.elements * buffer.dtype.itemsize // self.dtype.itemsize
        if low < 0 or high >= total:
            self._wrong(
                "ap",
                f"elements {low:,} to {high:,} of {buffer.name}",
                f"it has {total:,}",
                kind="bounds",
                index=low if low < 0 or low >= total else total,
                size=total,
            )
        if buffer.on_chip:
            low, high = _extent(self.free_start or 0, pairs[1:])
            if low < 0 or high >= row:
                self._wrong(
                    "ap",
                    f"free elements {low:,} to {high:,} of {buffer.name}",
                    f"a partition has {row:,}",
                    kind="bounds",
                    index=low if low < 0 or low >= row else row,
                    size=row,
                )

    # ---- private ----------------------------------------------------------------------------------------------------

    def _dynamic(self, scalar: Any, vector: Any, dim: int, element: DType) -> Any:
        if scalar is not None and vector is not None:
            self._wrong("ap", "scalar_offset and vector_offset are both given", "at most one of them")
        self._check_dim("ap", dim)
        if scalar is not None:
            if dim == 0 and self._on_chip:
                self._wrong("ap", "scalar_offset with indirect_dim=0", "the partition axis takes no run-time offset on chip")
            return ScalarOffset(self._scalar_index(scalar, "ap"), self._rescaled(self.strides[dim], element, "ap"), None, -1)
        if dim != 0 or self._on_chip:
            self._wrong("ap", f"vector_offset with indirect_dim={dim} on {self!r}", "only axis 0 of an HBM tensor")
        check_index_dtype("ap", "vector_offset", vector)
        return VectorOffset(vector, self._rescaled(self.strides[0], element, "ap"), None)

    def _partition_step(self, pairs: list[tuple[int, int]], element: DType) -> int:
        """The step of the pattern's first pair, in the storage's elements per partition on chip.

        The guide asks for "the number of elements in the free dimension of the tensor", which of a part of a tile can be read
        as the part's own: kernels written elsewhere are warned of that reading.
        """
        if not pairs or any(count < 1 for _, count in pairs):
            limit = "it has one pair or more, and every count is 1 or more"
            self._wrong("ap", f"pattern={[list(pair) for pair in pairs]}", limit)
        buffer = self.storage.buffer
        row = buffer.bytes_per_partition // element.itemsize
        if buffer.on_chip:
            step, count = pairs[0]
            if step != row and count > 1:
                text = f"the partition step is {step} in pattern={[list(pair) for pair in pairs]}"
                limit = f"it must be the {row} elements per partition of {buffer.name}"
                machine = running_machine()
                own = math.prod(self.shape[1:]) * self.dtype.itemsize // element.itemsize
                if step != own or machine is None or not machine.options.third_party:
                    self._wrong("ap", text, limit)
                warn_unsure(
                    "argument", "ap", f"{text}, the free size of {self!r} itself", limit=f"{limit}; it is taken so here"
                )
                return row
        return pairs[0][0]

    def _reinterpreted(self, dtype: Any, what: str) -> DType:
        element = as_dtype(dtype)
        machine = running_machine()
        if machine is not None and not machine.options.precise and element != self.dtype:
            wide = machine.element(element)
            if wide.widened or self.dtype.widened:
                fault(
                    "unsupported",
                    what,
                    f"{self.dtype} is read as {element}",
                    limit="low-precision tiles have no bits of their own with NKI_PRECISE_FP=0",
                )
            return wide
        return self.dtype if element == self.dtype else element

    def _rescaled(self, elements: int, element: DType, what: str) -> int:
        total = elements * self.dtype.itemsize
        if total % element.itemsize:
            self._wrong(what, f"{elements} elements of {self.dtype}", f"must be a whole number of {element} elements")
        return total // element.itemsize


def _extent(start: int, pairs: list[tuple[int, int]]) -> tuple[int, int]:
    low = high = start
    for step, count in pairs:
        reach = step * (count - 1)
        low, high = (low + reach, high) if reach < 0 else (low, high + reach)
    return low, high
