"""Rotary position embedding of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nki_hf.tasks.task import FLOAT, Task

__all__ = ["TASKS"]

Array = np.ndarray[Any, Any]
_D = 128
_HALVES = slice(None, None, 2), slice(1, None, 2)


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


def _partly(x: Array, cos: Array, sin: Array, share: int, rest: str, angles: str) -> Array:
    """Turned within the first of `share` parts of the columns, whose halves are pairs; of the others there is a `rest`.

    Their angles are the first columns' (`own`), or one of every `share` (`all`), which go as far as those of the whole head.
    """
    width = x.shape[-1] // share
    half, turns = width // 2, np.arange(width)
    if angles == "all":
        turns = np.concatenate([np.arange(half) * share] * 2)
    elif angles == "first":
        turns = np.concatenate([np.arange(half)] * 2)
    first = _rope(x[:, :width], cos[:, turns], sin[:, turns])
    others = x[:, width:] * cos[:, width:] if rest == "cos" else x[:, width:] if rest == "copied" else 0 * x[:, width:]
    return np.concatenate([first, others], -1)


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
    **{
        f"the first {x_words} of head_dim alone is turned (partial rotary), the rest is {rest_words}{angle_words}": (
            lambda x, cos, sin, share=share, rest=rest, angles=angles: _partly(x, cos, sin, share, rest, angles)
        )
        for share, x_words in ((2, "half"), (4, "quarter"))
        for rest, rest_words in (("copied", "copied"), ("cos", "multiplied by the cosine"), ("zero", "zero"))
        for angles, angle_words in (
            ("own", ""),
            ("first", ", both halves of it by the first angles"),
            ("all", f", by one of every {share} angles"),
        )
    },
    "only the first half is turned": lambda x, cos, sin: np.concatenate(
        [_rope(x, cos, sin)[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]], -1
    ),
}


TASKS = {
    task.name: task
    for task in (
        Task(
            name="rope",
            about="x * cos + rotate_half(x) * sin, all [size, 128]",
            arrays=lambda n: dict.fromkeys(("x", "cos", "sin"), ((n, _D), FLOAT)),
            reference=_rope,
            inputs=_angles,
            flops=lambda n: 3 * n * _D,
            check=(128, 384),
            ragged=200,
            at=(4096,),
            dtype="float32",
            wrong=_ROPE_WRONG,
        ),
    )
}
