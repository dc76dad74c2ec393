"""Host arrays of the types that pack four numbers into one element, lowest bits first."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.sim.dtypes import DType, as_dtype

__all__ = ["is_packed", "packed", "unpacked"]

_SINGLE = {
    "float8_e4m3fn_x4": ml_dtypes.float8_e4m3fn,
    "float8_e5m2_x4": ml_dtypes.float8_e5m2,
    "float4_e2m1fn_x4": ml_dtypes.float4_e2m1fn,
}


def is_packed(array: Any) -> bool:
    """Whether the array's type is one of the packed ones."""
    return bool(array.dtype.metadata) and as_dtype(array.dtype).name in _SINGLE


def packed(array: Any, dtype: DType) -> Any:
    """`[..., 4 * n]` numbers as `[..., n]` elements of the packed type."""
    codes = np.ascontiguousarray(array).astype(_SINGLE[dtype.name]).view(np.uint8)
    bits = 8 * dtype.itemsize // 4
    groups = codes.reshape(*codes.shape[:-1], codes.shape[-1] // 4, 4).astype(dtype.dtype)
    shifts = np.arange(0, 4 * bits, bits, dtype=dtype.dtype)
    return (groups << shifts).sum(-1, dtype=dtype.dtype).astype(dtype.dtype)


def unpacked(array: Any) -> Any:
    """`[..., n]` packed elements as `[..., 4 * n]` float32."""
    dtype = as_dtype(array.dtype)
    bits = 8 * dtype.itemsize // 4
    shifts = np.arange(0, 4 * bits, bits, dtype=dtype.dtype)
    codes = (np.ascontiguousarray(array)[..., None] >> shifts) & dtype.dtype.type(2**bits - 1)
    numbers = codes.astype(np.uint8).view(_SINGLE[dtype.name]).astype(np.float32)
    return numbers.reshape(*array.shape[:-1], 4 * array.shape[-1])
