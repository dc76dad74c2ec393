"""Functions of rows: softmax, cumulative sum, transpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.tasks.row_parts import WIDTH, drawn_scores, in_parts, kept, narrow, other_rows, row_arrays, shifted_exp
from nki_hf.tasks.task import Task

__all__ = ["TASKS"]

Array = np.ndarray[Any, Any]


def _softmax(x: Array, axis: int | None = -1) -> Array:
    power = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(power / power.sum(axis, keepdims=True))


def _carried(x: Array, width: int, carry: Callable[[Array, Array], Array]) -> Array:
    """Sums along each `width` columns, and what `carry` takes of the columns and the sums of the block before."""
    sums = in_parts(x, lambda part: np.cumsum(part, -1), width)
    for start in range(width, x.shape[1], width):
        before = slice(start - width, start)
        sums[:, start : start + width] += carry(x[:, before], sums[:, before])
    return sums


def _stepped(x: Array, rounded: Callable[[Array], Array]) -> Array:
    """Sums along the columns that are rounded after each."""
    total, out = np.zeros(len(x), x.dtype), np.empty_like(x)
    for t in range(x.shape[1]):
        total = out[:, t] = rounded(total + x[:, t])
    return out


_SOFTMAX_WRONG: dict[str, Callable[..., Any]] = {
    "the rows are not divided by their sums": lambda x: np.exp(x - x.max(-1, keepdims=True)),
    "the softmax runs over the rows instead of the columns": lambda x: _softmax(x, 0),
    "the softmax runs over all elements": lambda x: _softmax(x, None),
    "the output is the logarithm of the softmax": lambda x: np.log(_softmax(x)),
    "the sign of the exponent is wrong": lambda x: _softmax(-x),
    "the exponential has base 2 instead of e": lambda x: _softmax(x * np.log(2)),
    "the rows are divided by their sums twice": lambda x: (
        _softmax(x) / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)
    ),
    "the sums still hold those of earlier tiles of 128 rows (not cleared)": lambda x: (
        shifted_exp(x) / kept(shifted_exp(x).sum(-1, keepdims=True))
    ),
    **{
        f"the sums are those of the {words}": lambda x, which=which: (
            shifted_exp(x) / other_rows(shifted_exp(x).sum(-1, keepdims=True), which)
        )
        for words, which in (("first tile of 128 rows", "first"), ("tile of 128 rows before", "before"))
    },
    "the rows are divided by the square root of their sums": lambda x: (
        shifted_exp(x) / np.sqrt(shifted_exp(x).sum(-1, keepdims=True))
    ),
    "the sums are subtracted, not divided by": lambda x: shifted_exp(x) - shifted_exp(x).sum(-1, keepdims=True),
    "the logarithm of the sums is subtracted from the exponentials": lambda x: (
        shifted_exp(x) - np.log(shifted_exp(x).sum(-1, keepdims=True))
    ),
    "the smallest element stands in place of the maximum": lambda x: (
        np.exp(x - x.min(-1, keepdims=True)) / np.exp(x - x.min(-1, keepdims=True)).sum(-1, keepdims=True)
    ),
    "the rows are divided by their length (a norm), not by their sums": lambda x: (
        shifted_exp(x) / np.linalg.norm(shifted_exp(x), axis=-1, keepdims=True)
    ),
    "the rows are multiplied by their sums, not divided": lambda x: shifted_exp(x) * shifted_exp(x).sum(-1, keepdims=True),
    **{
        f"the {which} {n} columns are missing in the sum": lambda x, part=part: (
            shifted_exp(x) / shifted_exp(x)[:, part].sum(-1, keepdims=True)
        )
        for n in (1, 128, 256)
        for which, part in (("first", slice(n, None)), ("last", slice(None, -n)))
    },
    "one is added to the sums": lambda x: shifted_exp(x) / (1 + shifted_exp(x).sum(-1, keepdims=True)),
    "the logits are divided by the root of the width": lambda x: _softmax(x * x.shape[-1] ** -0.5),
    "the logits are scaled by head_dim ** -0.5 of 128": lambda x: _softmax(x * 128**-0.5),
    "the exponentials are rounded to bfloat16": lambda x: (
        narrow(shifted_exp(x)) / narrow(shifted_exp(x)).sum(-1, keepdims=True)
    ),
    "the sums are rounded to bfloat16": lambda x: shifted_exp(x) / narrow(shifted_exp(x).sum(-1, keepdims=True)),
    **{
        f"each {width} columns are a softmax of their own": lambda x, width=width: in_parts(x, _softmax, width)
        for width in (128, 256, 512)
    },
    **{
        f"the sum is that of the {which} {width} columns only": (
            lambda x, part=part: (
                np.exp(x - x.max(-1, keepdims=True)) / np.exp(x - x.max(-1, keepdims=True))[:, part].sum(-1, keepdims=True)
            )
        )
        for width in (128, 256, 512)
        for which, part in (("first", slice(0, width)), ("last", slice(-width, None)))
    },
}


def _exchanged(x: Array, *, after: bool = False) -> Array:
    """The scan `(sum + 1) * x`, or `sum * x + 1`."""
    state, out = np.zeros_like(x[:, 0]), np.empty_like(x)
    for t in range(x.shape[1]):
        out[:, t] = state = state * x[:, t] + 1 if after else (state + 1) * x[:, t]
    return out


_CUMSUM_WRONG: dict[str, Callable[..., Any]] = {
    "the sums run down the rows instead of along them": lambda x: np.cumsum(x, 0),
    "the sum is exclusive: an element is not in its own sum": lambda x: np.cumsum(x, -1) - x,
    "the sum runs from the end": lambda x: np.cumsum(x[:, ::-1], -1)[:, ::-1],
    "the product is cumulated, not the sum": lambda x: np.cumprod(x, -1),
    "the maximum is cumulated, not the sum": lambda x: np.maximum.accumulate(x, -1),
    "the sums are rounded to bfloat16 at every step": lambda x: _stepped(x, narrow),
    "the sum is a mean of what was seen": lambda x: np.cumsum(x, -1) / np.arange(1, x.shape[-1] + 1),
    "the sum goes on from row to row": lambda x: np.cumsum(x.reshape(-1)).reshape(x.shape),
    "the sum still holds that of earlier tiles of 128 rows (not cleared)": lambda x: (
        np.cumsum(x, -1) + kept(x.sum(-1, keepdims=True)) - x.sum(-1, keepdims=True)
    ),
    "the operators of the scan are exchanged: (sum + 1) * x": lambda x: _exchanged(x),
    "x and 1 are exchanged in the scan: sum * x + 1": lambda x: _exchanged(x, after=True),
    **{
        f"only the last {n} columns are summed (a step of doubling is missing, or a window)": (
            lambda x, n=n: np.cumsum(x, -1) - np.pad(np.cumsum(x, -1), ((0, 0), (n, 0)))[:, : x.shape[1]]
        )
        for n in (64, 128, 256, 512)
    },
    "the sums are squared": lambda x: np.cumsum(x, -1) ** 2,
    "squares are summed": lambda x: np.cumsum(x * x, -1),
    **{
        f"the sum starts anew every {width} columns (a carry is missing)": (
            lambda x, width=width: in_parts(x, lambda part: np.cumsum(part, -1), width)
        )
        for width in (64, 128, 256, 512)
    },
    **{
        f"the carry of each {width} columns is {what}": (lambda x, width=width, carry=carry: _carried(x, width, carry))
        for width in (64, 128, 256, 512)
        for what, carry in (
            ("the last element before them, not the sum of all", lambda before, sums: before[:, -1:]),
            ("the sum of the block before alone", lambda before, sums: before.sum(-1, keepdims=True)),
            ("the first sum of the block before, not the last", lambda before, sums: sums[:, :1]),
            ("rounded to bfloat16", lambda before, sums: narrow(sums[:, -1:])),
            ("applied twice", lambda before, sums: 2 * sums[:, -1:]),
            ("subtracted", lambda before, sums: -sums[:, -1:]),
            ("the sum before its last element", lambda before, sums: sums[:, -2:-1]),
            ("the sum of the block before with its first element missing", lambda before, sums: sums[:, -1:] - before[:, :1]),
        )
    },
}


def _in_tiles(x: Array) -> Array:
    """Each 128 x 128 tile stays where its transpose belongs."""
    rows, columns = x.shape[0] // 128, x.shape[1] // 128
    return np.asarray(x.reshape(rows, 128, columns, 128).transpose(2, 1, 0, 3).reshape(columns * 128, rows * 128))


_LOW = 2000.0
"""Negative inputs of softmax are below minus this: a running maximum that begins at -1,000 leaves sums of 0 there."""


TASKS = {
    task.name: task
    for task in (
        Task(name="softmax", about="softmax over the last axis of x [size, 1024]", arrays=row_arrays, reference=_softmax,
             flops=lambda n: 5 * n * WIDTH, check=(128, 384), ragged=200, at=(4096,), dtype="float32", wrong=_SOFTMAX_WRONG,
             inputs=lambda n, distribution, rng: {"x": drawn_scores(n, distribution, rng, _LOW)},
             distributions=("late_maximum", "uneven_rows")),
        Task(name="cumsum", about="cumulative sum along the last axis of x [size, 1024]", arrays=row_arrays,
             reference=lambda x: np.cumsum(x, -1), flops=lambda n: n * WIDTH, check=(128, 384), ragged=200, at=(4096,),
             dtype="float32", step=lambda before, x: before + x[:, 1:], wrong=_CUMSUM_WRONG),
        Task(name="transpose", about="x.T of x [size, 1024]", arrays=row_arrays, reference=lambda x: x.T, flops=lambda n: 0,
             check=(128, 384), ragged=200, at=(4096,),
             wrong={"the tiles are placed, but not transposed": _in_tiles,
                    "the elements are in their old order (reshaped, not transposed)": lambda x: x.reshape(x.T.shape)}),
    )
}  # fmt: skip
