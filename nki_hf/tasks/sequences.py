"""Functions along a sequence: RoPE, conv1d, selective scan; and AdamW, which is element by element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def _dilated(x: Array, weight: Array, by: int) -> Array:
    padded = np.concatenate([np.zeros((x.shape[0], 3 * by), x.dtype), x], -1)
    return np.asarray(sum(weight[:, j : j + 1] * padded[:, by * j : by * j + x.shape[1]] for j in range(4)))


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


def _adamw(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, *, lr: float = 1e-3, eps: float = 1e-8,
    weight_decay: float = 0.01, decoupled: bool = True, betas: tuple[float, float] = _BETAS, squared: bool = True,
    inside: bool = False, shares: tuple[float, float] = (1 - _BETAS[0], 1 - _BETAS[1]), corrected: bool = False,
    update: str = "m", after: bool = False,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """One step; every option but the first three is a mistake."""
    if not decoupled:
        grad = grad + weight_decay * param
    if betas != _BETAS:
        shares = 1 - betas[0], 1 - betas[1]
    m = betas[0] * exp_avg + shares[0] * grad
    v = betas[1] * exp_avg_sq + shares[1] * (grad * grad if squared else grad)
    top, bottom = {"m": (m, v), "grad": (grad, v), "old": (exp_avg, exp_avg_sq)}[update]
    if corrected:  # as in the first step
        top, bottom = top / (1 - betas[0]), bottom / (1 - betas[1])
    bottom = np.maximum(bottom, 0)
    step = lr * top / (np.sqrt(bottom + eps) if inside else np.sqrt(bottom) + eps)
    shrunk = 1 - lr * weight_decay * decoupled
    return (param - step) * shrunk if after else param * shrunk - step, m, v


def _moments(size: int, distribution: str, rng: np.random.Generator) -> Mapping[str, Array]:
    wide, small = 10 if distribution == "wide" else 1, 1e-8 if distribution == "small" else 1.0
    found = {name: rng.standard_normal((size, 512)) * wide for name in ("param", "grad", "exp_avg")}
    found["grad"] *= small
    found["exp_avg"] *= small
    return {**found, "exp_avg_sq": (rng.standard_normal((size, 512)) ** 2 * wide + 1e-3) * small * small}


_HALVES = slice(None, None, 2), slice(1, None, 2)


def _pairs(x: Array, cos: Array, sin: Array) -> Array:
    """Neighbouring elements as pairs, each turned by its angle."""
    half = x.shape[-1] // 2
    (even, odd), c, s = (x[:, part] for part in _HALVES), cos[:, :half], sin[:, :half]
    return np.stack([even * c - odd * s, odd * c + even * s], -1).reshape(x.shape)


def _turned(x: Array) -> Array:
    half = x.shape[-1] // 2
    return np.concatenate([x[:, half:], x[:, :half]], -1)


_ROPE_WRONG: dict[str, Callable[..., Any]] = {
    "the rotated half has the other sign": lambda x, cos, sin: _rope(x, cos, -sin),
    "the halves are exchanged without the sign": lambda x, cos, sin: x * cos + _turned(x) * sin,
    "the halves are not exchanged": lambda x, cos, sin: x * cos + x * sin,
    "the halves are not exchanged, the first with the other sign": lambda x, cos, sin: (
        x * cos + np.concatenate([-x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]], -1) * sin
    ),
    "sine and cosine are exchanged": lambda x, cos, sin: _rope(x, sin, cos),
    "the sine's part is missing": lambda x, cos, sin: x * cos,
    "the cosine's part is missing": lambda x, cos, sin: _rope(x, 0 * cos, sin),
    "neighbouring elements are pairs, not the halves (interleaved)": _pairs,
    "every row has the angle of row 0": lambda x, cos, sin: _rope(x, cos[:1], sin[:1]),
    "each row has the angles of the row before": lambda x, cos, sin: _rope(x, np.roll(cos, 1, 0), np.roll(sin, 1, 0)),
    "each row has the angles of the row after": lambda x, cos, sin: _rope(x, np.roll(cos, -1, 0), np.roll(sin, -1, 0)),
    "every tile of 128 rows has the angles of the first": lambda x, cos, sin: _rope(
        x, *(np.resize(part[:128], part.shape) for part in (cos, sin))
    ),
    "only the first half is turned": lambda x, cos, sin: np.concatenate(
        [_rope(x, cos, sin)[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]], -1
    ),
}


def _shifted(x: Array, by: int) -> Array:
    """Columns moved to the right by `by` (left if negative), zeros behind."""
    out = np.zeros_like(x)
    if by >= 0:
        out[:, by:] = x[:, : x.shape[1] - by]
    else:
        out[:, :by] = x[:, -by:]
    return out


def _taps(weight: Array, *kept: int) -> Array:
    return weight * np.isin(np.arange(weight.shape[1]), kept)


_CONV_WRONG: dict[str, Callable[..., Any]] = {
    "the taps are in reverse order": lambda x, weight: _conv1d(x, weight[:, ::-1]),
    "the output is one step late": lambda x, weight: _shifted(_conv1d(x, weight), 1),
    "the output is one step early": lambda x, weight: _conv1d(np.pad(x, ((0, 0), (0, 1))), weight)[:, 1:],
    "the output sees the future: tap j meets x[t + j]": lambda x, weight: _conv1d(np.pad(x, ((0, 0), (0, 3))), weight)[:, 3:],
    "the taps are reversed and see the future": lambda x, weight: _conv1d(x[:, ::-1], weight)[:, ::-1],
    "the first tap is missing": lambda x, weight: _conv1d(x, _taps(weight, 1, 2, 3)),
    "the last tap is missing": lambda x, weight: _conv1d(x, _taps(weight, 0, 1, 2)),
    "only the last tap is there": lambda x, weight: _conv1d(x, _taps(weight, 3)),
    "every channel has the taps of channel 0": lambda x, weight: _conv1d(x, np.repeat(weight[:1], len(weight), 0)),
    "every channel has the taps of the next one": lambda x, weight: _conv1d(x, np.roll(weight, -1, 0)),
    "every channel has the taps of the one before": lambda x, weight: _conv1d(x, np.roll(weight, 1, 0)),
    "the taps are two steps apart (dilated)": lambda x, weight: _dilated(x, weight, 2),
    "the weights are missing": lambda x, weight: _conv1d(x, np.ones_like(weight)),
    "the beginning is padded with the end of the row, not with zeros": lambda x, weight: _conv1d(
        np.concatenate([x[:, -3:], x], -1), weight
    )[:, 3:],
    **{
        f"each {n} columns begin with zeros (those before them are missing)": (
            lambda x, weight, n=n: np.concatenate(
                [_conv1d(x[:, start : start + n], weight) for start in range(0, x.shape[1], n)], -1
            )
        )
        for n in (128, 256, 512)
    },
}

_SCAN_WRONG: dict[str, Callable[..., Any]] = {
    "the decay is missing": lambda decay, x: np.cumsum(x, -1),
    "the state is missing: the output is x": lambda decay, x: x,
    "x is decayed with the state: decay * (state + x)": lambda decay, x: decay * _scan(_shifted(decay, 1), x),
    "the decay of the step before is used": lambda decay, x: _scan(_shifted(decay, 1), x),
    "the decay of the next step is used": lambda decay, x: _scan(_shifted(decay, -1), x),
    "the output is the state before its step": lambda decay, x: _shifted(_scan(decay, x), 1),
    "decay and x are exchanged": lambda decay, x: _scan(x, decay),
    "the scan runs from the end": lambda decay, x: _scan(decay[:, ::-1], x[:, ::-1])[:, ::-1],
    "the decay is 1 - decay": lambda decay, x: _scan(1 - decay, x),
    **{
        f"the state starts anew every {n} columns (a carry is missing)": (
            lambda decay, x, n=n: _scan(decay * (np.arange(x.shape[1]) % n != 0), x)
        )
        for n in (64, 128, 256, 512)
    },
}

_ADAMW_WRONG: dict[str, Callable[..., Any]] = {
    "the weight decay goes through the moments (Adam with L2)": lambda **a: _adamw(**a, decoupled=False),
    "the weight decay is missing": lambda **a: _adamw(**a, weight_decay=0.0),
    "the weight decay is not multiplied by the learning rate": lambda **a: _adamw(**a, weight_decay=10.0),
    "the weight decay comes after the step": lambda **a: _adamw(**a, after=True),
    "the moments are corrected for their bias (as in the first step)": lambda **a: _adamw(**a, corrected=True),
    "the weight decay has the other sign": lambda **a: _adamw(**a, weight_decay=-0.01),
    "the gradient is not multiplied by 1 - beta1": lambda **a: _adamw(**a, shares=(1.0, 1 - _BETAS[1])),
    "the squared gradient is not multiplied by 1 - beta2": lambda **a: _adamw(**a, shares=(1 - _BETAS[0], 1.0)),
    "the betas are exchanged": lambda **a: _adamw(**a, betas=_BETAS[::-1]),
    "the gradient is not squared in exp_avg_sq": lambda **a: _adamw(**a, squared=False),
    "eps is under the root": lambda **a: _adamw(**a, inside=True),
    "eps is missing": lambda **a: _adamw(**a, eps=0.0),
    "the step goes up: its sign is wrong": lambda **a: _adamw(**a, lr=-1e-3, weight_decay=-0.01),
    "the learning rate is missing": lambda **a: _adamw(**a, lr=1.0, weight_decay=1e-5),
    "the step follows the gradient, not exp_avg": lambda **a: _adamw(**a, update="grad"),
    "the step follows the moments before they are updated": lambda **a: _adamw(**a, update="old"),
    "beta1 and 1 - beta1 are exchanged": lambda **a: _adamw(**a, betas=(1 - _BETAS[0], _BETAS[1])),
    "beta2 and 1 - beta2 are exchanged": lambda **a: _adamw(**a, betas=(_BETAS[0], 1 - _BETAS[1])),
}


TASKS = {
    task.name: task
    for task in (
        Task(name="rope", about="x * cos + rotate_half(x) * sin, all [size, 128]",
             arrays=lambda n: dict.fromkeys(("x", "cos", "sin"), ((n, _D), FLOAT)), reference=_rope, inputs=_angles,
             flops=lambda n: 3 * n * _D, check=(128, 384), ragged=200, at=(4096,), dtype="float32",
             wrong=_ROPE_WRONG),
        Task(name="conv1d", about="causal depthwise convolution with 4 taps, x [128, size], weight [128, 4]",
             arrays=lambda n: {"x": ((128, n), FLOAT), "weight": ((128, 4), FLOAT)}, reference=_conv1d,
             flops=lambda n: 8 * 128 * n, check=(512, 1024), ragged=700, at=(4096,), dtype="float32",
             wrong=_CONV_WRONG),
        Task(name="selective_scan", about="state = decay[:, t] * state + x[:, t], out[:, t] = state; all [128, size]",
             arrays=lambda n: dict.fromkeys(("decay", "x"), ((128, n), FLOAT)), reference=_scan, inputs=_decays,
             flops=lambda n: 2 * 128 * n, check=(512, 1024), ragged=700, at=(4096,), dtype="float32", wrong=_SCAN_WRONG),
        Task(name="adamw", about="one step of AdamW: param, grad, exp_avg, exp_avg_sq [size, 512] -> the new param, exp_avg, "
             "exp_avg_sq; betas 0.9, 0.999, lr 1e-3, eps 1e-8, weight_decay 0.01, no bias correction",
             arrays=lambda n: dict.fromkeys(("param", "grad", "exp_avg", "exp_avg_sq"), ((n, 512), FLOAT)),
             reference=lambda param, grad, exp_avg, exp_avg_sq: _adamw(param, grad, exp_avg, exp_avg_sq), inputs=_moments,
             flops=lambda n: 12 * n * 512, check=(128, 256), ragged=200, at=(2048,), dtype="float32",
             outputs=("param", "exp_avg", "exp_avg_sq"), distributions=("small",), least_rtol=2e-6, wrong=_ADAMW_WRONG),
    )
}  # fmt: skip
