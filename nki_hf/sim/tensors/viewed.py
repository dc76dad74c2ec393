"""What the views of a tensor share: its shape, element strides and offset over a storage, and what is said of a wrong view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from nki_hf.sim.dtypes import DType
from nki_hf.sim.execution.current_machine import running_machine
from nki_hf.sim.faults import fault, warn_unsure
from nki_hf.sim.objects import NKIObject
from nki_hf.sim.tensors.no_operators import NoOperators
from nki_hf.sim.tensors.offsets import VectorOffset
from nki_hf.sim.tensors.registers import RunTimeValue
from nki_hf.sim.whole import whole

if TYPE_CHECKING:
    from nki_hf.sim.execution.storage import Storage
    from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["Viewed", "check_index_dtype", "replaced"]


class Viewed(NoOperators, NKIObject):
    """The fields and checks of a view; `NkiTensor` supplies shape, strides, offset, dtype, storage and indirection."""

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

    @property
    def _on_chip(self) -> bool:
        return self.storage.on_chip

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

    def _scalar_index(self, index: Any, what: str) -> Any:
        tile = hasattr(index, "storage")
        if not (tile and index.size == 1) and not isinstance(index, RunTimeValue):
            fault("argument", what, f"index {index!r}", limit="must be an int, a one-element tensor or a register")
        if tile and index.dtype.name != "int64":
            check_index_dtype(what, "index", index)
        if self._on_chip and index.dtype.itemsize > 4:
            fault(
                "dtype",
                what,
                f"the run-time index is {index.dtype} and {self!r} on chip",
                limit="on SBUF and PSUM it must be 32-bit",
                advice="Load it from an int32 tile",
            )
        return index


def replaced(values: tuple[int, ...], position: int, *items: int) -> tuple[int, ...]:
    """The values with `items` in place of the one at a position."""
    return values[:position] + items + values[position + 1 :]


_INDEX_DTYPES = ("int32", "uint32")


def check_index_dtype(what: str, name: str, index: Any) -> None:
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
