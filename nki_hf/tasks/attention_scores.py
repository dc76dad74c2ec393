"""Attention with a mistake in its scores or probabilities: another mask, other weights, other functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.tasks.attention_reference import attention

__all__ = ["filled", "from_scores", "of_probabilities", "own_keys", "zero_hidden"]

Array = np.ndarray[Any, Any]
_D = 128
_TILE = 128


def from_scores(q: Array, k: Array, v: Array, causal: bool, changed: Callable[[Array], Array], scale: float = 1.0) -> Array:
    """Attention whose scores are changed before the mask; `scale` multiplies after the change, the rest of it before."""
    if q.ndim == 3 and q.shape[0] != k.shape[0]:
        k, v = (np.repeat(item, q.shape[0] // k.shape[0], axis=0) for item in (k, v))
    scores = changed(q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 / scale)) * scale
    rows, columns = scores.shape[-2:]
    if causal:
        scores = np.where(np.arange(columns) < np.arange(rows)[:, None] + columns - rows + 1, scores, -np.inf)
    power = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(power / power.sum(-1, keepdims=True) @ v)


def of_probabilities(causal: bool) -> dict[str, Callable[..., Any]]:
    """Mistakes between the softmax and the product with V."""

    def of(changed: Callable[[Array], Array], masked: bool = causal) -> Callable[..., Any]:
        return lambda q, k, v: _from_probabilities(q, k, v, masked, changed)

    def hidden(p: Array) -> Array:
        rows, columns = p.shape[-2:]
        return p * (np.arange(columns) < np.arange(rows)[:, None] + columns - rows + 1)

    found: dict[str, Callable[..., Any]] = {
        "the sums are subtracted from the exponentials, not divided by": lambda q, k, v: _subtracted(
            q, k, v, causal, np.asarray
        ),
        "the logarithms of the sums are subtracted from the exponentials": lambda q, k, v: _subtracted(q, k, v, causal, np.log),
        "the probabilities are squared": of(np.square),
        "the square roots of the probabilities are used": of(np.sqrt),
        "the probabilities are divided by their sums twice (the softmax runs over probabilities)": of(_softmax),
        "1 minus the probabilities is used": of(lambda p: 1 - p),
        "the rows are divided by their length (a norm), not by their sums": of(
            lambda p: p / np.linalg.norm(p, axis=-1, keepdims=True)
        ),
        "the rows are divided by the number of keys once more": of(lambda p: p / p.shape[-1]),
        "the probabilities are scaled, not only the scores": of(lambda p: p * _D**-0.5),
        "every key has the same probability (the softmax is missing)": of(lambda p: np.ones_like(p) / p.shape[-1]),
        "the probabilities of the first 128 keys are used for all keys": of(
            lambda p: np.take(p, np.arange(p.shape[-1]) % _TILE, -1)
        ),
        "relu of the scores stands in place of the exponential": lambda q, k, v: _from_weights(
            q, k, v, causal, lambda s: np.maximum(s, 0)
        ),
        "the scores are not exponentiated": lambda q, k, v: _from_weights(q, k, v, causal, lambda s: s),
        "the absolute scores are taken": lambda q, k, v: from_scores(q, k, v, causal, np.abs),
        **{
            f"the scores are capped by {cap} * tanh(scores / {cap})": functools.partial(_capped, causal=causal, cap=float(cap))
            for cap in (10, 20, 30, 50)
        },
        "the scores have the other sign": lambda q, k, v: from_scores(q, k, v, causal, np.negative),
    }
    if causal:
        found |= {
            "the mask comes after the softmax: rows are divided by the sums of all keys": of(hidden, masked=False),
        }
        for size in (_TILE, 512):
            found[f"the mask comes after the softmax: rows are divided by the sums of all keys up to their block of {size}"] = (
                functools.partial(_late_mask, size=size)
            )
            found[f"hidden keys of a row's own block of {size} count in the maximum and the output, not in the sums"] = (
                functools.partial(_late_mask, size=size, sums=True)
            )
    return found


def _softmax(x: Array) -> Array:
    power = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(power / power.sum(-1, keepdims=True))


def _scores(q: Array, k: Array, v: Array, causal: bool) -> tuple[Array, Array]:
    """Scaled scores, -inf where a causal mask hides them, and V with a head for each of q's."""
    if q.ndim == 3 and q.shape[0] != k.shape[0]:
        k, v = (np.repeat(item, q.shape[0] // k.shape[0], axis=0) for item in (k, v))
    scores = q @ k.swapaxes(-1, -2) * np.asarray(q.shape[-1] ** -0.5, q.dtype)
    rows, columns = scores.shape[-2:]
    if causal:
        scores = np.where(np.arange(columns) < np.arange(rows)[:, None] + columns - rows + 1, scores, -np.inf)
    return scores, v


def _from_probabilities(q: Array, k: Array, v: Array, causal: bool, changed: Callable[[Array], Array]) -> Array:
    scores, v = _scores(q, k, v, causal)
    return np.asarray(changed(_softmax(scores)) @ v)


def _from_weights(q: Array, k: Array, v: Array, causal: bool, weight: Callable[[Array], Array]) -> Array:
    """Weights that are no exponentials, divided by their sums."""
    scores, v = _scores(q, k, v, causal)
    found = np.where(np.isfinite(scores), weight(scores), 0)
    return np.asarray(found / found.sum(-1, keepdims=True) @ v)


def _subtracted(q: Array, k: Array, v: Array, causal: bool, of_sums: Callable[[Array], Array]) -> Array:
    """The exponentials less what `of_sums` makes of their sums, with hidden keys up to the end of a row's block of 128."""
    scores, v = _scores(q, k, v, causal)
    power = np.exp(scores - scores.max(-1, keepdims=True))
    found = power - of_sums(power.sum(-1, keepdims=True))
    if causal:
        rows, columns = scores.shape[-2:]
        found = found * (np.arange(columns) // _TILE <= (np.arange(rows)[:, None] + columns - rows) // _TILE)
    return np.asarray(found @ v)


def _late_mask(q: Array, k: Array, v: Array, size: int, sums: bool = False) -> Array:
    """Hidden keys up to the end of a row's block of `size`: in the sums alone, or in the output alone (`sums`)."""
    scores, v = _scores(q, k, v, False)
    rows, columns = scores.shape[-2:]
    last, keys = np.arange(rows)[:, None] + columns - rows, np.arange(columns)
    near, mine = keys // size <= last // size, keys <= last
    power = np.exp(scores - np.where(near, scores, -np.inf).max(-1, keepdims=True))
    top, bottom = (near, mine) if sums else (mine, near)
    return np.asarray((power * top) @ v / (power * bottom).sum(-1, keepdims=True))


def _capped(q: Array, k: Array, v: Array, causal: bool, cap: float) -> Array:
    return from_scores(q, k, v, causal, lambda scores: cap * np.tanh(scores / cap))


def own_keys(q: Array, k: Array, v: Array, size: int) -> Array:
    """Causal attention in which the scores of every block of `size` keys are those of the row's own block."""

    def changed(scores: Array) -> Array:
        rows, columns = scores.shape[-2:]
        own = (np.arange(rows)[:, None] + columns - rows) // size * size + np.arange(columns) % size
        return np.take_along_axis(scores, np.broadcast_to(np.minimum(own, columns - 1), scores.shape), -1)

    return from_scores(q, k, v, True, changed)


def filled(q: Array, k: Array, v: Array, size: int) -> Array:
    """Zeros behind the last key, up to a whole block, take part."""
    missing = -k.shape[-2] % size
    wider = [*((0, 0),) * (k.ndim - 2), (0, missing), (0, 0)]
    return attention(q, np.pad(k, wider), np.pad(v, wider)) if missing else np.full_like(q, np.nan)


def zero_hidden(q: Array, k: Array, v: Array, size: int, value: float = 0.0) -> Array:
    """Scores that a causal mask hides are `value`, up to the end of the row's block of `size` keys."""

    def changed(scores: Array) -> Array:
        rows, columns = scores.shape[-2:]
        last, keys = np.arange(rows)[:, None] + columns - rows, np.arange(columns)
        return np.where(keys <= last, scores, np.where(keys // size == last // size, value, -np.inf))

    return from_scores(q, k, v, False, changed)
