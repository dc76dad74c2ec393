"""A sum, maximum or mean of a reference done otherwise: another one, over another axis, of another row, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nki_hf.tools.judging.traced import Call, Change

__all__ = ["accumulations", "reductions"]

Array = np.ndarray[Any, Any]
_TILES = (128, 256, 512)
_REDUCTIONS: dict[str, Callable[[Array, Any, bool], Any]] = {
    "the maximum": lambda x, axis, kept: x.max(axis, keepdims=kept),
    "the minimum": lambda x, axis, kept: x.min(axis, keepdims=kept),
    "the sum": lambda x, axis, kept: x.sum(axis, keepdims=kept),
    "the mean": lambda x, axis, kept: x.mean(axis, keepdims=kept),
    "the largest size": lambda x, axis, kept: np.abs(x).max(axis, keepdims=kept),
    "the sum of sizes": lambda x, axis, kept: np.abs(x).sum(axis, keepdims=kept),
    "the sum of squares": lambda x, axis, kept: (x * x).sum(axis, keepdims=kept),
    "the root of the sum of squares": lambda x, axis, kept: np.sqrt((x * x).sum(axis, keepdims=kept)),
    "the number of its elements": lambda x, axis, kept: np.ones_like(x).sum(axis, keepdims=kept),
    "0": lambda x, axis, kept: x.sum(axis, keepdims=kept) * 0,
}


def reductions(call: Call) -> Iterator[tuple[str, Change]]:
    """Words about a sum, a maximum or a mean, and what is done in its place."""
    array, axis, kept = _axis_of(call)
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or not array.ndim:
        return
    own = {"add": "the sum", "maximum": "the maximum", "minimum": "the minimum"}.get(call.site.name, "")
    mean = "mean(" in call.site.text
    for what, function in _REDUCTIONS.items():
        if what == own:
            continue

        def other(c: Call, function: Any = function, what: str = what) -> Any:
            x, along, keeps = _axis_of(c)
            found = function(x, along, keeps)
            return found * (x.size / max(np.size(found), 1)) if mean and what != "0" else found

        yield f"is {what}", other
    if call.site.name == "add" and not mean and isinstance(axis, int) and axis % array.ndim == array.ndim - 1:
        yield from _online(array, kept)
    if array.ndim > 1:
        yield "runs over everything", _along(None)
    if array.ndim > 2 and isinstance(axis, int) and axis % array.ndim == array.ndim - 1:
        yield "runs over the last two axes", _along((-2, -1))
    if kept and isinstance(axis, int):
        for along in range(array.ndim):
            if along != axis % array.ndim and array.shape[along] > 1:
                yield f"runs over axis {along}", _along(along)
        for by in (1, *_TILES[:1]):
            if array.ndim >= 2 and array.shape[-2] > by:
                yield f"is that of the row {by} before", _row_before(by)
        if array.ndim >= 2 and array.shape[-2] > _TILES[0]:
            yield f"is that of the first {_TILES[0]} rows", lambda c: c.result()[..., np.arange(c.inputs[0].shape[-2]) % 128, :]
        for width in _TILES if axis % array.ndim == array.ndim - 1 else ():
            if array.shape[-1] > width and not array.shape[-1] % width:
                yield f"is that of each {width} columns by themselves", _by_blocks(width)


_RUNNING = {
    "none": "not corrected when the maximum moves",
    "both": "what a block adds is corrected as well, not only what was there before",
    "both, first lost": "what a block adds is corrected as well, which leaves nothing of the first",
    "inverse": "the correction is the wrong way round (old and new maximum)",
    "late": "each correction comes a block late",
    "last": "the running maximum is that of the last block",
}


def _online(powers: Array, kept: bool) -> Iterator[tuple[str, Change]]:
    """Sums of exponentials (whose largest is 1) that are made block by block below a running maximum, with a mistake."""
    if not kept or (powers < 0).any() or not np.allclose(powers.max(-1), 1):
        return
    for width in _TILES:
        if powers.shape[-1] <= width or powers.shape[-1] % width:
            continue
        said = f"is made block by block of {width}, and "
        for mistake, what in _RUNNING.items():
            yield said + what, _by_running_maximum(width, mistake)


def _by_running_maximum(width: int, mistake: str) -> Change:
    def change(call: Call) -> Any:
        x = call.inputs[0]
        blocks = x.reshape(*x.shape[:-1], x.shape[-1] // width, width)
        tops, sums = blocks.max(-1), blocks.sum(-1)  # relative to the largest of all, which is 1
        total, old, before = np.zeros_like(tops[..., 0]), np.zeros_like(tops[..., 0]), np.ones_like(tops[..., 0])
        for i in range(blocks.shape[-2]):
            new = tops[..., i] if mistake == "last" else np.maximum(old, tops[..., i])
            now = old / new
            part = sums[..., i] / new
            if mistake.startswith("both"):
                total = (total + part) * (now if i or mistake != "both" else 1)
            else:
                factor = {"none": np.ones_like(now), "inverse": 1 / np.where(now, now, 1), "late": before}.get(mistake, now)
                total = total * factor + part
            old, before = new, now if i else before
        return total[..., None]

    return change


def _row_before(by: int) -> Change:
    return lambda call: np.roll(call.result(), by, -2)


def _with_ufunc(ufunc: Any) -> Change:
    return lambda call: call.result(function=ufunc)


def _axis_of(call: Call) -> tuple[Array, Any, bool]:
    axis = call.options.get("axis", 0)
    return call.inputs[0], axis, bool(call.options.get("keepdims", False))


def _along(axis: Any) -> Change:
    """A reduction over other axes, spread so that the result can stand for the right one; a mean is one of as many elements."""

    def change(call: Call) -> Any:
        right, found = call.result(keepdims=True), call.result(axis=axis, keepdims=True)
        if "mean(" in call.site.text:
            found = found * (np.size(found) / np.size(right))
        own = call.result()
        return found if np.ndim(own) == np.ndim(found) else np.broadcast_to(found, right.shape).reshape(np.shape(own))

    return change


def _by_blocks(width: int) -> Change:
    """What broadcasts against the row: each block's own value, repeated."""

    def change(call: Call) -> Any:
        x = call.inputs[0]
        blocks = x.reshape(*x.shape[:-1], x.shape[-1] // width, width)
        factor = x.shape[-1] // width if "mean(" in call.site.text else 1
        return np.repeat(call.function(blocks, axis=-1) * factor, width, -1)

    return change


def accumulations(call: Call) -> Iterator[tuple[str, Change]]:
    """Words about a cumulative sum, and what is done in its place."""
    axis = call.options.get("axis", 0)
    yield "is exclusive: an element is not in its own", lambda c: c.result() - c.inputs[0]
    yield "runs from the end", lambda c: np.flip(c.result(np.flip(c.inputs[0], axis)), axis)
    for other in (np.maximum, np.minimum, np.add, np.multiply):
        if other.__name__ != call.site.name:
            yield f"has {other.__name__} in place of {call.site.name}", _with_ufunc(other)
