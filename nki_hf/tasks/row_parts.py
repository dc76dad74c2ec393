"""What tasks of rows share: their inputs, and rows, sums and columns that stand in place of the right ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.tasks.task import FLOAT

__all__ = ["WIDTH", "drawn_scores", "in_parts", "kept", "levels", "narrow", "other_rows", "row_arrays", "shifted_exp"]

Array = np.ndarray[Any, Any]
WIDTH = 1024


def row_arrays(size: int) -> dict[str, Any]:
    """One array x of rows."""
    return {"x": ((size, WIDTH), FLOAT)}


def drawn_scores(size: int, distribution: str, rng: np.random.Generator, low: float = 0.0) -> Array:
    """Rows whose maximum matters: by the end of them, or by one column, far beyond what an exponent of float32 takes; in
    `uneven_rows` each row has a level of its own, so that no row's maximum serves another one; `negative` ones are below
    `-low`.
    """
    found = rng.standard_normal((size, WIDTH)) * (10 if distribution == "wide" else 1)
    if distribution == "outlier_key":
        found[:, WIDTH // 3] += 100
    elif distribution == "late_maximum":
        found[:, -WIDTH // 4 :] += 100
    elif distribution == "uneven_rows":
        found += 40.0 * levels(size, rng)
    elif distribution == "equal":
        found[...] = found[:1, :1]
    return -np.abs(found) - low if distribution == "negative" else found


def levels(rows: int, rng: np.random.Generator) -> Array:
    """Whole numbers from -6 to 6 in any order, `[rows, 1]`; the first row has 0, which looks like any other input."""
    found = rng.permutation(np.arange(rows) % 13 - 6.0)[:, None]
    found[0] = 0
    return np.asarray(found)


def in_parts(x: Array, function: Callable[[Array], Array], width: int) -> Array:
    """The function of each `width` columns by themselves."""
    return np.concatenate([function(x[:, start : start + width]) for start in range(0, x.shape[1], width)], -1)


def other_rows(x: Array, which: str, tile: int = 128) -> Array:
    """In place of each row of `x` the one at its place in the first tile of 128 rows, or in the tile before."""
    row = np.arange(len(x))
    index = row % tile if which == "first" else np.where(row >= tile, row - tile, row)
    return np.asarray(x[index])


def kept(sums: Array, tile: int = 128) -> Array:
    """Sums of rows `[n, 1]` that also hold those of the same place in earlier tiles of 128 rows."""
    whole = len(sums) // tile * tile
    return np.concatenate([np.cumsum(sums[:whole].reshape(-1, tile, 1), 0).reshape(-1, 1), sums[whole:]])


def narrow(x: Array) -> Array:
    """Rounded to bfloat16, in the type that it had."""
    return x.astype(ml_dtypes.bfloat16).astype(x.dtype)


def shifted_exp(x: Array) -> Array:
    """The powers of a softmax."""
    return np.asarray(np.exp(x - x.max(-1, keepdims=True)))
