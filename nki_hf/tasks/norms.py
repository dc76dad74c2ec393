"""RMSNorm and LayerNorm over the last axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nki_hf.tasks.row_parts import WIDTH, kept, levels, narrow, other_rows, row_arrays
from nki_hf.tasks.task import FLOAT, Task

__all__ = ["LAYER_WRONG", "RMS_WRONG", "TASKS", "rmsnorm"]

Array = np.ndarray[Any, Any]
_EPS = 1e-6
_LAYER_EPS = 1e-5


def rmsnorm(x: Array, weight: Array, eps: float = _EPS, *, seen: int | None = None) -> Array:
    """`x / sqrt(mean(x ** 2) + eps) * weight` over the last axis; `seen` (a mistake): the mean is that of the first columns."""
    mean = (x[:, :seen] ** 2).mean(-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean + np.asarray(eps, x.dtype)) * weight)


def _scaled(x: Array, mean: Array, weight: Array, eps: float) -> Array:
    return np.asarray(x / np.sqrt(mean + eps) * weight)


def _squares(x: Array) -> Array:
    return np.asarray((x * x).mean(-1, keepdims=True))


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


def _normed(*names: str) -> Callable[[int, str, np.random.Generator], Mapping[str, Array]]:
    """Inputs of a norm: the usual ones, `small`, where eps is as large as the mean of squares (rows of different sizes),
    and `uneven_rows`, each of a size of its own.
    """

    def inputs(size: int, distribution: str, rng: np.random.Generator) -> Mapping[str, Array]:
        x = rng.standard_normal((size, WIDTH)) * (10.0 if distribution == "wide" else 1.0)
        if distribution == "outlier_key":
            x[size // 3] *= 100
        elif distribution == "small":
            x *= 10.0 ** rng.uniform(-4, -2, (size, 1))
        elif distribution == "uneven_rows":
            x *= 2 ** levels(size, rng)
        elif distribution == "equal":
            x = np.repeat(x[:, :1], WIDTH, 1) + 1e-2 * x
        elif distribution == "negative":
            x = -np.abs(x)
        return {"x": x, **{name: rng.standard_normal((1, WIDTH)) for name in names}}

    return inputs


def _weighted(size: int) -> dict[str, Any]:
    return {**row_arrays(size), "weight": ((1, WIDTH), FLOAT)}


RMS_WRONG: dict[str, Callable[..., Any]] = {
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
        x, kept(_squares(x)), weight, eps
    ),
    **{
        f"the mean of squares is that of the {words}": lambda x, weight, eps=_EPS, which=which: _scaled(
            x, other_rows(_squares(x), which), weight, eps
        )
        for words, which in (("first tile of 128 rows", "first"), ("tile of 128 rows before", "before"))
    },
    "the squares are rounded to bfloat16": lambda x, weight, eps=_EPS: _scaled(
        x, narrow(x * x).mean(-1, keepdims=True), weight, eps
    ),
    "the mean of squares is rounded to bfloat16": lambda x, weight, eps=_EPS: _scaled(x, narrow(_squares(x)), weight, eps),
    "the inverse root is rounded to bfloat16": lambda x, weight, eps=_EPS: x * narrow(1 / np.sqrt(_squares(x) + eps)) * weight,
    "the mean is squared, not the squares averaged": lambda x, weight, eps=_EPS: _scaled(x, _mean(x) ** 2, weight, eps),
    "eps is subtracted": lambda x, weight, eps=_EPS: _scaled(x, np.maximum(_squares(x) - eps, 1e-12), weight, 0.0),
    "one is added to the weight": lambda x, weight, eps=_EPS: rmsnorm(x, 1 + weight, eps),
    "eps is missing": lambda x, weight, eps=_EPS: rmsnorm(x, weight, 0.0),
    "eps is added to the sum of squares, before it is divided by the width": lambda x, weight, eps=_EPS: rmsnorm(
        x, weight, eps / x.shape[-1]
    ),
    "eps is added after the root": lambda x, weight, eps=_EPS: x / (np.sqrt((x * x).mean(-1, keepdims=True)) + eps) * weight,
    **{
        f"eps is {other} instead of 1e-6": lambda x, weight, eps=_EPS, other=other: rmsnorm(x, weight, other)
        for other in (1e-12, 1e-8, 1e-7, 1e-4, 1e-3, 1e-2, 1e-1)
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


LAYER_WRONG: dict[str, Callable[..., Any]] = {
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
    "eps is added to the sum of squares, before it is divided by the width": lambda x, weight, bias, eps=_LAYER_EPS: _layernorm(
        x, weight, bias, eps / x.shape[-1]
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
            other_rows(_mean(x), which) if both != "variance" else _mean(x),
            other_rows(_variance(x), which) if both != "mean" else _variance(x),
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
        x, weight, bias, eps, _mean(x), narrow((x - _mean(x)) ** 2).mean(-1, keepdims=True)
    ),
    "mean and variance are rounded to bfloat16": lambda x, weight, bias, eps=_LAYER_EPS: _statistics(
        x, weight, bias, eps, narrow(_mean(x)), narrow(_variance(x))
    ),
    "the bias is added before the weight": lambda x, weight, bias, eps=_LAYER_EPS: _layernorm(x, weight, bias * weight, eps),
    "weight and bias are exchanged": lambda x, weight, bias, eps=_LAYER_EPS: _layernorm(x, bias, weight, eps),
    "eps is missing": lambda x, weight, bias, eps=_LAYER_EPS: _layernorm(x, weight, bias, 0.0),
    **{
        f"eps is {other} instead of 1e-5": lambda x, weight, bias, eps=_LAYER_EPS, other=other: _layernorm(
            x, weight, bias, other
        )
        for other in (1e-12, 1e-8, 1e-7, 1e-4, 1e-3, 1e-2, 1e-1)
    },
    "eps is that of RMSNorm, 1e-6": lambda x, weight, bias, eps=_LAYER_EPS: _layernorm(x, weight, bias, _EPS),
    "the variance is not under a root": lambda x, weight, bias, eps=_LAYER_EPS: (
        (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + eps) * weight + bias
    ),
    "mean and variance run over the rows instead of the columns": lambda x, weight, bias, eps=_LAYER_EPS: (
        (x - x.mean(0, keepdims=True)) / np.sqrt(x.var(0, keepdims=True) + eps) * weight + bias
    ),
}


_ONE_PASS = (
    "the variance is a mean of squares less a squared mean, which loses digits where the mean is large beside the spread (take "
    "it of x - mean, or bn_stats)"
)
_ORDERS = 32
"""Roundings of float32 by which the mean of 1,024 squares may be off: the root of their number, for sums in any order."""


def _one_pass(output: Array, dtype: str, *, x: Array, weight: Array, bias: Array, eps: float) -> dict[str, Array]:
    """The constant in the root that stands for what such a variance loses, at most `_ORDERS` roundings of the mean of squares.

    Autocomp's sols/trn-tutorial-nki2/1_layernorm_ref.py computes so, and Flax by default (use_fast_variance).
    """
    reference = _layernorm(x, weight, bias, eps) - bias
    own = ((output - bias) * reference).sum(-1, keepdims=True) / (reference * reference).sum(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    most = _ORDERS * 2.0**-24 * (x * x).mean(-1, keepdims=True)
    lost = np.clip((variance + eps) / own**2 - variance - eps, -most, most)
    return {"eps": np.maximum(eps + lost, 1e-30 - variance)}


TASKS = {
    task.name: task
    for task in (
        Task(name="rmsnorm", family="normalisation",
             about="x / sqrt(mean(x ** 2) + 1e-6) * weight, x [size, 1024], weight [1, 1024]",
             arrays=_weighted, reference=rmsnorm, flops=lambda n: 4 * n * WIDTH, check=(128, 384), ragged=200, at=(4096,),
             dtype="float32", constants=lambda n: {"eps": _EPS}, inputs=_normed("weight"),
             distributions=("small", "uneven_rows"), wrong=RMS_WRONG),
        Task(name="layernorm", family="normalisation",
             about="(x - mean) / sqrt(variance + 1e-5) * weight + bias, x [size, 1024], weight and bias [1, 1024]",
             arrays=lambda n: {**_weighted(n), "bias": ((1, WIDTH), FLOAT)}, reference=_layernorm,
             flops=lambda n: 7 * n * WIDTH, check=(128, 384), ragged=200, at=(4096,), dtype="float32",
             constants=lambda n: {"eps": _LAYER_EPS}, inputs=_normed("weight", "bias"),
             distributions=("small", "uneven_rows"), wrong=LAYER_WRONG, accepted={_ONE_PASS: _one_pass}),
    )
}  # fmt: skip
