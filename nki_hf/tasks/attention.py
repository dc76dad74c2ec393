"""Attention: plain, causal, sliding window, grouped heads, one decoded token.

Arrays are [heads, seqlen, head_dim]; one head has no axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.problem import Band
from nki_hf.tasks.attention_mistakes import mistakes
from nki_hf.tasks.attention_reference import SCALED_QUERIES, attention, scaled_queries, summed, within
from nki_hf.tasks.row_parts import levels
from nki_hf.tasks.task import FLOAT, Task

__all__ = ["TASKS", "attention_task"]

Array = np.ndarray[Any, Any]
_D = 128


_LOW = 32.0
"""Keys of `negative` inputs are so many times as large as usual: with 128 columns scores are about -230, all below -110."""

_RISING = 0.7, 1.4
"""How large the first and the last keys are, of 1, where maxima rise: early ones still have weight."""


def _inputs(shapes: dict[str, tuple[int, ...]], distribution: str, rng: np.random.Generator) -> dict[str, Array]:
    """q, k, v (and more) as nki_hf.testing draws them: unit normal, wide, one long key, equal scores, negative scores."""
    found = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    q, k = found["q"], found["k"]
    if distribution == "wide":
        q *= 10
    elif distribution == "outlier_key":
        k[..., k.shape[-2] // 3, :] *= 100
    elif distribution == "equal":
        k[...] = k[..., :1, :]
    elif distribution == "uneven_rows":
        q *= 4.0 ** np.trunc(levels(q.shape[-2], rng) / 6 * 3)  # most rows as they are: tiny numbers take long
    elif distribution == "rising_maximum":  # in nearly every block the maximum of some row moves, also of few rows
        k *= np.linspace(*_RISING, k.shape[-2])[:, None]
    elif distribution == "negative":
        np.abs(q, out=q)
        np.negative(np.abs(k), out=k)
        k *= _LOW  # below what exp takes: a running maximum that begins at 0 leaves sums of 0
    elif (
        distribution == "late_maximum"
    ):  # the largest scores are the last keys': a maximum of one tile or of its beginning fails
        k[..., -k.shape[-2] // 4 :, :] *= 10
        k[..., -k.shape[-2] // 16 :, :] *= 10
    return found


def attention_task(name: str, about: str, heads: int, kv_heads: int, rows: Callable[[int], int], **words: Any) -> Task:
    """An attention task; `rows` gives the query rows of a size; `words` are `causal`, `window`, `factor`, `head_dim`, `ideal`,
    and fields of `Task`.
    """
    causal, factor, head_dim = words.pop("causal", False), words.pop("factor", 1.0), words.pop("head_dim", _D)
    window = words.pop("window", 0)
    seen_keys = within(window)
    ideal = words.pop("ideal", lambda q, k, v: attention(q, k, v, causal=causal, rounded=True, keys=seen_keys))
    group = (heads,) if heads > 1 else ()
    kv_group = (kv_heads,) if heads > 1 else ()
    letters = "hsd" if heads > 1 else "sd"

    def shapes(size: int) -> dict[str, tuple[tuple[int, ...], str]]:
        keys = ((*kv_group, size, head_dim), FLOAT)
        return {"q": ((*group, rows(size), head_dim), FLOAT), "k": keys, "v": keys}

    def flops(size: int) -> int:
        sq = rows(size)
        band = Band(q_offset=size - sq, window=window or None, ahead=1 if causal else None)
        seen = sum(max(0, last - first) for first, last in (band.interval(row, size) for row in range(sq)))
        return 4 * heads * seen * head_dim

    def scaled(function: Callable[..., Any]) -> Callable[..., Any]:
        return function if factor == 1 else lambda q, k, v: function(q * np.asarray(factor, q.dtype), k, v)

    def part(arrays: Mapping[str, Array], index: tuple[slice, ...]) -> dict[str, Array]:
        *head, place = index
        q_offset = arrays["k"].shape[-2] - arrays["q"].shape[-2]
        keys = slice(place.stop + q_offset if causal else None)  # so that the last query sees the last key
        group = [slice(one.start // (heads // kv_heads), one.start // (heads // kv_heads) + 1) for one in head]
        return {"q": arrays["q"][index], **{name: arrays[name][(*group, keys)] for name in ("k", "v")}}

    wrong = {words: scaled(function) for words, function in mistakes(causal, heads > 1, head_dim, window).items()}
    return Task(
        name=name,
        about=about,
        arrays=shapes,
        flops=flops,
        axes=dict.fromkeys(("q", "k", "v", "out"), letters),
        reference=scaled(lambda q, k, v: attention(q, k, v, causal=causal, keys=seen_keys)),
        ideal=scaled(ideal),
        inputs=lambda size, distribution, rng: _inputs({n: s for n, (s, _) in shapes(size).items()}, distribution, rng),
        wrong=wrong,
        accepted={SCALED_QUERIES: scaled_queries} if factor == 1 else {},
        part=part,
        scale=scaled(lambda q, k, v: summed(q, k, v, causal, window)),
        mask={**({"ahead": 1} if causal else {}), **({"window": window} if window else {})},
        distributions=("uneven_rows", "rising_maximum"),
        family="decode attention" if name == "attention_decode" else "attention",
        **words,
    )


def _diffusion(q: Array, k: Array, v: Array) -> Array:
    """What a perfect kernel with 16-bit products gives: operands, scores and probabilities in bfloat16."""
    q, k, v = (array.astype(ml_dtypes.bfloat16).astype(array.dtype) for array in (q, k, v))
    scores = ((q @ k.T) * np.asarray(q.shape[-1] ** -0.5, q.dtype)).astype(ml_dtypes.bfloat16).astype(q.dtype)
    power = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(power.astype(ml_dtypes.bfloat16).astype(power.dtype) @ v / power.sum(-1, keepdims=True))


TASKS = {
    task.name: task
    for task in (
        attention_task("attention_diffusion", "softmax(q @ k.T / 8) @ v, one head, head_dim 64, float32 in and out; products "
                       "and scores may be bfloat16", 1, 1, lambda n: n, head_dim=64, dtype="float32", ideal=_diffusion,
                       check=(512, 1024), ragged=320, at=(4096,)),
        attention_task("attention", "softmax(q @ k.T * head_dim ** -0.5) @ v, one head, head_dim 128", 1, 1, lambda n: n,
                        check=(512, 1024), ragged=320, at=(4096,)),
        attention_task("attention_unscaled", "softmax(q @ k.T) @ v, one head, head_dim 128", 1, 1, lambda n: n,
                        factor=_D**0.5, check=(512, 1024), ragged=320, at=(4096,)),
        attention_task("attention_causal", "attention in which row i sees keys 0 to i, one head, head_dim 128", 1, 1,
                        lambda n: n, causal=True, check=(512, 1024), ragged=320, at=(4096,)),
        attention_task("attention_window", "attention in which row i sees keys max(0, i - 255) to i (a sliding window of 256), "
                        "one head, head_dim 128", 1, 1, lambda n: n, causal=True, window=256, check=(512, 1024), ragged=320,
                        at=(4096,)),
        attention_task("attention_gqa", "causal attention, 4 query heads, 2 kv heads, head h reads kv head h // 2", 4, 2,
                        lambda n: n, causal=True, check=(512, 1024), ragged=320, at=(2048,)),
        attention_task("attention_decode", "one query row per head, 8 query heads, 1 kv head", 8, 1, lambda n: 1,
                        check=(512, 1024), ragged=320, at=(4096,)),
    )
}  # fmt: skip
