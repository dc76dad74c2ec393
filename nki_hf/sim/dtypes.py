"""The element types of the language: name, width, and the NumPy type that stores them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["ALL_DTYPES", "DType", "DTypeName", "as_dtype", "widen"]

_METADATA = "nki_dtype"


class DType:
    """One element type; compares equal to its name, to itself and to the NumPy type that stores it.

    Attributes:
      name: public name, e.g. `bfloat16`; `str(dtype)` gives it.
      dtype: the NumPy type of the storage, so that `np.zeros(n, dtype=nl.bfloat16)` works.
      family: `float`, `int`, `uint`, `bool` or `packed`.
      itemsize: bytes per element on the machine; `dtype.itemsize` is what the simulator stores, which differs only for
        the widened types.
    """

    __slots__ = ("dtype", "family", "itemsize", "name")

    def __init__(self, name: str, storage: Any, family: str, itemsize: int = 0) -> None:
        self.name = name
        # NumPy has no type for four numbers in one element: the integer that stores them carries the name as metadata, which
        # np.concatenate and np.stack drop (`.astype(nl.float8_e4m3fn_x4)` gives it back)
        packed = np.dtype(storage, metadata={_METADATA: name}) if family == "packed" else np.dtype(storage)
        self.dtype: np.dtype[Any] = packed
        self.family = family
        self.itemsize = itemsize or self.dtype.itemsize

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self.name == other.name
        if isinstance(other, str):
            return other == self.name or _ALIASES.get(other) == self.name
        try:
            return as_dtype(other).name == self.name
        except (TypeError, ValueError):
            return False

    @property
    def widened(self) -> bool:
        """True for a low-precision type that is kept in float32 (`SimOptions(precise=False)`)."""
        return self.itemsize != self.dtype.itemsize

    @property
    def is_float(self) -> bool:
        """True for the floating-point types that engines compute with (not the packed ones)."""
        return self.family == "float"

    @property
    def is_integer(self) -> bool:
        """True for signed, unsigned and boolean types."""
        return self.family in ("int", "uint", "bool")


class _Names(type):
    def __instancecheck__(cls, item: object) -> bool:
        return isinstance(item, str | DType)


class DTypeName(str, metaclass=_Names):
    """`nl.DType`, which is `str` in the stubs: a dtype's name, and in `isinstance` each dtype of the language too."""

    __slots__ = ()


bool_ = DType("bool", np.bool_, "bool")
int8 = DType("int8", np.int8, "int")
int16 = DType("int16", np.int16, "int")
int32 = DType("int32", np.int32, "int")
int64 = DType("int64", np.int64, "int")
uint8 = DType("uint8", np.uint8, "uint")
uint16 = DType("uint16", np.uint16, "uint")
uint32 = DType("uint32", np.uint32, "uint")
float16 = DType("float16", np.float16, "float")
float32 = DType("float32", np.float32, "float")
bfloat16 = DType("bfloat16", ml_dtypes.bfloat16, "float")
tfloat32 = DType("tfloat32", np.float32, "float")
float8_e4m3 = DType("float8_e4m3", ml_dtypes.float8_e4m3, "float")
float8_e4m3fn = DType("float8_e4m3fn", ml_dtypes.float8_e4m3fn, "float")
float8_e5m2 = DType("float8_e5m2", ml_dtypes.float8_e5m2, "float")
float8_e8m0fnu = DType("float8_e8m0fnu", ml_dtypes.float8_e8m0fnu, "float")
float8_e4m3fn_x4 = DType("float8_e4m3fn_x4", np.uint32, "packed")
float8_e5m2_x4 = DType("float8_e5m2_x4", np.uint32, "packed")
float4_e2m1fn_x4 = DType("float4_e2m1fn_x4", np.uint16, "packed")

ALL_DTYPES: dict[str, DType] = {
    item.name: item
    for item in (
        bool_, int8, int16, int32, int64, uint8, uint16, uint32, float16, float32, bfloat16, tfloat32, float8_e4m3,
        float8_e4m3fn, float8_e5m2, float8_e8m0fnu, float8_e4m3fn_x4, float8_e5m2_x4, float4_e2m1fn_x4,
    )
}  # fmt: skip

_WIDENED = {
    name: DType(name, np.float32, "float", ALL_DTYPES[name].itemsize)
    for name in ("float16", "bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2")
}

_ALIASES = {"bool_": "bool", "float8e4": "float8_e4m3", "float8e5": "float8_e5m2"}
_BY_NUMPY = {item.dtype: item for item in reversed(ALL_DTYPES.values()) if item.family != "packed" and item is not tfloat32}


def widen(dtype: DType) -> DType:
    """The type under the same name that float32 stores, for low-precision floats; other types as they are."""
    return _WIDENED.get(dtype.name, dtype)


def as_dtype(value: Any) -> DType:
    """The `DType` that a name, a NumPy type or a `DType` stands for.

    Raises:
      TypeError: nothing is known under that name; the message lists the known ones.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str):
        found = ALL_DTYPES.get(_ALIASES.get(value, value))
    else:
        try:
            found = _of_numpy(np.dtype(value))
        except TypeError:
            found = None
    if found is None:
        raise TypeError(f"dtype={value!r} is not a dtype of the language: it is one of {', '.join(ALL_DTYPES)}.")
    return found


def _of_numpy(dtype: np.dtype[Any]) -> DType | None:
    if dtype.metadata is not None and _METADATA in dtype.metadata:
        return ALL_DTYPES[dtype.metadata[_METADATA]]
    return _BY_NUMPY.get(dtype)
