"""The elements of a region in an array that has one value for each element of the region's buffer."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim.stream.events import Region

__all__ = ["elements_of"]

Array = np.ndarray[Any, Any]


def elements_of(values: Array, region: Region) -> Array | None:
    """A view of the values in the region's shape; None where run-time indices choose them, or where the region's type has
    another size than the buffer's, so that its elements are not those of the buffer.

    Args:
      values: contiguous, of any type, in the order of the buffer.
      region: elements of it; what stands there more than once (a broadcast) is one value of `values`.
    """
    if region.indirect or region.dtype.itemsize != region.buffer.dtype.itemsize:
        return None
    size = values.itemsize
    strides = [step * size for step in region.strides]
    return np.ndarray(region.shape, values.dtype, buffer=values, offset=region.offset * size, strides=strides)
