"""Functions that consist of matmuls: matmul, SwiGLU, residual + RMSNorm + matmul."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.tasks.rows import rmsnorm
from nki_hf.tasks.task import FLOAT, Task

__all__ = ["TASKS"]

Array = np.ndarray[Any, Any]
_K = 512


def _rounded(values: Array) -> Array:
    return values.astype(ml_dtypes.bfloat16).astype(values.dtype)


def _swiglu(x: Array, gate: Array, up: Array, down: Array) -> Array:
    g = x @ gate
    return np.asarray((g / (1 + np.exp(-g)) * (x @ up)) @ down)


def _swiglu_ideal(x: Array, gate: Array, up: Array, down: Array) -> Array:
    g = x @ gate
    return np.asarray(_rounded(g / (1 + np.exp(-g)) * (x @ up)) @ down)


def _scaled(shapes: dict[str, tuple[int, ...]], distribution: str, rng: np.random.Generator) -> dict[str, Array]:
    """Weights are normal with the variance of a layer's, so that no product leaves the range of the type."""
    found = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    for name, array in found.items():
        if name not in ("x", "residual"):
            array *= array.shape[0] ** -0.5
    x = found["x"]
    if distribution == "wide":
        x *= 10
    elif distribution == "outlier_key":
        x[x.shape[0] // 3] *= 100
    elif distribution == "equal":
        x[...] = x[:1, :1]
    elif distribution == "negative":
        np.negative(np.abs(x), out=x)
    return found


def _shapes_of(arrays: Any) -> Any:
    return lambda size, distribution, rng: _scaled({n: s for n, (s, _) in arrays(size).items()}, distribution, rng)


def _swiglu_arrays(n: int) -> dict[str, Any]:
    return {"x": ((n, _K), FLOAT), "gate": ((_K, 2 * _K), FLOAT), "up": ((_K, 2 * _K), FLOAT), "down": ((2 * _K, _K), FLOAT)}


def _norm_arrays(n: int) -> dict[str, Any]:
    return {"x": ((n, _K), FLOAT), "residual": ((n, _K), FLOAT), "weight": ((_K, 2 * _K), FLOAT)}


def _norm_matmul(x: Array, residual: Array, weight: Array) -> Array:
    return np.asarray(rmsnorm(x + residual, np.ones((1, _K), x.dtype)) @ weight)


TASKS = {
    task.name: task
    for task in (
        Task(
            name="matmul",
            family="matmul",
            about="a @ b, a [size, 512], b [512, size]",
            arrays=lambda n: {"a": ((n, _K), FLOAT), "b": ((_K, n), FLOAT)},
            reference=lambda a, b: a @ b,
            flops=lambda n: 2 * n * n * _K,
            check=(512, 1024),
            at=(2048,),
            axes={"a": "mk", "b": "kn", "out": "mn"},
            wrong={
                "the first tile of 128 of the contraction is missing": lambda a, b: a[:, 128:] @ b[128:],
                "the last tile of 128 of the contraction is missing": lambda a, b: a[:, :-128] @ b[:-128],
                "only the last tile of 128 of the contraction is there": lambda a, b: a[:, -128:] @ b[-128:],
                "only the first tile of 128 of the contraction is there": lambda a, b: a[:, :128] @ b[:128],
            },
        ),
        Task(
            name="swiglu",
            about="(silu(x @ gate) * (x @ up)) @ down, x [size, 512], gate and up [512, 1024], down [1024, 512]",
            arrays=_swiglu_arrays,
            reference=_swiglu,
            ideal=_swiglu_ideal,
            inputs=_shapes_of(_swiglu_arrays),
            flops=lambda n: 12 * n * _K * _K,
            check=(128, 256),
            at=(1024,),
            wrong={
                "gate and up are exchanged": lambda x, gate, up, down: _swiglu(x, up, gate, down),
                "the sigmoid is used in place of silu": lambda x, gate, up, down: (
                    ((1 / (1 + np.exp(-(x @ gate)))) * (x @ up)) @ down
                ),
            },
        ),
        Task(
            name="residual_rmsnorm_matmul",
            about="rmsnorm(x + residual) @ weight, x and residual [size, 512], weight [512, 1024]",
            arrays=_norm_arrays,
            reference=_norm_matmul,
            inputs=_shapes_of(_norm_arrays),
            ideal=lambda x, residual, weight: _rounded(rmsnorm(x + residual, np.ones((1, _K), x.dtype))) @ weight,
            flops=lambda n: 4 * n * _K * _K,
            check=(128, 256),
            at=(1024,),
            wrong={"the residual is missing": lambda x, residual, weight: _norm_matmul(x, 0 * residual, weight)},
        ),
    )
}
