"""Conversions between element types, as the engines and the DMA do them: through float32, rounded to nearest even.

Sources: NKI 0.6 release notes (float32 to integer rounds to nearest even and saturates); OCP and IEEE-like 8-bit formats
as `ml_dtypes` defines them: float8_e4m3 reaches 240 and float8_e5m2 57,344 and both overflow to infinity, float8_e4m3fn
reaches 448 and overflows to NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.sim.dtypes import DType

__all__ = ["cast", "copy_cast", "widen"]

Array = np.ndarray[Any, Any]


def cast(values: Array, dtype: DType) -> Array:
    """Values rounded to `dtype`: nearest even; integers saturate and NaN becomes 0; booleans are `!= 0`."""
    target = dtype.dtype
    if dtype.name == "tfloat32":
        return _round_tfloat32(values)
    if values.dtype == target:
        return values
    if dtype.family == "bool":
        return values != 0
    if dtype.is_integer:
        info = np.iinfo(target)
        if values.dtype.kind == "b":
            return values.astype(target)
        if values.dtype.kind in "iu":
            own = np.iinfo(values.dtype)  # NumPy before 2.1 refuses limits that the values' own type does not hold
            return np.clip(values, max(info.min, own.min), min(info.max, own.max)).astype(target)
        wide = np.rint(values.astype(np.float64 if target.itemsize == 4 else np.float32))
        return np.where(np.isnan(wide), 0, np.clip(wide, info.min, info.max)).astype(target)
    if target.itemsize == 1 and dtype.is_float:
        return _narrow_table(target)[_odd16(values)].view(target)
    return values.astype(target)


def widen(dtype: np.dtype[Any]) -> Callable[[Array], Array]:
    """Function that converts arrays of a NumPy element type to float32."""
    if dtype.itemsize == 1 and dtype.kind not in "iub":
        table = _wide_table(dtype)
        return lambda values: table[values.view(np.uint8)]
    return lambda values: values.astype(np.float32)


def copy_cast(source: np.dtype[Any], target: DType) -> Callable[[Array], Array]:
    """Function that converts arrays of `source` to `target` through float32 (bits are kept if the types are the same)."""
    if source == target.dtype and target.name != "tfloat32":
        return lambda values: values
    if source == np.float32:
        return lambda values: cast(values, target)
    if source.kind in "iub" and target.is_integer and source.itemsize < 4:
        return lambda values: cast(values, target)  # float32 holds every value: the detour changes nothing
    convert = widen(source)
    return lambda values: cast(convert(values), target)


def _round_tfloat32(values: Array) -> Array:
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    return np.where(np.isfinite(values), (rounded & np.uint32(0xFFFFE000)).view(np.float32), values)


def _odd16(values: Array) -> Array:
    """Upper half of the float32 bits, rounded to odd, so that rounding it again to 8 bits is rounding once."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (bits >> np.uint32(16)) | ((bits & np.uint32(0xFFFF)) != 0)


@functools.cache
def _narrow_table(target: np.dtype[Any]) -> Array:
    upper = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    with np.errstate(all="ignore"):
        return upper.view(np.float32).astype(target).view(np.uint8)


@functools.cache
def _wide_table(source: np.dtype[Any]) -> Array:
    return np.arange(256, dtype=np.uint8).view(source).astype(np.float32)
