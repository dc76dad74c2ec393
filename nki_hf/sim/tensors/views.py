"""The view operations of NkiTensor. Each returns a new tensor over the same storage; nothing is copied.

The constraints are those of the public stub (nki/api/nki/language/__init__.py: NkiTensor); each broken one is a fault.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn

from nki_hf.sim.dtypes import DType, as_dtype
from nki_hf.sim.execution.machine import running_machine
from nki_hf.sim.faults import fault, warn_unsure
from nki_hf.sim.objects import NKIObject
from nki_hf.sim.tensors.indirect import LARGEST_GROUP, ScalarOffset, TensorIndirection, VectorOffset, check_offsets
from nki_hf.sim.tensors.no_operators import NoOperators
from nki_hf.sim.tensors.registers import RunTimeValue
from nki_hf.sim.tensors.strides import permutation, reshaped_strides, row_major, split_sizes
from nki_hf.sim.whole import whole, whole_pairs, whole_sizes

if TYPE_CHECKING:
    from nki_hf.sim.execution.storage import Storage
    from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["Views"]


class Views(NoOperators, NKIObject):
    """View methods; `NkiTensor` supplies shape, strides, offset, dtype, storage and indirection."""

    __slots__ = ()

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: DType
    storage: Storage
    indirection: Any
    free_start: int | None

    if TYPE_CHECKING:

        def __getitem__(self, key: Any) -> NkiTensor: ...

        def _view(
            self,
            shape: tuple[int, ...],
            strides: tuple[int, ...],
            offset: int,
            dtype: DType | None = None,
            indirection: Any = None,
        ) -> NkiTensor: ...

    # ---- order and number of axes -----------------------------------------------------------------------------------

    def permute(self, dims: tuple[int, ...]) -> NkiTensor:
        """Axes in the order `dims`; on chip and after `vector_select` axis 0 stays first."""
        order = whole_sizes("permute", "dims", tuple(dims))
        if sorted(order) != list(range(len(self.shape))):
            self._wrong("permute", f"dims={order}", f"must be a permutation of 0 to {len(self.shape) - 1}")
        if order[0] != 0:
            self._fixed_first("permute", f"dims={order}")
        return self._view(tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order), self.offset)

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """Axis `dim` of size 1 repeated `size` times; not the partition axis."""
        self._check_dim("broadcast", dim)
        size = whole("broadcast", "size", size)
        if size < 1:
            self._wrong("broadcast", f"size={size}", "must be 1 or more")
        if self.shape[dim] != 1:
            self._wrong("broadcast", f"axis {dim} has size {self.shape[dim]}", "only an axis of size 1 can be broadcast")
        if dim == 0 and self._on_chip:
            self._wrong("broadcast", "dim=0", "the partition axis cannot be broadcast")
        return self._view(_replaced(self.shape, dim, size), _replaced(self.strides, dim, 0), self.offset)

    def expand_dim(self, dim: int) -> NkiTensor:
        """A new axis of size 1 at position `dim`."""
        if not 0 <= dim <= len(self.shape):
            self._wrong("expand_dim", f"dim={dim}", f"must be 0 to {len(self.shape)}")
        if dim == 0:
            self._fixed_first("expand_dim", "dim=0")
        step = self.shape[dim] * self.strides[dim] if dim < len(self.shape) else 1
        return self._view(
            (*self.shape[:dim], 1, *self.shape[dim:]), (*self.strides[:dim], step, *self.strides[dim:]), self.offset
        )

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Without axis `dim`, which has size 1."""
        self._check_dim("squeeze_dim", dim)
        if self.shape[dim] != 1:
            self._wrong("squeeze_dim", f"axis {dim} has size {self.shape[dim]}", "only an axis of size 1 can be removed")
        if dim == 0:
            self._fixed_first("squeeze_dim", "dim=0")
        return self._view(_replaced(self.shape, dim), _replaced(self.strides, dim), self.offset)

    def reshape_dim(self, dim: int, shape: tuple[int, ...]) -> NkiTensor:
        """Axis `dim` split into axes of sizes `shape`, one of which may be -1."""
        self._check_dim("reshape_dim", dim)
        sizes = split_sizes(self.shape[dim], whole_sizes("reshape_dim", "shape", shape))
        if sizes is None:
            self._wrong("reshape_dim", f"shape={tuple(shape)}", f"its product must be {self.shape[dim]}")
        if dim == 0 and sizes != self.shape[:1]:
            self._fixed_first("reshape_dim", f"dim=0, shape={sizes}")
        steps = tuple(step * self.strides[dim] for step in row_major(sizes))
        return self._view(
            self.shape[:dim] + sizes + self.shape[dim + 1 :], self.strides[:dim] + steps + self.strides[dim + 1 :], self.offset
        )

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Axes `start_dim` to `end_dim` (inclusive) merged; they must lie contiguously in memory."""
        if not 0 <= start_dim <= end_dim < len(self.shape):
            self._wrong("flatten_dims", f"start_dim={start_dim}, end_dim={end_dim}", f"0 <= start <= end < {len(self.shape)}")
        if start_dim == 0 and end_dim > 0:
            self._fixed_first("flatten_dims", "start_dim=0")
        sizes, steps = self.shape[start_dim : end_dim + 1], self.strides[start_dim : end_dim + 1]
        merged = reshaped_strides(sizes, steps, (math.prod(sizes),))
        if merged is None:
            self._wrong("flatten_dims", f"axes {start_dim} to {end_dim} of {self!r}", "they must be contiguous in memory")
        return self._view(
            (*self.shape[:start_dim], math.prod(sizes), *self.shape[end_dim + 1 :]),
            self.strides[:start_dim] + merged + self.strides[end_dim + 1 :],
            self.offset,
        )

    def reshape(self, shape: tuple[int, ...]) -> NkiTensor:
        """The same elements as `shape` (one size may be -1); on chip and after `vector_select` axis 0 keeps its size."""
        total = math.prod(self.shape)
        sizes = split_sizes(total, whole_sizes("reshape", "shape", shape))
        if sizes is None:
            self._wrong("reshape", f"shape={tuple(shape)}", f"its product must be {total:,}")
        if sizes == self.shape:
            return self._view(self.shape, self.strides, self.offset)
        if sizes[:1] != self.shape[:1]:
            self._fixed_first("reshape", f"shape={sizes}")
        if self._on_chip or isinstance(self.indirection, VectorOffset):
            steps = reshaped_strides(self.shape[1:], self.strides[1:], sizes[1:])
            merged = None if steps is None else self.strides[:1] + steps
        else:
            merged = reshaped_strides(self.shape, self.strides, sizes)
        if merged is None:
            self._wrong(
                "reshape",
                f"shape={sizes} from strides {self.strides}",
                "the memory layout must allow it",
                "Copy the tensor first",
            )
        return self._view(sizes, merged, self.offset)

    def rearrange(
        self, src_pattern: tuple[Any, ...], dst_pattern: tuple[Any, ...], fixed_sizes: dict[str, int] | None = None
    ) -> NkiTensor:
        """Axes split, reordered and merged by name, e.g. `rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4})`."""
        if len(src_pattern) != len(self.shape):
            self._wrong("rearrange", f"src_pattern={src_pattern}", f"the tensor has {len(self.shape)} axes")
        split = self._view(self.shape, self.strides, self.offset)
        names: list[str] = []
        for item in src_pattern:
            parts = (item,) if isinstance(item, str) else tuple(item)
            if len(parts) > 1:
                split = split.reshape_dim(len(names), tuple((fixed_sizes or {}).get(name, -1) for name in parts))
            names.extend(parts)
        wanted = [name for item in dst_pattern for name in ((item,) if isinstance(item, str) else item)]
        order = permutation(names, wanted)
        if order is None:
            self._wrong("rearrange", f"dst_pattern={dst_pattern}", f"must name each of {', '.join(names)} once")
        result = split.permute(order)
        for axis, item in enumerate(dst_pattern):
            if not isinstance(item, str) and len(item) > 1:
                result = result.flatten_dims(axis, axis + len(item) - 1)
        return result

    # ---- parts ------------------------------------------------------------------------------------------------------

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
            _replaced(self.shape, dim, -(-(end - start) // step)),
            _replaced(self.strides, dim, self.strides[dim] * step),
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
        shape, strides = _replaced(self.shape, dim), _replaced(self.strides, dim)
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
        _check_index_dtype("vector_select", "vector_offset", vector_offset)
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
        _check_index_dtype("indirect", "index", index)
        count = math.prod(index.shape) if num_elem is None else whole("indirect", "num_elem", num_elem)
        if count < 1:
            self._wrong("indirect", f"num_elem={count}", "must be 1 or more")
        free = reshaped_strides(self.shape[1:], self.strides[1:], (math.prod(self.shape[1:]),))
        if free is None:
            self._wrong("indirect", f"strides {self.strides}", "the free axes must be contiguous in memory")
        check_offsets((self.shape[0], count), index, LARGEST_GROUP)
        moved = TensorIndirection(index, free[0], math.prod(self.shape[1:]))
        return self._view((self.shape[0], count), (self.strides[0], free[0]), self.offset, indirection=moved)

    # ---- raw access -------------------------------------------------------------------------------------------------

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
        self._check_pattern(pairs, element)
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

    # ---- private ----------------------------------------------------------------------------------------------------

    @property
    def _on_chip(self) -> bool:
        return self.storage.on_chip

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
        _check_index_dtype("ap", "vector_offset", vector)
        return VectorOffset(vector, self._rescaled(self.strides[0], element, "ap"), None)

    def _scalar_index(self, index: Any, what: str) -> Any:
        tile = hasattr(index, "storage")
        if not (tile and index.size == 1) and not isinstance(index, RunTimeValue):
            fault("argument", what, f"index {index!r}", limit="must be an int, a one-element tensor or a register")
        if tile and index.dtype.name != "int64":
            _check_index_dtype(what, "index", index)
        if self._on_chip and index.dtype.itemsize > 4:
            fault(
                "dtype",
                what,
                f"the run-time index is {index.dtype} and {self!r} on chip",
                limit="on SBUF and PSUM it must be 32-bit",
                advice="Load it from an int32 tile",
            )
        return index

    def _check_pattern(self, pairs: list[tuple[int, int]], element: DType) -> None:
        if any(count < 1 for _, count in pairs):
            self._wrong("ap", f"pattern={[list(pair) for pair in pairs]}", "every count must be 1 or more")
        buffer = self.storage.buffer
        row = buffer.bytes_per_partition // element.itemsize
        if buffer.on_chip:
            step, count = pairs[0]
            if step != row and count > 1:
                text = f"the partition step is {step} in pattern={[list(pair) for pair in pairs]}"
                limit = f"it must be the {row} elements per partition of {buffer.name}"
                self._wrong("ap", text, limit)

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

    def _check_dim(self, what: str, dim: int) -> None:
        if type(dim) is not int:
            whole(what, "dim", dim)
        if not 0 <= dim < len(self.shape):
            self._wrong(what, f"dim={dim} of {self!r}", f"must be 0 to {len(self.shape) - 1}")

    def _fixed_first(self, what: str, value: str) -> None:
        if self._on_chip:
            self._wrong(what, f"{value} of {self!r}", "the partition axis must stay as it is on chip")
        if isinstance(self.indirection, VectorOffset):
            self._wrong(what, f"{value} of {self!r}", "axis 0 must stay as it is after vector_select")

    def _direct(self, what: str) -> None:
        if self.indirection is not None:
            self._wrong(what, f"{self!r} is indirect", "a view takes one run-time index only")

    def _not_indirect_along(self, what: str, dim: int) -> None:
        if self.indirection is not None and self.indirection.dim == dim:
            self._wrong(what, f"axis {dim} of {self!r} takes part in the indirection", "it can be neither sliced nor selected")

    def _wrong(self, what: str, value: str, limit: str, advice: str = "", *, kind: str = "shape", **details: Any) -> NoReturn:
        fault(kind, what, value, limit=limit, advice=advice, operands=(repr(self),), **details)


def _replaced(values: tuple[int, ...], position: int, *items: int) -> tuple[int, ...]:
    return values[:position] + items + values[position + 1 :]


def _extent(start: int, pairs: list[tuple[int, int]]) -> tuple[int, int]:
    low = high = start
    for step, count in pairs:
        reach = step * (count - 1)
        low, high = (low + reach, high) if reach < 0 else (low, high + reach)
    return low, high


_INDEX_DTYPES = ("int32", "uint32")


def _check_index_dtype(what: str, name: str, index: Any) -> None:
    """Floats are no indices; of other integers than the documents show, kernels written elsewhere are warned."""
    if not hasattr(index, "storage"):
        fault("argument", what, f"{name}={index!r}", limit="must be a tile of indices in SBUF")
    if index.dtype.name in _INDEX_DTYPES or (index.dtype.is_integer and what == "indirect"):
        return
    machine = running_machine()
    text, limit = f"{name} {index!r} is {index.dtype}", "run-time indices are int32 or uint32"
    if index.dtype.is_integer and machine is not None and machine.options.third_party:
        warn_unsure("dtype", what, text, limit=limit)
    else:
        fault("dtype", what, text, limit=limit, advice="Copy them into a tile of nl.int32 first")
