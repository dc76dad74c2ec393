"""From NumPy arrays to a kernel's layouts: the packing that `nki_hf verify` uses, and the element types of shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki_hf.problem import Band
from nki_hf.sim.dtypes import ALL_DTYPES

__all__ = ["NUMPY_DTYPES", "NumpyArrays"]

NUMPY_DTYPES: Mapping[str, np.dtype[Any]] = {name: item.dtype for name, item in ALL_DTYPES.items()}
"""What stores the elements of kernels' arguments, by the name of their type."""


class NumpyArrays:
    """`kernels.packing.Arrays` of NumPy."""

    def permuted(self, array: Any, order: tuple[int, ...]) -> Any:
        """See `Arrays`."""
        return array.transpose(order)

    def cast(self, array: Any, dtype: str, hidden: float | None, lowest: float | None) -> Any:
        """See `Arrays`."""
        if dtype == "uint8":
            return array.astype(np.bool_).view(np.uint8)
        values = array.astype(NUMPY_DTYPES[dtype])
        if lowest is None:
            return values
        raised = np.maximum(values, values.dtype.type(lowest))
        return raised if hidden is None else np.where(np.isneginf(values), values.dtype.type(hidden), raised)

    def padded(self, array: Any, axis: int, length: int, value: float) -> Any:
        """See `Arrays`."""
        widths = [(0, length - size if number == axis else 0) for number, size in enumerate(array.shape)]
        return np.pad(array, widths, constant_values=value)

    def bounds(self, band: Band, seqlen_q: int, seqlen_kv: int, tensors: Mapping[str, Any]) -> tuple[Any, Any]:
        """See `Arrays`."""
        lower, upper = band.edges(np.arange(seqlen_q)[None], seqlen_kv)
        lower, upper = (np.clip(side, 0, seqlen_kv).astype(np.int32) for side in (lower, upper))
        if tensors.get("lo") is not None:
            first, last = (np.clip(tensors[side], 0, seqlen_kv).astype(np.int32) for side in ("lo", "hi"))
            lower, upper = np.maximum(lower, first), np.minimum(upper, last)
        return lower, upper
