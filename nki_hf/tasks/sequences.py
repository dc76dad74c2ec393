"""Functions along a sequence: RoPE, conv1d, selective scan; and AdamW, which is element by element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
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


def _scan(decay: Array, x: Array, *, first: Array | float = 0.0, narrow: bool = False) -> Array:
    """The states; `first` (before the first step) and `narrow` (rounded to bfloat16 at every step) are mistakes."""
    state, out = np.zeros(x.shape[0], x.dtype) + first, np.empty_like(x)
    for t in range(x.shape[1]):
        state = decay[:, t] * state + x[:, t]
        if narrow:
            state = state.astype(ml_dtypes.bfloat16).astype(x.dtype)
        out[:, t] = state
    return out


def _carried(decay: Array, x: Array, n: int, carry: Callable[[Array, Array, int, int], Array]) -> Array:
    """Blocks of `n` columns that begin with what `carry` makes of the states so far, x, the block's first column and n."""
    out = np.empty_like(x)
    for start in range(0, x.shape[1], n):
        part = slice(start, start + n)
        out[:, part] = _scan(decay[:, part], x[:, part], first=carry(out, x, start, n) if start else 0.0)
    return out


def _undecayed(decay: Array, x: Array, n: int) -> Array:
    out = np.empty_like(x)
    for start in range(0, x.shape[1], n):
        part = slice(start, start + n)
        out[:, part] = _scan(decay[:, part], x[:, part]) + (out[:, start - 1 : start] if start else 0.0)
    return out


def _decays(size: int, distribution: str, rng: np.random.Generator) -> Mapping[str, Array]:
    x = rng.standard_normal((128, size)) * (10 if distribution == "wide" else 1)
    x = -np.abs(x) if distribution == "negative" else np.full_like(x, x[0, 0]) if distribution == "equal" else x
    return {"decay": rng.uniform(0.5, 1, (128, size)), "x": x}


