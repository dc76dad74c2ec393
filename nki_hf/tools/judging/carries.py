"""What a kernel carries from block to block of a recurrence, read from its output alone.

Where each element follows from the one before as it should (`Task.step`), and the first of each block does not, the blocks
are right and what they begin with is not. A step is linear in what it begins with, so that follows from the output, too, and
is compared with what may stand in place of the end of the block before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.tasks import Task
from nki_hf.tools.judging.explaining import exact
from nki_hf.tools.judging.patterns import off, wide
from nki_hf.tools.judging.task_functions import of_the_task
from nki_hf.tools.judging.task_values import AtSize
from nki_hf.tools.judging.values import Outcome
from nki_hf.tools.verify_judge import unit_roundoff

__all__ = ["carried"]

Array = np.ndarray[Any, Any]
_ROUNDINGS = 64
"""Roundings of a row's largest element by which an element may miss its step: blocks sum in any order."""
_LEAST = 16
"""Columns of a block at least."""


def carried(task: Task, size: int, outcome: Outcome, number: int) -> str:
    """Words behind the output's name about a wrong carry; empty if the task says no step, or steps within blocks are wrong."""
    output, reference = wide(outcome.outputs[number]), outcome.references[number]
    if task.step is None or number or output.shape != reference.shape or not np.isfinite(output).all():
        return ""
    arrays = exact(outcome.arrays)
    near = _ROUNDINGS * unit_roundoff(str(outcome.outputs[number].dtype)) * np.abs(output).max(-1, keepdims=True)
    if (np.abs(output - reference)[..., :1] > near).any():
        return ""
    before = output[..., :-1]
    with of_the_task(AtSize(task, size), "step"):
        base = task.step(np.zeros_like(before), **arrays)
        slope = task.step(np.ones_like(before), **arrays) - base
    starts = np.flatnonzero((np.abs(output[..., 1:] - slope * before - base) > near).any(tuple(range(output.ndim - 1)))) + 1
    if not len(starts):
        return ""
    width = math.gcd(*starts.tolist())
    if width < _LEAST or output.shape[-1] % width:
        return ""
    starts = np.arange(width, output.shape[-1], width)
    with np.errstate(all="ignore"):
        taken = (output[..., starts] - base[..., starts - 1]) / slope[..., starts - 1]
    if not np.isfinite(taken).all():
        return ""
    slack = float(np.linalg.norm(near * np.ones_like(taken) / np.abs(slope[..., starts - 1])))
    said = _said(taken, output, starts, width, slack)
    return f"each block of {width} columns is right in itself, but begins with a wrong carry: " + (
        said or "it is not what the block before ends with"
    )


def _said(taken: Array, output: Array, starts: Array, width: int, slack: float) -> str:
    """What the carry is, in words; empty if it is nothing known."""
    ends = output[..., starts - 1]
    for words, other in _others(taken, ends, output, starts, width):
        if np.linalg.norm(taken - other) <= slack + 1e-6 * np.linalg.norm(other):
            return words
    for by, where in ((1, "above"), (-1, "below")):  # at the edge there is none, or the one at the other end
        inner = slice(1, None) if by > 0 else slice(None, -1)
        if np.linalg.norm((taken - np.roll(ends, by, -2))[..., inner, :]) <= slack:
            return f"it is that of the row {where}"
    size = float((ends * ends).sum())
    factor = float((taken * ends).sum()) / size if size else 0.0
    if off(taken, factor * ends) * float(np.linalg.norm(ends)) <= slack + 1e-4 * math.sqrt(size) and factor:
        return f"it is {factor:.4g} times what the block before ends with"
    return ""


def _others(taken: Array, ends: Array, output: Array, starts: Array, width: int) -> Iterator[tuple[str, Array]]:
    yield "it is missing, and the block starts anew", np.zeros_like(ends)
    for value, words, bound in (
        (taken.max(), "at most", np.minimum),
        (taken.min(), "at least", np.maximum),
    ):
        yield f"what the block before ends with is clamped to {words} {value:.4g}", bound(ends, value)
    most = float(np.abs(taken).max())
    yield f"what the block before ends with is clamped to -{most:.4g} to {most:.4g}", np.clip(ends, -most, most)
    late = np.concatenate([np.zeros_like(ends[..., :1]), ends[..., :-1]], -1)
    yield "it is that of one block earlier (a block late)", late
    yield "it is that of one block earlier (a block late)", np.concatenate([ends[..., :1], ends[..., :-1]], -1)
    yield "it is that of two blocks earlier", np.concatenate([0 * late[..., :1], late[..., :-1]], -1)
    yield "it is what the first block ends with", ends[..., :1] + 0 * ends
    yield "it is one column old: the last element of the block before is not in it", output[..., starts - 2]
    yield "it is what the block before begins with", output[..., starts - width]
    yield "it is that of row 0", ends[..., :1, :] + 0 * ends
    yield "it is that of the last row", ends[..., -1:, :] + 0 * ends
    yield "it is that of the row at the other end of the tile (in reverse order)", ends[..., ::-1, :]
    yield "it is the mean over the rows", ends.mean(-2, keepdims=True) + 0 * ends
    yield "it is the sum over the rows", ends.sum(-2, keepdims=True) + 0 * ends
    yield "its sign is lost", np.abs(ends)
    yield "earlier carries are added to it once more", ends + np.concatenate([0 * taken[..., :1], taken[..., :-1]], -1)
    yield "it is what the block before adds by itself", ends - np.concatenate([0 * taken[..., :1], taken[..., :-1]], -1)
    yield "it is rounded to bfloat16", ends.astype(ml_dtypes.bfloat16).astype(ends.dtype)
    yield "it is the largest one so far", np.maximum.accumulate(ends, -1)
