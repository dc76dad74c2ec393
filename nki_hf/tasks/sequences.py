"""Functions along a sequence: RoPE, conv1d, selective scan; and AdamW, which is element by element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki_hf.tasks.task import FLOAT, Task

__all__ = ["TASKS"]

Array = np.ndarray[Any, Any]
_D = 128
_BETAS = (0.9, 0.999)


def _rope(x: Array, cos: Array, sin: Array) -> Array:
    half = x.shape[-1] // 2
    return np.asarray(x * cos + np.concatenate([-x[:, half:], x[:, :half]], -1) * sin)


def _angles(size: int, distribution: str, rng: np.random.Generator) -> Mapping[str, Array]:
    x = rng.standard_normal((size, _D)) * (10 if distribution == "wide" else 1)
    x = -np.abs(x) if distribution == "negative" else np.full_like(x, x[0, 0]) if distribution == "equal" else x
    first = int(rng.integers(0, 4096))
    angles = np.arange(first, first + size)[:, None] * 10000.0 ** (-np.arange(_D // 2) / (_D // 2))
    angles = np.concatenate([angles, angles], -1)
    return {"x": x, "cos": np.cos(angles), "sin": np.sin(angles)}


def _conv1d(x: Array, weight: Array) -> Array:
    """Each row (channel) with its own 4 taps, output t sums weight[:, j] * x[t - 3 + j]."""
    padded = np.concatenate([np.zeros((x.shape[0], 3), x.dtype), x], -1)
    return np.asarray(sum(weight[:, j : j + 1] * padded[:, j : j + x.shape[1]] for j in range(4)))


def _scan(decay: Array, x: Array) -> Array:
    state, out = np.zeros(x.shape[0], x.dtype), np.empty_like(x)
    for t in range(x.shape[1]):
        state = decay[:, t] * state + x[:, t]
        out[:, t] = state
    return out


def _decays(size: int, distribution: str, rng: np.random.Generator) -> Mapping[str, Array]:
    x = rng.standard_normal((128, size)) * (10 if distribution == "wide" else 1)
    x = -np.abs(x) if distribution == "negative" else np.full_like(x, x[0, 0]) if distribution == "equal" else x
    return {"decay": rng.uniform(0.5, 1, (128, size)), "x": x}


def _adamw(param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, lr: float = 1e-3, eps: float = 1e-8,
           weight_decay: float = 0.01, decoupled: bool = True) -> tuple[Array, Array, Array]:  # fmt: skip
    if not decoupled:
        grad = grad + weight_decay * param
    m = _BETAS[0] * exp_avg + (1 - _BETAS[0]) * grad
    v = _BETAS[1] * exp_avg_sq + (1 - _BETAS[1]) * grad * grad
    return param * (1 - lr * weight_decay * decoupled) - lr * m / (np.sqrt(v) + eps), m, v


def _moments(size: int, distribution: str, rng: np.random.Generator) -> Mapping[str, Array]:
    wide = 10 if distribution == "wide" else 1
    found = {name: rng.standard_normal((size, 512)) * wide for name in ("param", "grad", "exp_avg")}
    return {**found, "exp_avg_sq": rng.standard_normal((size, 512)) ** 2 * wide + 1e-3}


TASKS = {
    task.name: task
    for task in (
        Task(name="rope", about="x * cos + rotate_half(x) * sin, all [size, 128]",
             arrays=lambda n: dict.fromkeys(("x", "cos", "sin"), ((n, _D), FLOAT)), reference=_rope, inputs=_angles,
             flops=lambda n: 3 * n * _D, check=(128, 384), at=(4096,), dtype="float32",
             wrong={"the rotated half has the other sign": lambda x, cos, sin: _rope(x, cos, -sin)}),
        Task(name="conv1d", about="causal depthwise convolution with 4 taps, x [128, size], weight [128, 4]",
             arrays=lambda n: {"x": ((128, n), FLOAT), "weight": ((128, 4), FLOAT)}, reference=_conv1d,
             flops=lambda n: 8 * 128 * n, check=(512, 1024), at=(4096,), dtype="float32",
             wrong={"the taps are in reverse order": lambda x, weight: _conv1d(x, weight[:, ::-1])}),
        Task(name="selective_scan", about="state = decay[:, t] * state + x[:, t], out[:, t] = state; all [128, size]",
             arrays=lambda n: dict.fromkeys(("decay", "x"), ((128, n), FLOAT)), reference=_scan, inputs=_decays,
             flops=lambda n: 2 * 128 * n, check=(512, 1024), at=(4096,), dtype="float32"),
        Task(name="adamw", about="one step of AdamW: param, grad, exp_avg, exp_avg_sq [size, 512] -> the new param, exp_avg, "
             "exp_avg_sq; betas 0.9, 0.999, lr 1e-3, eps 1e-8, weight_decay 0.01, no bias correction",
             arrays=lambda n: dict.fromkeys(("param", "grad", "exp_avg", "exp_avg_sq"), ((n, 512), FLOAT)),
             reference=lambda param, grad, exp_avg, exp_avg_sq: _adamw(param, grad, exp_avg, exp_avg_sq), inputs=_moments,
             flops=lambda n: 12 * n * 512, check=(128, 256), at=(2048,), dtype="float32",
             outputs=("param", "exp_avg", "exp_avg_sq"),
             wrong={"the weight decay goes through the moments (Adam with L2)": lambda **a: _adamw(**a, decoupled=False),
                    "the weight decay is missing": lambda **a: _adamw(**a, weight_decay=0.0)}),
    )
}  # fmt: skip
