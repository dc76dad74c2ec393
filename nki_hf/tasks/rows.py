"""Functions of rows: softmax, RMSNorm, LayerNorm, cumulative sum, cross entropy, transpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.tasks.task import FLOAT, Task

__all__ = ["TASKS", "rmsnorm"]

Array = np.ndarray[Any, Any]
_WIDTH = 1024
_EPS = 1e-6
_LAYER_EPS = 1e-5


def _softmax(x: Array, axis: int | None = -1) -> Array:
    power = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(power / power.sum(axis, keepdims=True))


def _parts(x: Array, function: Callable[[Array], Array], width: int) -> Array:
    """The function of each `width` columns by themselves."""
    return np.concatenate([function(x[:, start : start + width]) for start in range(0, x.shape[1], width)], -1)


def _carried(x: Array, width: int, carry: Callable[[Array, Array], Array]) -> Array:
    """Sums along each `width` columns, and what `carry` takes of the columns and the sums of the block before."""
    sums = _parts(x, lambda part: np.cumsum(part, -1), width)
    for start in range(width, x.shape[1], width):
        before = slice(start - width, start)
        sums[:, start : start + width] += carry(x[:, before], sums[:, before])
    return sums


def _stepped(x: Array, rounded: Callable[[Array], Array]) -> Array:
    """Sums along the columns that are rounded after each."""
    total, out = np.zeros(len(x), x.dtype), np.empty_like(x)
    for t in range(x.shape[1]):
        total = out[:, t] = rounded(total + x[:, t])
    return out


def rmsnorm(x: Array, weight: Array, eps: float = _EPS, *, seen: int | None = None) -> Array:
    """`x / sqrt(mean(x ** 2) + eps) * weight` over the last axis; `seen` (a mistake): the mean is that of the first columns."""
    mean = (x[:, :seen] ** 2).mean(-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean + np.asarray(eps, x.dtype)) * weight)


def _rows_of(x: Array, which: str, tile: int = 128) -> Array:
    """In place of each row of `x` the one at its place in the first tile of 128 rows, or in the tile before."""
    row = np.arange(len(x))
    index = row % tile if which == "first" else np.where(row >= tile, row - tile, row)
    return np.asarray(x[index])


def _kept(sums: Array, tile: int = 128) -> Array:
    """Sums of rows `[n, 1]` that also hold those of the same place in earlier tiles of 128 rows."""
    whole = len(sums) // tile * tile
    return np.concatenate([np.cumsum(sums[:whole].reshape(-1, tile, 1), 0).reshape(-1, 1), sums[whole:]])


def _shifted_exp(x: Array) -> Array:
    return np.asarray(np.exp(x - x.max(-1, keepdims=True)))


def _scaled(x: Array, mean: Array, weight: Array, eps: float) -> Array:
    return np.asarray(x / np.sqrt(mean + eps) * weight)


def _squares(x: Array) -> Array:
    return np.asarray((x * x).mean(-1, keepdims=True))


def _narrow(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16).astype(x.dtype)


def _statistics(x: Array, weight: Array, bias: Array, eps: float, mean: Array, variance: Array) -> Array:
    return np.asarray((x - mean) / np.sqrt(variance + eps) * weight + bias)


def _mean(x: Array) -> Array:
    return np.asarray(x.mean(-1, keepdims=True))


def _variance(x: Array) -> Array:
    return np.asarray(x.var(-1, keepdims=True))


def _layernorm(x: Array, weight: Array, bias: Array, eps: float = _LAYER_EPS, *, ddof: int = 0) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).sum(-1, keepdims=True) / np.asarray(x.shape[-1] - ddof, x.dtype)
    return np.asarray(centred / np.sqrt(variance + np.asarray(eps, x.dtype)) * weight + bias)


def _layernorm_of(x: Array, mean: Array, weight: Array, bias: Array, eps: float) -> Array:
    """With another mean, also within the variance."""
    centred = x - mean
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight + bias)


def _cross_entropy(logits: Array, labels: Array) -> Array:
    return _lse(logits) - _picked(logits, labels)


def _lse(logits: Array) -> Array:
    top = logits.max(-1, keepdims=True)
    return np.asarray(np.log(np.exp(logits - top).sum(-1, keepdims=True)) + top)


def _picked(logits: Array, labels: Array, by: int = 0) -> Array:
    return np.take_along_axis(logits, (labels.astype(np.int64) + by) % logits.shape[-1], -1)


def _restarted(logits: Array, labels: Array, n: int) -> Array:
    """The sum of the logits at the label in each block of `n` columns; 0 where the label is no column of a block."""
    blocks = logits.reshape(len(logits), -1, n).sum(1)
    return np.where(labels < n, _picked(blocks, np.minimum(labels, n - 1)), 0)


def _scores(size: int, distribution: str, rng: np.random.Generator) -> Array:
    """Rows whose maximum matters: by the end of them, or by one column, far beyond what an exponent of float32 takes."""
    found = rng.standard_normal((size, _WIDTH)) * (10 if distribution == "wide" else 1)
    if distribution == "outlier_key":
        found[:, _WIDTH // 3] += 100
    elif distribution == "late_maximum":
        found[:, -_WIDTH // 4 :] += 100
    elif distribution == "equal":
        found[...] = found[:1, :1]
    return -np.abs(found) if distribution == "negative" else found


def _labelled(size: int, distribution: str, rng: np.random.Generator) -> Mapping[str, Array]:
    return {"logits": _scores(size, distribution, rng), "labels": rng.integers(0, _WIDTH, (size, 1))}


def _normed(*names: str) -> Callable[[int, str, np.random.Generator], Mapping[str, Array]]:
    """Inputs of a norm: the usual ones, and `small`, where eps is as large as the mean of squares."""

    def inputs(size: int, distribution: str, rng: np.random.Generator) -> Mapping[str, Array]:
        x = rng.standard_normal((size, _WIDTH)) * {"wide": 10.0, "small": 1e-3}.get(distribution, 1.0)
        if distribution == "outlier_key":
            x[size // 3] *= 100
        elif distribution == "equal":
            x = np.repeat(x[:, :1], _WIDTH, 1) + 1e-2 * x
        elif distribution == "negative":
            x = -np.abs(x)
        return {"x": x, **{name: rng.standard_normal((1, _WIDTH)) for name in names}}

    return inputs


def _rows(size: int) -> dict[str, Any]:
    return {"x": ((size, _WIDTH), FLOAT)}


def _weighted(size: int) -> dict[str, Any]:
    return {**_rows(size), "weight": ((1, _WIDTH), FLOAT)}


_SOFTMAX_WRONG: dict[str, Callable[..., Any]] = {
    "the rows are not divided by their sums": lambda x: np.exp(x - x.max(-1, keepdims=True)),
    "the softmax runs over the rows instead of the columns": lambda x: _softmax(x, 0),
    "the softmax runs over all elements": lambda x: _softmax(x, None),
    "the output is the logarithm of the softmax": lambda x: np.log(_softmax(x)),
    "the sign of the exponent is wrong": lambda x: _softmax(-x),
    "the exponential has base 2 instead of e": lambda x: _softmax(x * np.log(2)),
    "the rows are divided by their sums twice": lambda x: (
        _softmax(x) / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)
    ),
    "the sums still hold those of earlier tiles of 128 rows (not cleared)": lambda x: (
        _shifted_exp(x) / _kept(_shifted_exp(x).sum(-1, keepdims=True))
    ),
    **{
        f"the sums are those of the {words}": lambda x, which=which: (
            _shifted_exp(x) / _rows_of(_shifted_exp(x).sum(-1, keepdims=True), which)
        )
        for words, which in (("first tile of 128 rows", "first"), ("tile of 128 rows before", "before"))
    },
    "the rows are divided by the square root of their sums": lambda x: (
        _shifted_exp(x) / np.sqrt(_shifted_exp(x).sum(-1, keepdims=True))
    ),
    "the rows are divided by their length (a norm), not by their sums": lambda x: (
        _shifted_exp(x) / np.linalg.norm(_shifted_exp(x), axis=-1, keepdims=True)
    ),
    "the rows are multiplied by their sums, not divided": lambda x: _shifted_exp(x) * _shifted_exp(x).sum(-1, keepdims=True),
    **{
        f"the {which} {n} columns are missing in the sum": lambda x, part=part: (
            _shifted_exp(x) / _shifted_exp(x)[:, part].sum(-1, keepdims=True)
        )
        for n in (1, 128, 256)
        for which, part in (("first", slice(n, None)), ("last", slice(None, -n)))
    },
    "one is added to the sums": lambda x: _shifted_exp(x) / (1 + _shifted_exp(x).sum(-1, keepdims=True)),
    "the logits are divided by the root of the width": lambda x: _softmax(x * x.shape[-1] ** -0.5),
    "the logits are scaled by head_dim ** -0.5 of 128": lambda x: _softmax(x * 128**-0.5),
    "the exponentials are rounded to bfloat16": lambda x: (
        _narrow(_shifted_exp(x)) / _narrow(_shifted_exp(x)).sum(-1, keepdims=True)
    ),
    "the sums are rounded to bfloat16": lambda x: _shifted_exp(x) / _narrow(_shifted_exp(x).sum(-1, keepdims=True)),
    **{
        f"each {width} columns are a softmax of their own": lambda x, width=width: _parts(x, _softmax, width)
        for width in (128, 256, 512)
    },
    **{
        f"the sum is that of the {which} {width} columns only": (
            lambda x, part=part: (
                np.exp(x - x.max(-1, keepdims=True)) / np.exp(x - x.max(-1, keepdims=True))[:, part].sum(-1, keepdims=True)
            )
        )
        for width in (128, 256, 512)
        for which, part in (("first", slice(0, width)), ("last", slice(-width, None)))
    },
}

_RMS_WRONG: dict[str, Callable[..., Any]] = {
    "the weight is missing": lambda x, weight, eps=_EPS: rmsnorm(x, np.ones_like(weight), eps),
    "the weight is applied twice": lambda x, weight, eps=_EPS: rmsnorm(x, weight * weight, eps),
    "the weight is added, not multiplied": lambda x, weight, eps=_EPS: rmsnorm(x, np.ones_like(weight), eps) + weight,
    "the norm is missing": lambda x, weight, eps=_EPS: x * weight,
    "the largest square stands in place of their mean": lambda x, weight, eps=_EPS: _scaled(
        x, (x * x).max(-1, keepdims=True), weight, eps
    ),
    "the root of the mean of squares multiplies, not divides": lambda x, weight, eps=_EPS: (
        x * np.sqrt(_squares(x) + eps) * weight
    ),
    "the norm is taken after the weight": lambda x, weight, eps=_EPS: rmsnorm(x * weight, np.ones_like(weight), eps),
    "the squares are averaged over twice the width (padding counts)": lambda x, weight, eps=_EPS: _scaled(
        x, _squares(x) / 2, weight, eps
    ),
    "the squares are averaged over half the width": lambda x, weight, eps=_EPS: _scaled(x, _squares(x) * 2, weight, eps),
    "the squares are averaged over 128, not over the width": lambda x, weight, eps=_EPS: _scaled(
        x, _squares(x) * x.shape[-1] / 128, weight, eps
    ),
    "the squares are averaged over n - 1": lambda x, weight, eps=_EPS: _scaled(
        x, _squares(x) * x.shape[-1] / (x.shape[-1] - 1), weight, eps
    ),
    "the sum of squares still holds those of earlier tiles of 128 rows (not cleared)": lambda x, weight, eps=_EPS: _scaled(
        x, _kept(_squares(x)), weight, eps
    ),
    **{
        f"the mean of squares is that of the {words}": lambda x, weight, eps=_EPS, which=which: _scaled(
            x, _rows_of(_squares(x), which), weight, eps
        )
        for words, which in (("first tile of 128 rows", "first"), ("tile of 128 rows before", "before"))
    },
    "the squares are rounded to bfloat16": lambda x, weight, eps=_EPS: _scaled(
        x, _narrow(x * x).mean(-1, keepdims=True), weight, eps
    ),
    "the mean of squares is rounded to bfloat16": lambda x, weight, eps=_EPS: _scaled(x, _narrow(_squares(x)), weight, eps),
    "the inverse root is rounded to bfloat16": lambda x, weight, eps=_EPS: x * _narrow(1 / np.sqrt(_squares(x) + eps)) * weight,
    "the mean is squared, not the squares averaged": lambda x, weight, eps=_EPS: _scaled(x, _mean(x) ** 2, weight, eps),
    "eps is subtracted": lambda x, weight, eps=_EPS: _scaled(x, np.maximum(_squares(x) - eps, 1e-12), weight, 0.0),
    "one is added to the weight": lambda x, weight, eps=_EPS: rmsnorm(x, 1 + weight, eps),
    "eps is missing": lambda x, weight, eps=_EPS: rmsnorm(x, weight, 0.0),
    "eps is added after the root": lambda x, weight, eps=_EPS: x / (np.sqrt((x * x).mean(-1, keepdims=True)) + eps) * weight,
    **{
        f"eps is {large} instead of 1e-6": lambda x, weight, eps=_EPS, large=large: rmsnorm(x, weight, large)
        for large in (1e-3, 1e-2, 1e-1)
    },
    "eps is that of LayerNorm, 1e-5": lambda x, weight, eps=_EPS: rmsnorm(x, weight, _LAYER_EPS),
    "absolute values are averaged, not squares": lambda x, weight, eps=_EPS: (
        x / np.sqrt(np.abs(x).mean(-1, keepdims=True) + eps) * weight
    ),
    "the squares are summed, not averaged": lambda x, weight, eps=_EPS: (
        x / np.sqrt((x * x).sum(-1, keepdims=True) + eps) * weight
    ),
    "the mean of squares is not under a root": lambda x, weight, eps=_EPS: x / ((x * x).mean(-1, keepdims=True) + eps) * weight,
    "the mean is subtracted, as in LayerNorm": lambda x, weight, eps=_EPS: rmsnorm(x - x.mean(-1, keepdims=True), weight, eps),
    "the mean runs over the rows instead of the columns": lambda x, weight, eps=_EPS: (
        x / np.sqrt((x * x).mean(0, keepdims=True) + eps) * weight
    ),
    **{
        f"the mean of squares is that of the first {n} columns only": (
            lambda x, weight, eps=_EPS, n=n: rmsnorm(x, weight, eps, seen=n)
        )
        for n in (128, 256, 512)
    },
}

_LAYER_WRONG: dict[str, Callable[..., Any]] = {
    "the mean is not subtracted": lambda x, weight, bias, eps=_LAYER_EPS: rmsnorm(x, weight, eps) + bias,
    "the mean is subtracted, but the variance is the mean of squares": lambda x, weight, bias, eps=_LAYER_EPS: (
        (x - x.mean(-1, keepdims=True)) / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight + bias
    ),
    "the variance is divided by n - 1 (unbiased)": lambda x, weight, bias, eps=_LAYER_EPS: _layernorm(
        x, weight, bias, eps, ddof=1
    ),
    "the bias is missing": lambda x, weight, bias, eps=_LAYER_EPS: _layernorm(x, weight, 0 * bias, eps),
    "the weight is missing": lambda x, weight, bias, eps=_LAYER_EPS: _layernorm(x, np.ones_like(weight), bias, eps),
    "one is added to the weight": lambda x, weight, bias, eps=_LAYER_EPS: _layernorm(x, 1 + weight, bias, eps),
    "the weight is added, not multiplied": lambda x, weight, bias, eps=_LAYER_EPS: (
        _layernorm(x, np.ones_like(weight), bias, eps) + weight
    ),
    "the bias is subtracted": lambda x, weight, bias, eps=_LAYER_EPS: _layernorm(x, weight, -bias, eps),
    "the bias is added twice": lambda x, weight, bias, eps=_LAYER_EPS: _layernorm(x, weight, 2 * bias, eps),
    "the mean is added, not subtracted": lambda x, weight, bias, eps=_LAYER_EPS: _statistics(
        x, weight, bias, eps, -_mean(x), _variance(x)
    ),
    "the mean is not subtracted from what is divided, only within the variance": lambda x, weight, bias, eps=_LAYER_EPS: (
        _statistics(x, weight, bias, eps, 0 * _mean(x), _variance(x))
    ),
    "the variance is missing (nothing is divided)": lambda x, weight, bias, eps=_LAYER_EPS: (x - _mean(x)) * weight + bias,
    "the standard deviation multiplies, not divides": lambda x, weight, bias, eps=_LAYER_EPS: (
        (x - _mean(x)) * np.sqrt(_variance(x) + eps) * weight + bias
    ),
    "eps is added after the root": lambda x, weight, bias, eps=_LAYER_EPS: (
        (x - _mean(x)) / (np.sqrt(_variance(x)) + eps) * weight + bias
    ),
    "the squares are summed, not averaged": lambda x, weight, bias, eps=_LAYER_EPS: _statistics(
        x, weight, bias, eps, _mean(x), _variance(x) * x.shape[-1]
    ),
    "the mean is a sum": lambda x, weight, bias, eps=_LAYER_EPS: _layernorm_of(x, x.sum(-1, keepdims=True), weight, bias, eps),
    "the mean is that over twice the width (padding counts)": lambda x, weight, bias, eps=_LAYER_EPS: _layernorm_of(
        x, _mean(x) / 2, weight, bias, eps
    ),
    "the variance is divided by twice the width (padding counts)": lambda x, weight, bias, eps=_LAYER_EPS: _statistics(
        x, weight, bias, eps, _mean(x), _variance(x) / 2
    ),
    **{
        f"{what} of the {words}": lambda x, weight, bias, eps=_LAYER_EPS, which=which, both=both: _statistics(
            x,
            weight,
            bias,
            eps,
            _rows_of(_mean(x), which) if both != "variance" else _mean(x),
            _rows_of(_variance(x), which) if both != "mean" else _variance(x),
        )
        for words, which in (("first tile of 128 rows", "first"), ("tile of 128 rows before", "before"))
        for what, both in (
            ("mean and variance are those", "both"),
            ("the mean is that", "mean"),
            ("the variance is that", "variance"),
        )
    },
    **{
        f"{what} of the first {n} columns only": lambda x, weight, bias, eps=_LAYER_EPS, n=n, both=both: _statistics(
            x,
            weight,
            bias,
            eps,
            _mean(x[:, :n]) if both != "variance" else _mean(x),
            _variance(x[:, :n]) if both != "mean" else _variance(x),
        )
        for n in (128, 256, 512)
        for what, both in (
            ("mean and variance are those", "both"),
            ("the mean is that", "mean"),
            ("the variance is that", "variance"),
        )
    },
    "the squares are rounded to bfloat16": lambda x, weight, bias, eps=_LAYER_EPS: _statistics(
        x, weight, bias, eps, _mean(x), _narrow((x - _mean(x)) ** 2).mean(-1, keepdims=True)
    ),
    "mean and variance are rounded to bfloat16": lambda x, weight, bias, eps=_LAYER_EPS: _statistics(
        x, weight, bias, eps, _narrow(_mean(x)), _narrow(_variance(x))
    ),
    "the bias is added before the weight": lambda x, weight, bias, eps=_LAYER_EPS: _layernorm(x, weight, bias * weight, eps),
    "weight and bias are exchanged": lambda x, weight, bias, eps=_LAYER_EPS: _layernorm(x, bias, weight, eps),
    "eps is missing": lambda x, weight, bias, eps=_LAYER_EPS: _layernorm(x, weight, bias, 0.0),
    **{
        f"eps is {large} instead of 1e-5": lambda x, weight, bias, eps=_LAYER_EPS, large=large: _layernorm(
            x, weight, bias, large
        )
        for large in (1e-3, 1e-2, 1e-1)
    },
    "eps is that of RMSNorm, 1e-6": lambda x, weight, bias, eps=_LAYER_EPS: _layernorm(x, weight, bias, _EPS),
    "the variance is not under a root": lambda x, weight, bias, eps=_LAYER_EPS: (
        (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + eps) * weight + bias
    ),
    "mean and variance run over the rows instead of the columns": lambda x, weight, bias, eps=_LAYER_EPS: (
        (x - x.mean(0, keepdims=True)) / np.sqrt(x.var(0, keepdims=True) + eps) * weight + bias
    ),
}

_CUMSUM_WRONG: dict[str, Callable[..., Any]] = {
    "the sums run down the rows instead of along them": lambda x: np.cumsum(x, 0),
    "the sum is exclusive: an element is not in its own sum": lambda x: np.cumsum(x, -1) - x,
    "the sum runs from the end": lambda x: np.cumsum(x[:, ::-1], -1)[:, ::-1],
    "the product is cumulated, not the sum": lambda x: np.cumprod(x, -1),
    "the maximum is cumulated, not the sum": lambda x: np.maximum.accumulate(x, -1),
    "the sums are rounded to bfloat16 at every step": lambda x: _stepped(x, _narrow),
    "the sum is a mean of what was seen": lambda x: np.cumsum(x, -1) / np.arange(1, x.shape[-1] + 1),
    "the sum goes on from row to row": lambda x: np.cumsum(x.reshape(-1)).reshape(x.shape),
    "the sum still holds that of earlier tiles of 128 rows (not cleared)": lambda x: (
        np.cumsum(x, -1) + _kept(x.sum(-1, keepdims=True)) - x.sum(-1, keepdims=True)
    ),
    "the sums are squared": lambda x: np.cumsum(x, -1) ** 2,
    "squares are summed": lambda x: np.cumsum(x * x, -1),
    **{
        f"the sum starts anew every {width} columns (a carry is missing)": (
            lambda x, width=width: _parts(x, lambda part: np.cumsum(part, -1), width)
        )
        for width in (64, 128, 256, 512)
    },
    **{
        f"the carry of each {width} columns is {what}": (lambda x, width=width, carry=carry: _carried(x, width, carry))
        for width in (64, 128, 256, 512)
        for what, carry in (
            ("the last element before them, not the sum of all", lambda before, sums: before[:, -1:]),
            ("the sum of the block before alone", lambda before, sums: before.sum(-1, keepdims=True)),
            ("the first sum of the block before, not the last", lambda before, sums: sums[:, :1]),
            ("applied twice", lambda before, sums: 2 * sums[:, -1:]),
            ("subtracted", lambda before, sums: -sums[:, -1:]),
            ("the sum before its last element", lambda before, sums: sums[:, -2:-1]),
            ("the sum of the block before with its first element missing", lambda before, sums: sums[:, -1:] - before[:, :1]),
        )
    },
}

_ENTROPY_WRONG: dict[str, Callable[..., Any]] = {
    "the label's logit is not subtracted": lambda logits, labels: _lse(logits),
    "the logsumexp is missing": lambda logits, labels: -_picked(logits, labels),
    "the label's probability is subtracted, not its logit (exp is applied in place)": lambda logits, labels: (
        _lse(logits) - _picked(_shifted_exp(logits), labels)
    ),
    "the label's logit is taken after the maximum was subtracted": lambda logits, labels: (
        _cross_entropy(logits, labels) + logits.max(-1, keepdims=True)
    ),
    "the largest logit is subtracted, not the label's": lambda logits, labels: (
        _lse(logits) - logits.max(-1, keepdims=True)
    ),
    "the label's logit is added, not subtracted": lambda logits, labels: _lse(logits) + _picked(logits, labels),
    "the label's logit is subtracted twice": lambda logits, labels: _lse(logits) - 2 * _picked(logits, labels),
    "the label itself is subtracted, not its logit": lambda logits, labels: _lse(logits) - labels,
    "the maximum is added twice": lambda logits, labels: _cross_entropy(logits, labels) + logits.max(-1, keepdims=True),
    "the maximum stands in place of the logsumexp": lambda logits, labels: (
        logits.max(-1, keepdims=True) - _picked(logits, labels)
    ),
    "the exponentials are averaged, not summed": lambda logits, labels: (
        _cross_entropy(logits, labels) - np.log(logits.shape[-1])
    ),
    "the sums still hold those of earlier tiles of 128 rows (not cleared)": lambda logits, labels: (
        np.log(_kept(_shifted_exp(logits).sum(-1, keepdims=True))) + logits.max(-1, keepdims=True) - _picked(logits, labels)
    ),
    **{
        f"the {what} of the {words}": lambda logits, labels, which=which, of=of: (
            (_rows_of(_lse(logits), which) if of == "lse" else _lse(logits))
            - (_rows_of(_picked(logits, labels), which) if of == "picked" else _picked(logits, labels))
        )
        for words, which in (("first tile of 128 rows", "first"), ("tile of 128 rows before", "before"))
        for what, of in (("logsumexp is that", "lse"), ("label's logit is that", "picked"))
    },
    **{
        f"the logsumexp is that of the last {n} columns only": (
            lambda logits, labels, n=n: _lse(logits[:, -n:]) - _picked(logits, labels)
        )
        for n in (128, 256, 512)
    },
    "the loss is exponentiated (perplexity)": lambda logits, labels: np.exp(_cross_entropy(logits, labels)),
    "the sign is wrong": lambda logits, labels: -_cross_entropy(logits, labels),
    "the maximum is not added back": lambda logits, labels: _cross_entropy(logits, labels) - logits.max(-1, keepdims=True),
    "the logarithm is missing": lambda logits, labels: (
        np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True)
        + logits.max(-1, keepdims=True) - _picked(logits, labels)
    ),
    "the logit after the label's is taken": lambda logits, labels: _lse(logits) - _picked(logits, labels, 1),
    "the logit before the label's is taken": lambda logits, labels: _lse(logits) - _picked(logits, labels, -1),
    "the logarithm has base 2 instead of e": lambda logits, labels: (
        np.log2(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        + logits.max(-1, keepdims=True) - _picked(logits, labels)
    ),
    **{
        f"the columns are numbered anew every {n}: labels beyond are not found": (
            lambda logits, labels, n=n: _lse(logits) - _restarted(logits, labels, n)
        )
        for n in (128, 256, 512)
    },
    "the losses are averaged": lambda logits, labels: 0 * labels + _cross_entropy(logits, labels).mean(),
    "the probability is given, not its logarithm": lambda logits, labels: np.exp(-_cross_entropy(logits, labels)),
    **{
        f"the logsumexp is that of the first {n} columns only": (
            lambda logits, labels, n=n: _lse(logits[:, :n]) - _picked(logits, labels)
        )
        for n in (128, 256, 512)
    },
}  # fmt: skip


def _in_tiles(x: Array) -> Array:
    """Each 128 x 128 tile stays where its transpose belongs."""
    rows, columns = x.shape[0] // 128, x.shape[1] // 128
    return np.asarray(x.reshape(rows, 128, columns, 128).transpose(2, 1, 0, 3).reshape(columns * 128, rows * 128))


TASKS = {
    task.name: task
    for task in (
        Task(name="softmax", about="softmax over the last axis of x [size, 1024]", arrays=_rows, reference=_softmax,
             flops=lambda n: 5 * n * _WIDTH, check=(128, 384), ragged=200, at=(4096,), dtype="float32", wrong=_SOFTMAX_WRONG,
             inputs=lambda n, distribution, rng: {"x": _scores(n, distribution, rng)}, distributions=("late_maximum",)),
        Task(name="rmsnorm", family="normalisation",
             about="x / sqrt(mean(x ** 2) + 1e-6) * weight, x [size, 1024], weight [1, 1024]",
             arrays=_weighted, reference=rmsnorm, flops=lambda n: 4 * n * _WIDTH, check=(128, 384), ragged=200, at=(4096,),
             dtype="float32", constants=lambda n: {"eps": _EPS}, inputs=_normed("weight"), distributions=("small",),
             wrong=_RMS_WRONG),
        Task(name="layernorm", family="normalisation",
             about="(x - mean) / sqrt(variance + 1e-5) * weight + bias, x [size, 1024], weight and bias [1, 1024]",
             arrays=lambda n: {**_weighted(n), "bias": ((1, _WIDTH), FLOAT)}, reference=_layernorm,
             flops=lambda n: 7 * n * _WIDTH, check=(128, 384), ragged=200, at=(4096,), dtype="float32",
             constants=lambda n: {"eps": _LAYER_EPS}, inputs=_normed("weight", "bias"), distributions=("small",),
             wrong=_LAYER_WRONG),
        Task(name="cumsum", about="cumulative sum along the last axis of x [size, 1024]", arrays=_rows,
             reference=lambda x: np.cumsum(x, -1), flops=lambda n: n * _WIDTH, check=(128, 384), ragged=200, at=(4096,),
             dtype="float32",
             wrong=_CUMSUM_WRONG),
        Task(name="cross_entropy", about="logsumexp(logits) - logits[label] per row, logits [size, 1024], labels int32 "
             "[size, 1], out [size, 1]",
             arrays=lambda n: {"logits": ((n, _WIDTH), FLOAT), "labels": ((n, 1), "int32")}, reference=_cross_entropy,
             flops=lambda n: 4 * n * _WIDTH, check=(128, 384), ragged=200, at=(2048,), dtype="float32", inputs=_labelled,
             distributions=("late_maximum",),
             wrong=_ENTROPY_WRONG),
        Task(name="transpose", about="x.T of x [size, 1024]", arrays=_rows, reference=lambda x: x.T, flops=lambda n: 0,
             check=(128, 384), ragged=200, at=(4096,),
             wrong={"the tiles are placed, but not transposed": _in_tiles,
                    "the elements are in their old order (reshaped, not transposed)": lambda x: x.reshape(x.T.shape)}),
    )
}  # fmt: skip
