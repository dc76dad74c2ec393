"""Attention with a mistake in its tiles, blocks of keys or heads: in another order, moved, not corrected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.tasks.attention_reference import attention, powers

__all__ = [
    "anti_causal",
    "bfloat16",
    "by_tiles",
    "heads_of",
    "moved",
    "online",
    "over_queries",
    "paired",
    "tiles",
    "transposed_probs",
    "turned",
]

Array = np.ndarray[Any, Any]
_TILE = 128


def tiles(values: Array, axis: int, order: Callable[[Array], Array]) -> Array:
    """The rows of `values` within tiles of 128 along an axis in another order."""
    count = values.shape[axis] // _TILE
    if count < 2:
        return values
    index = order(np.arange(count * _TILE).reshape(count, _TILE)).reshape(-1)
    return np.take(values, index, axis=axis)


def transposed_probs(q: Array, k: Array, v: Array, causal: bool) -> Array:
    """Each 128 x 128 tile of the probabilities used as it stands where its transpose belongs."""
    power, total = powers(q, k, causal, 1, None, True, None)
    rows, columns = power.shape[-2] // _TILE, power.shape[-1] // _TILE
    if not rows or not columns or power.shape[-1] % _TILE or power.shape[-2] % _TILE:
        return np.full_like(q, np.nan)
    tiles = power.reshape(*power.shape[:-2], rows, _TILE, columns, _TILE).swapaxes(-1, -3)
    return np.asarray(tiles.reshape(power.shape) @ v / total)


def online(q: Array, k: Array, v: Array, causal: bool, size: int, mistake: str) -> Array:
    """A softmax that goes through the keys block by block, with a mistake."""
    if q.ndim == 3:
        group = q.shape[0] // k.shape[0]
        return np.stack([online(q[h], k[h // group], v[h // group], causal, size, mistake) for h in range(q.shape[0])])
    rows, columns = q.shape[0], k.shape[0]
    if columns % size or (columns == size and mistake != "transposed") or (mistake == "transposed" and rows % _TILE):
        return np.full_like(q, np.nan)
    scores = q @ k.T * q.shape[-1] ** -0.5
    if causal:
        scores = np.where(np.arange(columns) < np.arange(rows)[:, None] + columns - rows + 1, scores, -np.inf)
    top = np.full((rows, 1), -3e38)
    total, out = np.zeros((rows, 1)), np.zeros_like(q)
    for start in range(0, columns, size):
        part = scores[:, start : start + size]
        new = np.maximum(top, part.max(-1, keepdims=True))
        correction = np.exp(top - new)
        power = np.exp(part - new)
        sums = power.sum(-1, keepdims=True)
        if mistake == "transposed":
            tiles = power.reshape(rows // _TILE, _TILE, size // _TILE, _TILE)
            power = tiles.swapaxes(1, 3).reshape(rows, size)
        seen = np.isfinite(part).any(-1, keepdims=True)
        if mistake in ("own", "own sum"):
            out += power / np.where(seen, sums, 1) @ v[start : start + size]
            total = total + seen if mistake == "own" else np.ones_like(total)
            continue
        fresh = seen & (mistake == "last sum")
        total = np.where(fresh, 0, total * (1 if mistake in ("sums", "both") else correction)) + sums
        fresh = seen & (mistake == "last out")
        out = np.where(fresh, 0, out * (1 if mistake in ("out", "both") else correction)) + power @ v[start : start + size]
        top = np.where(seen, part.max(-1, keepdims=True), top) if mistake == "max" else new
    return out / np.where(total == 0, 1, total)


def moved(values: Array, size: int, by: int) -> Array:
    """Block t taken from block t + by, the last ones as they are."""
    count = values.shape[-2] // size
    if count <= by or values.shape[-2] % size:
        return values
    index = np.minimum(np.arange(count) + by, count - 1)
    index = np.where(np.arange(count) + by < count, index, np.arange(count))
    rows = (index[:, None] * size + np.arange(size)).reshape(-1)
    return np.take(values, rows, axis=-2)


def paired(values: Array, size: int) -> Array:
    """Every second block is the one before it."""
    count = values.shape[-2] // size
    if count < 2 or values.shape[-2] % size:
        return values
    index = np.arange(count) // 2 * 2
    return np.take(values, (index[:, None] * size + np.arange(size)).reshape(-1), axis=-2)


def bfloat16(values: Array) -> Array:
    """Rounded to bfloat16, in the type that it had."""
    return values.astype(ml_dtypes.bfloat16).astype(values.dtype)


def turned(values: Array) -> Array:
    """Each 128 x 128 tile transposed in its place; NaN where the shape has none."""
    rows, columns = values.shape[-2] // _TILE, values.shape[-1] // _TILE
    if values.shape[-1] % _TILE or values.shape[-2] % _TILE:
        return np.full_like(values, np.nan)
    tiles = values.reshape(*values.shape[:-2], rows, _TILE, columns, _TILE)
    return np.asarray(tiles.swapaxes(-3, -1).reshape(values.shape))


def over_queries(q: Array, k: Array, v: Array, causal: bool) -> Array:
    """The softmax runs over the rows; NaN where rows and keys are not as many."""
    power, _ = powers(q, k, causal, 1, None, True, None)
    return np.asarray(power / power.sum(-2, keepdims=True) @ v) if q.shape[-2] == k.shape[-2] else np.full_like(q, np.nan)


def anti_causal(q: Array, k: Array, v: Array) -> Array:
    """Row i sees keys from i on."""
    return attention(q[..., ::-1, :], k[..., ::-1, :], v[..., ::-1, :], causal=True)[..., ::-1, :]


def by_tiles(q: Array, k: Array, v: Array, tile: int) -> Array:
    """Each tile of rows sees the whole tile of keys beside it."""
    out = [
        attention(q[..., row : row + tile, :], k[..., : row + tile, :], v[..., : row + tile, :])
        for row in range(0, q.shape[-2], tile)
    ]
    return np.concatenate(out, -2)


def heads_of(q: Array, k: Array, v: Array, how: str, causal: bool) -> Array:
    """Query heads read other kv heads."""
    index = np.arange(q.shape[0]) % k.shape[0] if how == "modulo" else np.zeros(q.shape[0], int)
    return attention(q, k[index], v[index], causal=causal)
