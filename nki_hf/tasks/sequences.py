"""Functions along a sequence: conv1d, selective scan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.tasks.task import FLOAT, Task

__all__ = ["TASKS"]

Array = np.ndarray[Any, Any]


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


def _folded(decay: Array, x: Array, function: Callable[[Array, Array], Array]) -> Array:
    """The scan with another function in place of the sum."""
    state, out = np.zeros_like(x[:, 0]), np.empty_like(x)
    for t in range(x.shape[1]):
        out[:, t] = state = function(decay[:, t] * state, x[:, t])
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
    "each tap's product is subtracted from by the next (the signs of the taps alternate)": lambda x, weight: _conv1d(
        x, weight * (-1.0) ** np.arange(3, -1, -1)
    ),
    "channels are mixed: every channel sums the outputs of all": lambda x, weight: (
        np.zeros_like(x) + _conv1d(x, weight).sum(0, keepdims=True)
    ),
    **{
        f"each {n} columns begin with a step of {words} in what came before": (
            lambda x, weight, n=n, by=by: _tiled_conv(x, weight, n, by)
        )
        for n in (128, 256, 512)
        for words, by in (
            ("one too far back", -1),
            ("one too far on", 1),
            ("two too far back", -2),
            ("three too far on (the block's own first columns)", 3),
        )
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
    "the operators of the scan are exchanged: (decay + state) * x": lambda decay, x: _scan(x, decay * x),
    "the larger of decay * state and x is taken, not their sum": lambda decay, x: _folded(decay, x, np.maximum),
    "the smaller of decay * state and x is taken, not their sum": lambda decay, x: _folded(decay, x, np.minimum),
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
            (
                "rounded to bfloat16",
                lambda out, x, start, n: out[:, start - 1].astype(ml_dtypes.bfloat16).astype(out.dtype),
            ),
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


TASKS = {
    task.name: task
    for task in (
        Task(name="conv1d", about="causal depthwise convolution with 4 taps, x [128, size], weight [128, 4]",
             arrays=lambda n: {"x": ((128, n), FLOAT), "weight": ((128, 4), FLOAT)}, reference=_conv1d,
             flops=lambda n: 8 * 128 * n, check=(512, 1024), ragged=700, at=(4096,), dtype="float32",
             wrong=_CONV_WRONG),
        Task(name="selective_scan", about="state = decay[:, t] * state + x[:, t], out[:, t] = state; all [128, size]",
             arrays=lambda n: dict.fromkeys(("decay", "x"), ((128, n), FLOAT)), reference=_scan, inputs=_decays,
             flops=lambda n: 2 * 128 * n, check=(512, 1024), ragged=700, at=(4096,), dtype="float32", wrong=_SCAN_WRONG,
             step=lambda before, decay, x: decay[:, 1:] * before + x[:, 1:]),
    )
}  # fmt: skip
