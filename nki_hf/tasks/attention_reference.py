"""The reference of attention in NumPy, and the hooks by which its mistakes are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["SCALED_QUERIES", "attention", "powers", "scaled_queries", "summed", "within"]

Array = np.ndarray[Any, Any]


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    ahead: int = 1,
    scale: float | None = None,
    rounded: bool = False,
    shift: bool = True,
    divide: bool = True,
    keys: Callable[[Array, Array], Array] | None = None,
) -> Array:
    """`softmax(mask(q @ k.T * scale)) @ v` in the arrays' own type; every other option is a mistake, but for `rounded`.

    Args:
      q, k, v: `[(heads,) seqlen, head_dim]`; query head `h` reads kv head `h // group`.
      causal, ahead: row i sees keys before `i + skv - sq + ahead`.
      scale: `head_dim ** -0.5`.
      rounded: probabilities are rounded to bfloat16 before they meet v, as the Tensor engine takes them.
      shift, divide: the maximum is subtracted, the sum divides.
      keys: which keys are seen at all, from the numbers of rows `[sq, 1]` (as positions among the keys) and of keys `[skv]`.
    """
    if q.ndim == 3 and q.shape[0] != k.shape[0]:
        k, v = (np.repeat(item, q.shape[0] // k.shape[0], axis=0) for item in (k, v))
    power, total = powers(q, k, causal, ahead, scale, shift, keys)
    if rounded:
        power = power.astype(ml_dtypes.bfloat16).astype(power.dtype)
    out = power @ v
    return np.asarray(out / np.where(total == 0, 1, total) if divide else out)


Seen = Callable[[Array, Array], Array]


def within(window: int, keys: Seen | None = None) -> Seen | None:
    """The keys of the last `window` of a row (0 = all), and of those the ones that `keys` says; as `attention` takes them."""
    if not window:
        return keys
    return lambda rows, columns: (columns > rows - window) & (keys(rows, columns) if keys is not None else True)


_LAST: list[Any] = []
"""The last call of `_powers`: a reference and the size of its rows are asked for one after the other."""


def powers(
    q: Array, k: Array, causal: bool, ahead: int, scale: float | None, shift: bool, keys: Callable[[Array, Array], Array] | None
) -> tuple[Array, Array]:
    """`exp(scores)` and its sums by row; options as in `attention`."""
    key = (causal, ahead, scale, shift)
    if keys is None and _LAST and _LAST[0] is q and _LAST[1] is k and _LAST[2] == key:
        return _LAST[3]
    scores = q @ k.swapaxes(-1, -2)  # every step below is in place: a score matrix is larger than a cache
    scores *= np.asarray(q.shape[-1] ** -0.5 if scale is None else scale, q.dtype)
    rows, columns = scores.shape[-2:]
    if causal:
        np.copyto(scores, -np.inf, where=np.arange(columns) >= np.arange(rows)[:, None] + columns - rows + ahead)
    if keys is not None:
        np.copyto(scores, -np.inf, where=~keys(np.arange(rows)[:, None] + columns - rows, np.arange(columns)))
    if shift and columns:
        top = scores.max(-1, keepdims=True)
        scores -= np.where(np.isfinite(top), top, 0)
    with np.errstate(over="ignore"):
        power = np.exp(scores, out=scores)
    found = power, power.sum(-1, keepdims=True)
    if keys is None:
        _LAST[:] = [q, k, key, found]
    return found


SCALED_QUERIES = "q is multiplied by the scale and rounded to 16 bits again before the product"
"""nki-samples: flash_fwd of reference/attention.py (release 2.21), q_tile; nki-library: the tiles of Q in core/attention/
attention_bwd.py, q_sb with fuse_rope in attention_tkg.py. None of them scales k, or both by the root, in 16 bits."""


def scaled_queries(output: Array, dtype: str, *, q: Array, **arrays: Any) -> dict[str, Array]:
    """The queries as the product sees them, divided by the scale; a `Task.accepted`."""
    kind: Any = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}.get(dtype, np.float32)
    scale = q.shape[-1] ** -0.5
    return {"q": (q * scale).astype(np.float32).astype(kind).astype(q.dtype) / scale}


def summed(q: Array, k: Array, v: Array, causal: bool, window: int = 0) -> Array:
    """`sqrt(sum of (weight * value) ** 2)` of each row: roundings of weights are independent, even if the sum cancels."""
    if q.ndim == 3 and q.shape[0] != k.shape[0]:
        k, v = (np.repeat(item, q.shape[0] // k.shape[0], axis=0) for item in (k, v))
    power, total = powers(q, k, causal, 1, None, True, within(window))
    return np.asarray(np.sqrt((power * power @ (v * v).sum(-1)[..., None])[..., 0]) / total[..., 0])
