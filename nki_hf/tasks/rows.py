"""Functions of rows: softmax, RMSNorm, LayerNorm, cumulative sum, cross entropy, transpose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki_hf.tasks.task import FLOAT, Task

__all__ = ["TASKS", "rmsnorm"]

Array = np.ndarray[Any, Any]
_WIDTH = 1024
_EPS = 1e-6


def _softmax(x: Array) -> Array:
    power = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(power / power.sum(-1, keepdims=True))


def rmsnorm(x: Array, weight: Array, eps: float = _EPS) -> Array:
    """`x / sqrt(mean(x ** 2) + eps) * weight` over the last axis."""
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + np.asarray(eps, x.dtype)) * weight)


def _layernorm(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + np.asarray(eps, x.dtype)) * weight + bias)


def _cross_entropy(logits: Array, labels: Array) -> Array:
    top = logits.max(-1, keepdims=True)
    lse = np.log(np.exp(logits - top).sum(-1, keepdims=True)) + top
    return np.asarray(lse - np.take_along_axis(logits, labels.astype(np.int64), -1))


def _labelled(size: int, distribution: str, rng: np.random.Generator) -> Mapping[str, Array]:
    logits = rng.standard_normal((size, _WIDTH)) * (10 if distribution == "wide" else 1)
    if distribution == "outlier_key":
        logits[:, _WIDTH // 3] += 50
    elif distribution == "equal":
        logits[...] = logits[:1, :1]
    elif distribution == "negative":
        logits = -np.abs(logits)
    return {"logits": logits, "labels": rng.integers(0, _WIDTH, (size, 1))}


def _rows(size: int) -> dict[str, Any]:
    return {"x": ((size, _WIDTH), FLOAT)}


def _weighted(size: int) -> dict[str, Any]:
    return {**_rows(size), "weight": ((1, _WIDTH), FLOAT)}


TASKS = {
    task.name: task
    for task in (
        Task(name="softmax", about="softmax over the last axis of x [size, 1024]", arrays=_rows, reference=_softmax,
             flops=lambda n: 5 * n * _WIDTH, check=(128, 384), at=(4096,), dtype="float32",
             wrong={"the rows are not divided by their sums": lambda x: np.exp(x - x.max(-1, keepdims=True)),
                    "the softmax runs over the rows instead of the columns": lambda x: _softmax(x.T).T}),
        Task(name="rmsnorm", family="normalisation",
             about="x / sqrt(mean(x ** 2) + 1e-6) * weight, x [size, 1024], weight [1, 1024]",
             arrays=_weighted, reference=rmsnorm, flops=lambda n: 4 * n * _WIDTH, check=(128, 384), at=(4096,),
             dtype="float32", constants=lambda n: {"eps": _EPS},
             wrong={"the weight is missing": lambda x, weight, eps=_EPS: rmsnorm(x, np.ones_like(weight), eps),
                    "the squares are summed, not averaged": lambda x, weight, eps=_EPS: rmsnorm(x, weight, eps) / _WIDTH**0.5,
                    "the mean of squares is not under a root": (
                        lambda x, weight, eps=_EPS: x / ((x * x).mean(-1, keepdims=True) + eps) * weight)}),
        Task(name="layernorm", family="normalisation",
             about="(x - mean) / sqrt(variance + 1e-5) * weight + bias, x [size, 1024], weight and bias "
             "[1, 1024]", arrays=lambda n: {**_weighted(n), "bias": ((1, _WIDTH), FLOAT)}, reference=_layernorm,
             flops=lambda n: 7 * n * _WIDTH, check=(128, 384), at=(4096,), dtype="float32", constants=lambda n: {"eps": 1e-5},
             wrong={"the mean is not subtracted": lambda x, weight, bias, eps=1e-5: rmsnorm(x, weight, eps) + bias,
                    "the bias is missing": lambda x, weight, bias, eps=1e-5: _layernorm(x, weight, 0 * bias, eps)}),
        Task(name="cumsum", about="cumulative sum along the last axis of x [size, 1024]", arrays=_rows,
             reference=lambda x: np.cumsum(x, -1), flops=lambda n: n * _WIDTH, check=(128, 384), at=(4096,), dtype="float32",
             wrong={"the sums run down the rows instead of along them": lambda x: np.cumsum(x, 0),
                    "the sum is exclusive: an element is not in its own sum": lambda x: np.cumsum(x, -1) - x}),
        Task(name="cross_entropy", about="logsumexp(logits) - logits[label] per row, logits [size, 1024], labels int32 "
             "[size, 1], out [size, 1]",
             arrays=lambda n: {"logits": ((n, _WIDTH), FLOAT), "labels": ((n, 1), "int32")}, reference=_cross_entropy,
             flops=lambda n: 4 * n * _WIDTH, check=(128, 384), at=(2048,), dtype="float32", inputs=_labelled),
        Task(name="transpose", about="x.T of x [size, 1024]", arrays=_rows, reference=lambda x: x.T, flops=lambda n: 0,
             check=(128, 384), at=(4096,), wrong={"the tiles are placed, but not transposed": lambda x: x.reshape(x.T.shape)}),
    )
}  # fmt: skip
