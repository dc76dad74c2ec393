"""Functions that consist of matmuls: matmul, SwiGLU, residual + RMSNorm + matmul."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.tasks.norms import rmsnorm
from nki_hf.tasks.task import FLOAT, Task, rows_of

__all__ = ["TASKS", "rounded", "scaled"]

Array = np.ndarray[Any, Any]
_K = 512


def rounded(values: Array) -> Array:
    """Rounded to bfloat16, in the type that it had."""
    return values.astype(ml_dtypes.bfloat16).astype(values.dtype)


def _swiglu(x: Array, gate: Array, up: Array, down: Array) -> Array:
    g = x @ gate
    return np.asarray((g / (1 + np.exp(-g)) * (x @ up)) @ down)


def _swiglu_ideal(x: Array, gate: Array, up: Array, down: Array) -> Array:
    g = x @ gate
    return np.asarray(rounded(g / (1 + np.exp(-g)) * (x @ up)) @ down)


def scaled(
    shapes: Mapping[str, tuple[int, ...]],
    distribution: str,
    rng: np.random.Generator,
    first: tuple[str, ...] = ("x", "residual"),
) -> dict[str, Array]:
    """Unit normal arrays, the first of `first` as the distribution says; those that are not of `first` are weights, normal with
    the variance of a layer's, so that no product leaves the range of the type.
    """
    found = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    for name, array in found.items():
        if name not in first:
            array *= array.shape[-2] ** -0.5
    x = found[first[0]]
    if distribution == "wide":
        x *= 10
    elif distribution == "outlier_key":
        x[x.shape[0] // 3] *= 100
    elif distribution == "equal":
        x[...] = x[:1, :1]
    elif distribution == "negative":
        np.negative(np.abs(x), out=x)
    elif distribution == "small_rows":  # eps of a norm is as large as the mean of squares, and each row has a size of its own
        sizes = 10.0 ** rng.uniform(-4, -2, (x.shape[0], 1))
        for name in first:
            if found[name].shape[0] == len(sizes):  # a gain or a bias is one row, and stays
                found[name] *= sizes
    return found


def _shapes_of(arrays: Any) -> Any:
    return lambda size, distribution, rng: scaled({n: s for n, (s, _) in arrays(size).items()}, distribution, rng)


def _swiglu_arrays(n: int) -> dict[str, Any]:
    return {"x": ((n, _K), FLOAT), "gate": ((_K, 2 * _K), FLOAT), "up": ((_K, 2 * _K), FLOAT), "down": ((2 * _K, _K), FLOAT)}


def _norm_arrays(n: int) -> dict[str, Any]:
    return {"x": ((n, _K), FLOAT), "residual": ((n, _K), FLOAT), "weight": ((_K, 2 * _K), FLOAT)}


def _norm_matmul(x: Array, residual: Array, weight: Array) -> Array:
    return np.asarray(rmsnorm(x + residual, np.ones((1, _K), x.dtype)) @ weight)


def _gated(function: Callable[[Array], Array]) -> Callable[..., Array]:
    return lambda x, gate, up, down: np.asarray((function(x @ gate) * (x @ up)) @ down)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _half_sums(a: Array, b: Array, place: Callable[[Array, int], Array], axis: int) -> Array:
    """The product over the half of the contraction that `place` gives for each index of an axis of the output, 0 or 1."""
    halves = [left @ right for left, right in zip(np.array_split(a, 2, 1), np.array_split(b, 2, 0), strict=True)]
    size = halves[0].shape[axis]
    which = place(np.arange(size), size)
    return np.where(which[:, None] if axis == 0 else which, halves[1], halves[0])


_MATMUL_WRONG: dict[str, Callable[..., Any]] = {
    **{
        f"{which} of 128 of the contraction is {what}": (lambda a, b, part=part: a[:, part] @ b[part])
        for which, what, part in (
            ("the first tile", "missing", slice(128, None)),
            ("the last tile", "missing", slice(None, -128)),
            ("only the last tile", "there", slice(-128, None)),
            ("only the first tile", "there", slice(None, 128)),
        )
    },
    "every tile of 128 of the contraction is the first one": lambda a, b: a.shape[1] // 128 * (a[:, :128] @ b[:128]),
    **{
        f"the {which} half of the contraction counts twice, the other not at all": (
            lambda a, b, part=part: 2 * (np.split(a, 2, 1)[part] @ np.split(b, 2, 0)[part])
        )
        for part, which in enumerate(("first", "second"))
    },
    "each half of the rows has one half of the contraction, twice (partial sums that were not exchanged)": lambda a, b: (
        np.concatenate([2 * (np.split(part, 2, 1)[i] @ np.split(b, 2, 0)[i]) for i, part in enumerate(np.array_split(a, 2))])
    ),
    **{
        f"{which} of the output has one half of the contraction alone (partial sums that were not exchanged)": (
            lambda a, b, place=place, axis=axis: _half_sums(a, b, place, axis)
        )
        for which, place, axis in (
            ("each half of the rows", lambda index, size: 2 * index // size, 0),
            ("every second tile of 128 rows", lambda index, size: index // 128 % 2, 0),
            ("each half of the columns", lambda index, size: 2 * index // size, 1),
            ("every second tile of 512 columns", lambda index, size: index // 512 % 2, 1),
        )
    },
    "a is transposed": lambda a, b: a.T @ b,
    "b is transposed": lambda a, b: a @ b.T,
    "a and b are exchanged": lambda a, b: b @ a,
    "the 128 x 128 tiles of a are transposed, but stay in their places": lambda a, b: _tiles_turned(a) @ b,
    "the 128 x 128 tiles of b are transposed, but stay in their places": lambda a, b: a @ _tiles_turned(b),
    "a's rows and b's columns meet tile by tile only (the tiles beside the diagonal are missing)": lambda a, b: (
        (a @ b) * (np.arange(a.shape[0])[:, None] // 128 == np.arange(b.shape[1]) // 128)
    ),
}


def _restarted(x: Array, gate: Array, up: Array, down: Array, which: str, n: int) -> Array:
    return _swiglu(
        x,
        _first(gate, n, 1) if which == "gate" else gate,
        _first(up, n, 1) if which == "up" else up,
        _first(down, n, 0) if which == "down" else down,
    )


def _first(weight: Array, n: int, axis: int) -> Array:
    """The first `n` rows or columns of a weight in the place of all others."""
    return np.take(weight, np.arange(weight.shape[axis]) % n, axis)


def _tiles_turned(x: Array) -> Array:
    if x.shape[0] % 128 or x.shape[1] % 128:
        return np.full_like(x, np.nan)
    tiles = x.reshape(x.shape[0] // 128, 128, x.shape[1] // 128, 128)
    return tiles.transpose(0, 3, 2, 1).reshape(x.shape)


_SWIGLU_WRONG: dict[str, Callable[..., Any]] = {
    "gate and up are exchanged": lambda x, gate, up, down: _swiglu(x, up, gate, down),
    "the sigmoid is used in place of silu": _gated(_sigmoid),
    "silu is missing: the gate is linear": _gated(lambda g: g),
    "relu is used in place of silu": _gated(lambda g: np.maximum(g, 0)),
    "gelu (tanh) is used in place of silu": _gated(
        lambda g: 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
    ),
    "gelu (x * sigmoid(1.702 * x)) is used in place of silu": _gated(lambda g: g * _sigmoid(1.702 * g)),
    "the sign inside silu's exponent is wrong": _gated(lambda g: g * _sigmoid(-g)),
    "silu is applied to the product": lambda x, gate, up, down: (
        ((x @ gate) * (x @ up) * _sigmoid((x @ gate) * (x @ up))) @ down
    ),
    "up is missing": lambda x, gate, up, down: ((x @ gate) * _sigmoid(x @ gate)) @ down,
    "the gate is missing": lambda x, gate, up, down: (x @ up) @ down,
    "silu is applied twice": _gated(lambda g: g * _sigmoid(g) * _sigmoid(g * _sigmoid(g))),
    "silu is applied to up as well": lambda x, gate, up, down: (
        ((x @ gate) * _sigmoid(x @ gate) * (x @ up) * _sigmoid(x @ up)) @ down
    ),
    **{
        f"every block of {n} hidden columns has the {which} of the first": functools.partial(_restarted, which=which, n=n)
        for n in (128, 512)
        for which in ("gate", "up", "down")
    },
    "gate and up are added, not multiplied": lambda x, gate, up, down: ((x @ gate) * _sigmoid(x @ gate) + x @ up) @ down,
}

_NORM_WRONG: dict[str, Callable[..., Any]] = {
    "the residual is missing": lambda x, residual, weight: _norm_matmul(x, 0 * residual, weight),
    "x is missing": lambda x, residual, weight: _norm_matmul(0 * x, residual, weight),
    "the residual is added twice": lambda x, residual, weight: _norm_matmul(x, 2 * residual, weight),
    "x is added twice": lambda x, residual, weight: _norm_matmul(2 * x, residual, weight),
    **{
        f"eps is {eps} instead of 1e-6": lambda x, residual, weight, eps=eps: (
            rmsnorm(x + residual, np.ones((1, x.shape[1])), eps) @ weight
        )
        for eps in (0.0, 1e-12, 1e-8, 1e-7, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    },
    "the residual is subtracted": lambda x, residual, weight: _norm_matmul(x, -residual, weight),
    "the norm is missing": lambda x, residual, weight: (x + residual) @ weight,
    "the mean of squares is not under a root": lambda x, residual, weight: (
        (x + residual) / (((x + residual) ** 2).mean(-1, keepdims=True) + 1e-6) @ weight
    ),
    "the root of the mean of squares multiplies, not divides": lambda x, residual, weight: (
        (x + residual) * np.sqrt(((x + residual) ** 2).mean(-1, keepdims=True) + 1e-6) @ weight
    ),
    "the residual is added after the norm": lambda x, residual, weight: (
        (rmsnorm(x, np.ones((1, x.shape[1]))) + residual) @ weight
    ),
    "the squares are summed, not averaged": lambda x, residual, weight: _norm_matmul(x, residual, weight) / np.sqrt(x.shape[1]),
    "the mean is subtracted, as in LayerNorm": lambda x, residual, weight: _norm_matmul(
        x - x.mean(-1, keepdims=True), residual - residual.mean(-1, keepdims=True), weight
    ),
    "the norm is that of x without the residual": lambda x, residual, weight: (
        ((x + residual) / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)) @ weight
    ),
    **{
        f"the mean of squares is that of the first {n} columns only": lambda x, residual, weight, n=n: (
            rmsnorm(x + residual, np.ones((1, x.shape[1])), seen=n) @ weight
        )
        for n in (128, 256)
    },
    **{
        f"{which} of 128 of the contraction is missing": lambda x, residual, weight, part=part: (
            rmsnorm(x + residual, np.ones((1, x.shape[1])))[:, part] @ weight[part]
        )
        for which, part in (("the first tile", slice(128, None)), ("the last tile", slice(None, -128)))
    },
}


TASKS = {
    task.name: task
    for task in (
        Task(
            name="matmul",
            family="matmul",
            about="a @ b, a [size, 512], b [512, size]",
            arrays=lambda n: {"a": ((n, _K), FLOAT), "b": ((_K, n), FLOAT)},
            reference=lambda a, b: a @ b,
            ideal=lambda a, b: a @ b,
            flops=lambda n: 2 * n * n * _K,
            check=(512, 1024),
            ragged=200,
            at=(2048,),
            axes={"a": "mk", "b": "kn", "out": "mn"},
            part=rows_of("a"),
            wrong=_MATMUL_WRONG,
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
            ragged=200,
            at=(1024,),
            part=rows_of("x"),
            wrong=_SWIGLU_WRONG,
        ),
        Task(
            name="residual_rmsnorm_matmul",
            about="rmsnorm(x + residual) @ weight, x and residual [size, 512], weight [512, 1024]",
            arrays=_norm_arrays,
            reference=_norm_matmul,
            inputs=_shapes_of(_norm_arrays),
            ideal=lambda x, residual, weight: rounded(rmsnorm(x + residual, np.ones((1, _K), x.dtype))) @ weight,
            flops=lambda n: 4 * n * _K * _K,
            check=(128, 256),
            ragged=200,
            at=(1024,),
            distributions=("small_rows",),
            part=rows_of("x", "residual"),
            wrong=_NORM_WRONG,
        ),
    )
}
