"""How a wrong output follows from the right one: a function of it, a factor with a meaning, an input added or multiplied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["factor_words", "related"]

Array = np.ndarray[Any, Any]

_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "its logarithm": np.log,
    "its exponential": np.exp,
    "its square": np.square,
    "its square root": np.sqrt,
    "its absolute value": np.abs,
    "its reciprocal": np.reciprocal,
    "its reciprocal square root": lambda x: x**-0.5,
    "relu of it": lambda x: np.maximum(x, 0),
    "the sigmoid of it": lambda x: 1 / (1 + np.exp(-x)),
    "silu of it": lambda x: x / (1 + np.exp(-x)),
    "tanh of it": np.tanh,
    "1 minus it": lambda x: 1 - x,
}
_BLOCKS = (32, 64, 128, 256, 512)


def related(output: Array, reference: Array, arrays: Mapping[str, Array], near: float) -> str:
    """Words behind "is"; empty if nothing leaves less than `near` of the reference's size as error."""
    for words, other in _others(output, reference, arrays):
        if other.shape == output.shape and np.isfinite(other).all() and _left(output, other, reference) < near:
            return words
    return _mixed(output, reference, arrays, near)


def _others(output: Array, reference: Array, arrays: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    with np.errstate(all="ignore"):
        for words, function in _FUNCTIONS.items():
            yield f"not the right value, but {words}", np.asarray(function(reference))
        if reference.ndim >= 2:
            yield from _moved(reference)
            for axis, what in ((-1, "columns"), (-2, "rows")):
                yield f"the cumulative sum of the right values along the {what}", np.cumsum(reference, axis)
                yield (
                    f"the mean of the right values over the {what}",
                    np.broadcast_to(reference.mean(axis, keepdims=True), reference.shape),
                )
                yield (
                    f"the sum of the right values over the {what}",
                    np.broadcast_to(reference.sum(axis, keepdims=True), reference.shape),
                )
            power = np.exp(reference - reference.max(-1, keepdims=True))
            yield "the softmax of the right values", power / power.sum(-1, keepdims=True)
        for name, array in arrays.items():
            if array.ndim != reference.ndim or not _fits(array, reference):
                continue
            yield f"the right value times {name}: {name} is multiplied once too often", reference * array
            yield f"the right value over {name}: {name} is not multiplied, or divides", reference / array


def _moved(reference: Array) -> Iterator[tuple[str, Array]]:
    """Elements that are right, but elsewhere within their blocks."""
    for size in _BLOCKS:
        rows, columns = reference.shape[-2:]
        if rows % size or columns % size:
            continue
        tiles = reference.reshape(*reference.shape[:-2], rows // size, size, columns // size, size)
        turned = tiles.swapaxes(-3, -1).reshape(reference.shape)
        yield f"right but for its blocks of {size} x {size}, each of which is transposed in its place", turned
    for outer in _BLOCKS:
        for size in _BLOCKS:
            rows, columns = reference.shape[-2:]
            if size >= outer or rows % outer or columns % outer:
                continue
            tiles = reference.reshape(
                *reference.shape[:-2], rows // outer, outer // size, size, columns // outer, outer // size, size
            )
            placed = tiles.swapaxes(-5, -2).reshape(reference.shape)
            yield f"right within blocks of {size} x {size}, which lie transposed in their blocks of {outer} x {outer}", placed


def _mixed(output: Array, reference: Array, arrays: Mapping[str, Array], near: float) -> str:
    """The right value and one term more, with a factor each."""
    terms = {"a constant": np.ones_like(reference)}
    for name, array in arrays.items():
        if array.ndim == reference.ndim and _fits(array, reference) and array.dtype.kind == "f":
            terms[name] = np.broadcast_to(array, reference.shape)
    for name, term in terms.items():
        columns = np.stack([reference.reshape(-1), term.reshape(-1)], -1)
        (factor, more), *_ = np.linalg.lstsq(columns, output.reshape(-1), rcond=None)
        if not more or abs(factor) < 1e-3 or _left(output, factor * reference + more * term, reference) >= near:
            continue
        if abs(more) * np.linalg.norm(term) < near * np.linalg.norm(reference):
            continue
        if name == "a constant":
            return f"{_times(factor, reference.shape)}the right value {more:+.4g} everywhere: an addend is missing or too much"
        sign = "added" if more > 0 else "subtracted"
        return (
            f"{_times(factor, reference.shape)}the right value {more:+.4g} times {name}: {name} is {sign} once more, or a term "
            f"with {name} is missing"
        )
    return ""


def _times(factor: float, shape: Sequence[int]) -> str:
    return "" if abs(factor - 1) < 1e-2 else f"{factor:.4g}{factor_words(factor, shape)} times "


def factor_words(factor: float, shape: Sequence[int], near: float = 4e-3) -> str:
    """What a factor may be: ` (= 128 ** -0.5)`; empty if it is no simple function of a length."""
    if abs(factor + 1) < near:
        return " (the sign is wrong)"
    known = {"ln 2": np.log(2), "1 / ln 2": 1 / np.log(2), "1 / 2": 0.5, "2 ** 0.5": 2**0.5, "2 ** -0.5": 2**-0.5}
    for length in dict.fromkeys(size for size in shape if size > 2):
        for words, power in (
            ("{}", 1),
            ("1 / {}", -1),
            ("{} ** 0.5", 0.5),
            ("{} ** -0.5", -0.5),
            ("{} ** 2", 2),
            ("{} ** -2", -2),
        ):
            known.setdefault(words.format(length), float(length) ** power)
            known.setdefault(words.format(f"(2 * {length})"), (2.0 * length) ** power)
        if abs(abs(factor) - (length - 1) / length) < 0.1 / length:  # nearer to it than to 1
            known.setdefault(f"({length} - 1) / {length}", (length - 1) / length)
    if abs(factor) < 1e-30:
        return ""
    found = min(known, key=lambda words: abs(np.log(abs(factor) / known[words])))
    if abs(abs(factor) / known[found] - 1) > near:
        return ""
    return f" (= {'-' if factor < 0 else ''}{found})"


def _fits(array: Array, reference: Array) -> bool:
    return array.size > 1 and all(n in (1, m) for n, m in zip(array.shape, reference.shape, strict=True))


def _left(output: Array, other: Array, reference: Array) -> float:
    return float(np.linalg.norm(output - other)) / max(float(np.linalg.norm(other)), 1e-300) if reference.size else 0.0
