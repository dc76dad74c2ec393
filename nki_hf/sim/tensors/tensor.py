"""NkiTensor: a typed, strided view of one storage, with the language's view operations. No view copies data."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np

from nki_hf.errors import KernelTypeFault
from nki_hf.sim.dtypes import DType, as_dtype
from nki_hf.sim.execution.current_machine import running_machine
from nki_hf.sim.execution.issued import ISSUED
from nki_hf.sim.execution.storage import Storage
from nki_hf.sim.faults import fault, kernel_position
from nki_hf.sim.stream.events import Region
from nki_hf.sim.tensors.axis_views import AxisViews
from nki_hf.sim.tensors.indexing import DynamicSlice, RunTimeSubscript, is_register, normalize_index
from nki_hf.sim.tensors.indirect import gather
from nki_hf.sim.tensors.offsets import ScalarOffset
from nki_hf.sim.tensors.part_views import PartViews
from nki_hf.sim.tensors.raw_views import RawViews
from nki_hf.sim.tensors.regions import REGIONS, MemoryRegion
from nki_hf.sim.tensors.strides import row_major
from nki_hf.sim.whole import whole

__all__ = ["NkiTensor"]


class NkiTensor(AxisViews, PartViews, RawViews):
    """A tensor in SBUF, PSUM or HBM: shape, dtype, element strides and offset over one storage.

    On chip, axis 0 is the partition axis; it is never removed, and no view has fewer than two axes.

    Attributes:
      shape: sizes.
      dtype: element type of this view.
      strides: element steps over the flattened storage.
      offset: first element, from the storage's start.
      name: the allocation's name.
      storage: the bytes (simulator's own).
      indirection: None, or how run-time indices move this view (see sim/tensors/offsets.py).
      compared: True for the result of a comparison, whose truth the kernel's Python may ask for.
      free_start: None, or of what `ap` made, and of views of it, the first element's place in its partition (on chip). Such a
        view may leave its storage, which is judged when an instruction uses it.
    """

    __slots__ = (
        "_array",
        "_region",
        "compared",
        "dtype",
        "free_start",
        "indirection",
        "name",
        "offset",
        "shape",
        "storage",
        "strides",
    )

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, storage: Storage | None, buffer: Any = MemoryRegion.sbuf, name: str = ""
    ) -> None:
        self.shape = tuple(shape)
        self.dtype: DType = as_dtype(dtype)
        self.storage: Storage = storage  # type: ignore[assignment]  # None only for signature placeholders
        self.strides = row_major(self.shape)
        self.offset = 0
        self.name = name or (storage.buffer.name if storage is not None else "")
        self.indirection: Any = None
        self.compared = False
        self.free_start: int | None = None
        self._array: np.ndarray[Any, Any] | None = None
        self._region: Region | None = None

    # ---- what it is -------------------------------------------------------------------------------------------------

    @property
    def buffer(self) -> Any:
        """The memory region: `nl.sbuf`, `nl.psum`, `nl.hbm`, `nl.private_hbm` or `nl.shared_hbm`."""
        return REGIONS[self.storage.buffer.space]

    @property
    def data(self) -> NkiTensor:
        """The tensor itself, so that code for grids (`nl.tiles`) takes tensors too."""
        return self

    @property
    def space(self) -> str:
        """The memory region's name."""
        return self.storage.buffer.space

    @property
    def on_chip(self) -> bool:
        """True in SBUF and PSUM."""
        return self.storage.on_chip

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.dtype.itemsize

    @property
    def partitions(self) -> int:
        """Size of the partition axis."""
        return self.shape[0]

    @property
    def free_size(self) -> int:
        """Elements per partition."""
        shape = self.shape
        return shape[1] if len(shape) == 2 else math.prod(shape[1:])

    def is_contiguous(self) -> bool:
        """True if the view is dense row-major (on chip: within each partition)."""
        start = 1 if self.on_chip else 0
        want = row_major(self.shape)
        return all(s == w or n == 1 for n, s, w in list(zip(self.shape, self.strides, want, strict=True))[start:])

    def get_pattern(self) -> list[list[int]]:
        """The access pattern `[[stride, count], ...]`, one pair per axis."""
        return [[stride, count] for stride, count in zip(self.strides, self.shape, strict=True)]

    def is_indirect(self) -> bool:
        """True if run-time indices move this view."""
        return self.indirection is not None

    def region(self) -> Region:
        """What events know of this access (cached; does not keep the bytes alive)."""
        if self._region is None:
            if self.free_start is not None:
                self.check_bounds()
            self._region = Region(
                self.storage.buffer, self.dtype, self.offset, self.shape, self.strides, self.indirection is not None
            )
        return self._region

    def array(self) -> np.ndarray[Any, Any]:
        """NumPy view of the bytes of a direct (not indirect) access; writing to it writes the tensor."""
        if self._array is None:
            if self.indirection is not None:
                fault(
                    "unsupported",
                    "index",
                    f"{self!r} is moved by a run-time index",
                    limit="this use takes no run-time index",
                    advice="Copy the view into a tile first",
                )
            stored = self.dtype.dtype
            self.storage.seen = True
            self._array = self._strided(stored, self.storage.data, stored.itemsize)
        return self._array

    def pattern(self) -> tuple[object, ...]:
        """Which elements of its storage a direct view stands for, as a key."""
        return self.offset, self.shape, self.strides, self.dtype.itemsize

    def written(self) -> np.ndarray[Any, Any] | None:
        """`bool` view of which elements were written; None if the storage does not track it or the dtype was changed."""
        storage = self.storage
        if not storage.tracked or self.dtype.itemsize != storage.buffer.dtype.itemsize:
            return None
        return self._strided(np.dtype(np.bool_), storage.written, 1)

    def written_by_others(self) -> np.ndarray[Any, Any] | None:
        """`bool` view of which elements of PSUM another engine than Tensor wrote last, or all of the tile's; None if none."""
        flags = self.storage.foreign
        if flags is None or self.dtype.itemsize != self.storage.buffer.dtype.itemsize or self.indirection is not None:
            return flags
        return self._strided(np.dtype(np.bool_), flags, 1)

    def __bool__(self) -> bool:
        """True: a tensor exists, and its values do not while a kernel is built (`if bias:` asks whether one was passed).

        Only what a comparison or `nl.all` gave has a truth, that of all its elements, so that `assert nl.equal(a, b)` works;
        the launch is not replayable then.
        """
        if not self.compared:
            return True
        machine = running_machine()
        if machine is not None:
            file, line = kernel_position()
            machine.run.not_replayable(f"the kernel's Python reads a tensor's truth value ({file}:{line})")
        return bool(np.all(gather(self)() != 0))

    def __len__(self) -> NoReturn:
        fault(
            "unsupported",
            "tensor",
            f"len() of {self!r}",
            limit="a tensor is no Python sequence",
            advice="Ask for t.shape[0]",
            raised=KernelTypeFault,
        )

    def __contains__(self, item: object) -> NoReturn:
        fault(
            "unsupported",
            "tensor",
            f"`in` asks {self!r} for a value",
            limit="values do not exist while a kernel is built",
            advice="Compare with nl.equal, which makes a tile",
            raised=KernelTypeFault,
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        """Copy a tensor, or fill with a number, by the instruction that reaches both memories."""
        ISSUED.assign(self[key], value)

    __iter__ = None  # a tensor has no Python sequence of rows: loop over range(t.shape[0])

    def __str__(self) -> str:
        values = self.storage is not None and self.storage.data is not None
        return f"{self!r}\n{gather(self)()}" if values else repr(self)

    def __repr__(self) -> str:
        space = self.storage.buffer.space if self.storage is not None else "unbound"
        return f"{self.name or 'tensor'}{list(self.shape)} {self.dtype} {space}"

    # ---- views ------------------------------------------------------------------------------------------------------

    def _view(
        self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: DType | None = None, indirection: Any = None
    ) -> NkiTensor:
        view = object.__new__(type(self))
        view.shape, view.strides, view.offset = shape, strides, offset
        view.dtype = self.dtype if dtype is None else dtype
        view.storage, view.name = self.storage, self.name
        view.indirection = self.indirection if indirection is None else indirection
        view.compared, view.free_start = self.compared, self.free_start
        view._array = view._region = None
        return view

    def __getitem__(self, key: Any) -> NkiTensor:
        try:
            shape, strides, offset = normalize_index(self, key)
        except RunTimeSubscript:
            return self._at_register(key)
        moved = self.indirection
        if moved is None and self.free_start is None:
            return self._view(shape, strides, offset)
        if moved is not None and moved.dim >= 0 and shape[moved.dim : moved.dim + 1] != self.shape[moved.dim : moved.dim + 1]:
            self._not_indirect_along("index", moved.dim)
        view = self._view(shape, strides, offset)
        if self.free_start is not None:
            first = key[0] if type(key) is tuple else key
            rows = 0 if first is Ellipsis else normalize_index(self, first)[2] - self.offset
            view.free_start = self.free_start + offset - self.offset - rows
        return view

    def _at_register(self, key: Any) -> NkiTensor:
        """The view of a subscript with a register in it, which moves the view when an instruction executes."""
        self._direct("index")
        keys = list(key) if type(key) is tuple else [key]
        if any(item is Ellipsis for item in keys):
            at = next(position for position, item in enumerate(keys) if item is Ellipsis)
            keys[at : at + 1] = [slice(None)] * (self.ndim - len(keys) + 1)
        registers = [axis for axis, item in enumerate(keys) if is_register(getattr(item, "start", item))]
        if len(registers) > 1:
            self._wrong(
                "index", f"{len(registers)} registers in a subscript of {self!r}", "a view takes one run-time index only"
            )
        axis = registers[0]
        if axis == 0 and self.on_chip:
            self._wrong("index", "a register on axis 0", "the partition axis takes no run-time index on chip")
        item = keys[axis]
        width = whole("index", "size of nl.ds", item.size) if isinstance(item, DynamicSlice) else 1
        if not 1 <= width <= self.shape[axis]:
            self._wrong("index", f"nl.ds of {width} on axis {axis} of {self!r}", f"1 to {self.shape[axis]}", kind="bounds")
        register = item.start if isinstance(item, DynamicSlice) else item
        keys[axis] = DynamicSlice(0, width) if isinstance(item, DynamicSlice) else 0
        view = self[tuple(keys)]
        view.indirection = ScalarOffset(
            self._scalar_index(register, "index"), self.strides[axis], self.shape[axis] - width + 1, -1
        )
        return view

    def _strided(self, dtype: np.dtype[Any], data: np.ndarray[Any, Any] | None, itemsize: int) -> np.ndarray[Any, Any]:
        if data is None:
            fault("unsupported", "values", f"{self!r} has no values", limit="this run has shapes only (values=False)")
        if self.free_start is not None:
            self.check_bounds()
        return np.ndarray(
            self.shape, dtype, buffer=data, offset=self.offset * itemsize, strides=[s * itemsize for s in self.strides]
        )
