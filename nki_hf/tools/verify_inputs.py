"""Generated arrays for kernels of any arguments; attention inputs come from `nki_hf.testing` under the same names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki_hf.testing import DISTRIBUTIONS

__all__ = ["array_inputs"]

Array = np.ndarray[Any, Any]


def array_inputs(shapes: Mapping[str, tuple[int, ...]], distribution: str, seed: int) -> dict[str, Array]:
    """Float64 arrays for one of `DISTRIBUTIONS`: unit normal; times 10; one row of the first array times 100; all elements
    of an array equal; all elements negative.
    """
    if distribution not in DISTRIBUTIONS:
        raise ValueError(f"distribution={distribution!r} is not known: it is one of {', '.join(DISTRIBUTIONS)}.")
    rng = np.random.default_rng(seed)
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    for number, array in enumerate(arrays.values()):
        if distribution == "wide":
            array *= 10
        elif distribution == "outlier_key" and number == 0 and array.ndim:
            array[array.shape[0] // 3] *= 100
        elif distribution == "equal":
            array[...] = array.flat[0]
        elif distribution == "negative":
            np.negative(np.abs(array), out=array)
    return arrays