def _adamw(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, *, lr: float = 1e-3, eps: float = 1e-8,
    weight_decay: float = 0.01, decoupled: bool = True, betas: tuple[float, float] = _BETAS, squared: bool = True,
    inside: bool = False, shares: tuple[float, float] = (1 - _BETAS[0], 1 - _BETAS[1]), corrected: bool = False,
    update: str = "m", after: bool = False, power: Callable[[Array], Array] | None = None, root: float = 0.5,
    corrections: tuple[bool, bool] = (False, False), of_m: Callable[[Array], Array] | None = None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """One step; every option but the first three is a mistake."""
    if not decoupled:
        grad = grad + weight_decay * param
    if betas != _BETAS:
        shares = 1 - betas[0], 1 - betas[1]
    m = betas[0] * exp_avg + shares[0] * grad
    v = betas[1] * exp_avg_sq + shares[1] * (power(grad) if power else grad * grad if squared else grad)
    top, bottom = {
        "m": (m, v), "grad": (grad, v), "old": (exp_avg, exp_avg_sq), "old m": (exp_avg, v), "old v": (m, exp_avg_sq),
        "g2": (m, grad * grad), "none": (m, np.ones_like(v)), "sign": (np.sign(m), np.ones_like(v)),
    }[update]  # fmt: skip
    if corrected or corrections[0]:  # as in the first step
        top = top / (1 - betas[0])
    if corrected or corrections[1]:
        bottom = bottom / (1 - betas[1])
    top = of_m(top) if of_m else top
    bottom = np.maximum(bottom, 0)
    step = lr * top / ((bottom + eps) ** root if inside else bottom**root + eps)
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


def _halved(x: Array, part: int) -> Array:
    """The first (0) or second (1) half of the columns, zeros in the other."""
    return x * (np.arange(x.shape[1]) // (x.shape[1] // 2) == part)


def _in_place(x: Array, cos: Array, sin: Array) -> Array:
    half = x.shape[1] // 2
    first = x[:, :half] * cos[:, :half] - x[:, half:] * sin[:, :half]
    return np.concatenate([first, x[:, half:] * cos[:, half:] + first * sin[:, half:]], -1)


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
    "neighbouring elements are pairs, not the halves (interleaved), with the angles of their columns": lambda x, cos, sin: (
        x * cos + np.stack([-x[:, 1::2], x[:, ::2]], -1).reshape(x.shape) * sin
    ),
    **{
        f"the {which} half has no part from the sine": lambda x, cos, sin, part=part: _rope(x, cos, _halved(sin, part))
        for which, part in (("first", 1), ("second", 0))
    },
    **{
        f"the {which} half has no part from the cosine": lambda x, cos, sin, part=part: _rope(x, _halved(cos, part), sin)
        for which, part in (("first", 1), ("second", 0))
    },
    **{
        f"the sine's part of the {which} half has the other sign": lambda x, cos, sin, part=part: _rope(
            x, cos, 2 * _halved(sin, part) - sin
        )
        for which, part in (("first", 1), ("second", 0))
    },
    "only the second half is turned": lambda x, cos, sin: np.concatenate(
        [x[:, : x.shape[1] // 2], _rope(x, cos, sin)[:, x.shape[1] // 2 :]], -1
    ),
    "the second half is turned with the first half's result": lambda x, cos, sin: _in_place(x, cos, sin),
    "it is turned twice": lambda x, cos, sin: _rope(_rope(x, cos, sin), cos, sin),
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


def _narrow_conv(x: Array, weight: Array) -> Array:
    padded, out = np.concatenate([np.zeros((x.shape[0], 3), x.dtype), x], -1), np.zeros_like(x)
    for j in range(4):
        out = (out + weight[:, j : j + 1] * padded[:, j : j + x.shape[1]]).astype(ml_dtypes.bfloat16).astype(x.dtype)
    return out


def _tiled_conv(x: Array, weight: Array, n: int, by: int) -> Array:
    """Blocks of `n` columns whose first three inputs, those before the block, are `by` columns off."""
    out = _conv1d(x, weight)
    for start in range(n, x.shape[1], n):
        before = x[:, start - 3 + by : start + by]
        out[:, start : start + 3] = _conv1d(np.concatenate([before, x[:, start : start + 3]], -1), weight)[:, 3:]
    return out


_CONV_WRONG: dict[str, Callable[..., Any]] = {
    "the taps are in reverse order": lambda x, weight: _conv1d(x, weight[:, ::-1]),
    "the output is one step late": lambda x, weight: _shifted(_conv1d(x, weight), 1),
    "the output is one step early": lambda x, weight: _conv1d(np.pad(x, ((0, 0), (0, 1))), weight)[:, 1:],
    **{
        f"the output is {words} steps early": lambda x, weight, by=by: _conv1d(np.pad(x, ((0, 0), (0, by))), weight)[:, by:]
        for words, by in (("two", 2), ("three", 3))
    },
    **{
        f"the output is {words} steps late": lambda x, weight, by=by: _shifted(_conv1d(x, weight), by)
        for words, by in (("two", 2), ("three", 3))
    },
    "the beginning is padded with the first element, not with zeros": lambda x, weight: _conv1d(
        np.concatenate([np.repeat(x[:, :1], 3, 1), x], -1), weight
    )[:, 3:],
    "the beginning is padded with its mirror image, not with zeros": lambda x, weight: _conv1d(
        np.concatenate([x[:, 3:0:-1], x], -1), weight
    )[:, 3:],
    "the beginning is padded with ones, not with zeros": lambda x, weight: _conv1d(
        np.concatenate([np.ones_like(x[:, :3]), x], -1), weight
    )[:, 3:],
    "the first three outputs are missing": lambda x, weight: _conv1d(x, weight) * (np.arange(x.shape[1]) >= 3),
    "the second tap is missing": lambda x, weight: _conv1d(x, _taps(weight, 0, 2, 3)),
    "the third tap is missing": lambda x, weight: _conv1d(x, _taps(weight, 0, 1, 3)),
    "only the first tap is there": lambda x, weight: _conv1d(x, _taps(weight, 0)),
    "every tap is the first one": lambda x, weight: _conv1d(x, np.repeat(weight[:, :1], 4, 1)),
    "every tap is the last one": lambda x, weight: _conv1d(x, np.repeat(weight[:, 3:], 4, 1)),
    "the sums are rounded to bfloat16 after each tap": lambda x, weight: _narrow_conv(x, weight),
    "the taps are averaged, not summed": lambda x, weight: _conv1d(x, weight) / 4,
    "x is added to the output": lambda x, weight: _conv1d(x, weight) + x,
    "silu is applied to the output": lambda x, weight: _conv1d(x, weight) / (1 + np.exp(-_conv1d(x, weight))),
    "channels are mixed: every channel sums the outputs of all": lambda x, weight: (
        np.zeros_like(x) + _conv1d(x, weight).sum(0, keepdims=True)
    ),
    **{
        f"each {n} columns begin with a step of {words} in what came before": (
            lambda x, weight, n=n, by=by: _tiled_conv(x, weight, n, by)
        )
        for n in (128, 256, 512)
        for words, by in (("one too far back", -1), ("one too far on", 1))
    },
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
    "x is weighted by 1 - decay": lambda decay, x: _scan(decay, x * (1 - decay)),
    "x is weighted by decay": lambda decay, x: _scan(decay, x * decay),
    "the output lacks the step's own x": lambda decay, x: _scan(decay, x) - x,
    "x is added to the output once more": lambda decay, x: _scan(decay, x) + x,
    "the exponential of the decay is used": lambda decay, x: _scan(np.exp(decay), x),
    "the exponential of -decay is used": lambda decay, x: _scan(np.exp(-decay), x),
    "the decay is squared": lambda decay, x: _scan(decay * decay, x),
    "the decay is added, not multiplied": lambda decay, x: np.cumsum(decay + x, -1),
    "the decay has the other sign": lambda decay, x: _scan(-decay, x),
    "every step has the decay of the first": lambda decay, x: _scan(np.repeat(decay[:, :1], x.shape[1], 1), x),
    "every channel has the decay of channel 0": lambda decay, x: _scan(np.repeat(decay[:1], len(x), 0), x),
    "the state begins with one, not with zero": lambda decay, x: _scan(decay, x) + np.cumprod(decay, -1),
    "the state is rounded to bfloat16 at every step": lambda decay, x: _scan(decay, x, narrow=True),
    **{
        f"the state at the beginning of each {n} columns is {words}": (
            lambda decay, x, n=n, carry=carry: _carried(decay, x, n, carry)
        )
        for n in (64, 128, 256, 512)
        for words, carry in (
            ("that of the end of the first block", lambda out, x, start, n: out[:, n - 1]),
            ("that of the beginning of the block before", lambda out, x, start, n: out[:, start - n]),
            ("one step old", lambda out, x, start, n: out[:, start - 2]),
            ("the last x of the block before", lambda out, x, start, n: x[:, start - 1]),
            ("doubled", lambda out, x, start, n: 2 * out[:, start - 1]),
        )
    },
    **{
        f"the state at the beginning of each {n} columns is added, but not decayed on": (
            lambda decay, x, n=n: _undecayed(decay, x, n)
        )
        for n in (64, 128, 256, 512)
    },
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
    "absolute gradients are averaged in exp_avg_sq, not squares": lambda **a: _adamw(**a, power=np.abs),
    "the gradient is squared twice in exp_avg_sq": lambda **a: _adamw(**a, power=lambda g: g**4),
    "exp_avg_sq is not under a root": lambda **a: _adamw(**a, root=1.0),
    "the fourth root of exp_avg_sq divides, not the square root": lambda **a: _adamw(**a, root=0.25),
    "the root of exp_avg_sq multiplies, not divides": lambda **a: _adamw(**a, root=-0.5),
    "nothing divides the step (exp_avg_sq is not used)": lambda **a: _adamw(**a, update="none"),
    "the step has the size of the learning rate (sign of exp_avg)": lambda **a: _adamw(**a, update="sign"),
    "the step follows exp_avg before its update": lambda **a: _adamw(**a, update="old m"),
    "the step is divided by exp_avg_sq before its update": lambda **a: _adamw(**a, update="old v"),
    "the step is divided by the gradient's own square, not by exp_avg_sq": lambda **a: _adamw(**a, update="g2"),
    "exp_avg alone is corrected for its bias (as in the first step)": lambda **a: _adamw(**a, corrections=(True, False)),
    "exp_avg_sq alone is corrected for its bias (as in the first step)": lambda **a: _adamw(**a, corrections=(False, True)),
    **{f"eps is {eps} instead of 1e-8": lambda eps=eps, **a: _adamw(**a, eps=eps) for eps in (1e-6, 1e-5, 1e-3)},
    **{
        f"the learning rate is {words}": lambda rate=rate, **a: _adamw(**a, lr=rate, weight_decay=1e-5 / rate)
        for words, rate in (("ten times as large", 1e-2), ("a tenth", 1e-4), ("squared", 1e-6))
    },
    **{
        f"weight_decay is {decay} instead of 0.01": lambda decay=decay, **a: _adamw(**a, weight_decay=decay)
        for decay in (1e-3, 1e-4, 0.1)
    },
    "the weight decay takes exp_avg, not the parameter": lambda **a: (
        _adamw(**a)[0] + 1e-5 * a["param"] - 1e-5 * _adamw(**a)[1],
        *_adamw(**a)[1:],
    ),
    "beta1 is 0.99 instead of 0.9": lambda **a: _adamw(**a, betas=(0.99, _BETAS[1])),
    "beta2 is 0.99 instead of 0.999": lambda **a: _adamw(**a, betas=(_BETAS[0], 0.99)),
    "beta2 is 0.95 instead of 0.999": lambda **a: _adamw(**a, betas=(_BETAS[0], 0.95)),
    "exp_avg takes the squared gradient": lambda **a: (
        _adamw(**{**a, "grad": a["grad"] ** 2})[0],
        _adamw(**{**a, "grad": a["grad"] ** 2})[1],
        _adamw(**a)[2],
    ),
    "the gradient is subtracted from exp_avg": lambda **a: _adamw(**a, shares=(_BETAS[0] - 1, 1 - _BETAS[1])),
    "the step is Nesterov's (exp_avg looks ahead)": lambda **a: _adamw(
        **a, of_m=lambda m: _BETAS[0] * m + (1 - _BETAS[0]) * a["grad"]
    ),
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
