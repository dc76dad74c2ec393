"""Mistakes in how inputs are read, for any task: what its reference gives if an input is ignored, shifted, repeated, ..."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["Misread", "misread"]

Array = np.ndarray[Any, Any]
Change = Callable[[Array], Array]
Misread = Callable[[Mapping[str, Array]], dict[str, Array]]

_TILES = (128, 256, 512)
_FEW = 8
"""Length up to which each index of an axis (a tap, a head) is tried by itself."""
_MOST = 1 << 22
"""Elements up to which an input is changed: a larger reference takes too long to be made so often."""


def misread(arrays: Mapping[str, Array]) -> list[tuple[str, Misread]]:
    """Words such as "v is taken as zeros" and what makes inputs with that mistake of the right ones; the likely ones first.

    Inputs are changed one by one; those behind the first that have one shape (keys and values, cosines and sines) together
    as well.
    """
    names = [name for name, array in arrays.items() if array.ndim and array.size <= _MOST]
    together = [name for name in names[1:] if arrays[name].shape == arrays[names[-1]].shape]
    found: list[tuple[int, str, Misread]] = []
    for group in [(name,) for name in names] + ([tuple(together)] if len(together) > 1 else []):
        said = " and ".join(group)
        for rank, words, change in _changes(arrays[group[0]], verb="are" if len(group) > 1 else "is"):
            found.append((rank, words.replace("{}", said), functools.partial(_changed, group, change)))
    floats = tuple(name for name in names if arrays[name].dtype.kind not in "iub")
    if len(floats) > 1:
        for rank, words, change in _ELEMENTS:
            if words.startswith("rounded"):
                found.append((rank, f"{' and '.join(floats)} are {words}", functools.partial(_changed, floats, change)))
    for name in names:
        for other in names:
            if other == name or arrays[name].shape != arrays[other].shape:
                continue
            found.append((0, f"{other} is read in place of {name}", functools.partial(_renamed, {name: other})))
            if names.index(other) > names.index(name):
                found.append((0, f"{name} and {other} are exchanged", functools.partial(_renamed, {name: other, other: name})))
    return [(words, change) for _, words, change in sorted(found, key=lambda item: item[0])]


def _changed(group: tuple[str, ...], change: Change, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {**arrays, **{name: change(arrays[name]) for name in group}}


def _renamed(names: Mapping[str, str], arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: arrays[names.get(name, name)] for name in arrays}


def _changes(array: Array, verb: str) -> Iterator[tuple[int, str, Change]]:
    """What may happen to one input, the likeliest with the lowest rank; `{}` is its name."""
    integers = array.dtype.kind in "iub"
    if not integers:
        for rank, words, change in _ELEMENTS:
            yield rank, f"{{}} {verb} {words}", change
    if array.ndim >= 2 and array.shape[-1] == array.shape[-2]:
        yield 0, f"{{}} {verb} transposed", lambda x: x.swapaxes(-1, -2)
    if array.ndim >= 2 and not array.shape[-1] % _TILES[0] and not array.shape[-2] % _TILES[0]:
        yield 1, f"the 128 x 128 tiles of {{}} {verb} transposed in their places", _tiles_turned
    if array.ndim >= 2 and array.shape[-1] > 2 and array.shape[-2] > 1:
        for rank, words, change in _strides(array.shape[-2], array.shape[-1]):
            yield rank, words, change
    for axis, what in zip(range(-1, -array.ndim - 1, -1), ("column", "row", "head"), strict=False):
        if array.shape[axis] > 1:
            for rank, words, index in _moves(array.shape[axis], what):
                yield rank, words, _taking(index, axis)
            for rank, words, factors in _weights(array.shape[axis], what) if not integers else ():
                yield rank, words, _times(factors, axis)


def _rounding(dtype: Any) -> Change:
    return lambda x: x.astype(dtype).astype(x.dtype)


_ELEMENTS: tuple[tuple[int, str, Change], ...] = (
    (0, "taken as zeros (ignored)", np.zeros_like),
    (0, "taken as ones (ignored)", np.ones_like),
    (0, "taken with the other sign", np.negative),
    (0, "counted twice", lambda x: 2 * x),
    (2, "halved", lambda x: x / 2),
    (2, "taken without its sign", np.abs),
    (1, "squared", np.square),
    (2, "taken as its reciprocal", lambda x: 1 / np.where(x == 0, 1, x)),
    (1, "increased by 1", lambda x: 1 + x),
    (1, "taken as 1 minus itself", lambda x: 1 - x),
    (2, "taken through exp", np.exp),
    (2, "taken through relu", lambda x: np.maximum(x, 0)),
    (2, "taken through silu", lambda x: x / (1 + np.exp(-x))),
    (2, "taken as its square root", lambda x: np.sqrt(np.abs(x))),
    (1, "rounded to bfloat16", _rounding(ml_dtypes.bfloat16)),
    (2, "rounded to float8_e4m3", _rounding(ml_dtypes.float8_e4m3)),
)


def _moves(length: int, what: str) -> Iterator[tuple[int, str, Array]]:
    """What is read in place of each index of an axis."""
    every = np.arange(length)
    rows = what + "s"
    yield 0, f"every {what} of {{}} is {what} 0", np.zeros_like(every)
    yield 1, f"each {what} of {{}} is the one before", np.maximum(every - 1, 0)
    yield 1, f"each {what} of {{}} is the one after", np.minimum(every + 1, length - 1)
    yield 3, f"the {rows} of {{}} are moved on by one, the last to the front", np.roll(every, 1)
    yield 3, f"the {rows} of {{}} are moved back by one, the first to the end", np.roll(every, -1)
    yield 2, f"the {rows} of {{}} are in reverse order", every[::-1]
    if length % 2 == 0 and length > 2:
        yield 1, f"the halves of {{}}'s {rows} are exchanged", np.roll(every, length // 2)
        yield 2, f"the second half of {{}}'s {rows} is the first again", every % (length // 2)
        yield 2, f"each {what} of {{}} is read twice: {what} i // 2 in place of {what} i", every // 2
        yield 3, f"every second {what} of {{}} is read: {what} 2 * i in place of {what} i", 2 * every % length
        yield 2, f"the {rows} of {{}} are taken in pairs, not in halves (interleaved)", every.reshape(2, -1).T.reshape(-1)
        yield 2, f"even and odd {rows} of {{}} are taken apart (as if interleaved)", every.reshape(-1, 2).T.reshape(-1)
        yield 2, f"even and odd {rows} of {{}} are exchanged: {what} 1 in place of {what} 0 and so on", every ^ 1
    if 2 < length <= _FEW:
        for i in range(length - 1):
            swapped = np.where(every == i, i + 1, np.where(every == i + 1, i, every))
            yield 1, f"{rows} {i} and {i + 1} of {{}} are exchanged", swapped
    for rank, tile in enumerate(_TILES, 1):
        count = length // tile
        if count < 2 or length % tile:
            continue
        place, within = every // tile, every % tile
        blocks = f"block of {tile} {rows} of {{}}"
        yield rank, f"every {blocks} is the first", within
        yield rank + 1, f"every {blocks} is the last", within + length - tile
        yield rank, f"each {blocks} is the one before", np.maximum(place - 1, 0) * tile + within
        yield rank, f"each {blocks} is the one after", np.minimum(place + 1, count - 1) * tile + within
        if count > 2:
            yield rank + 1, f"each {blocks} is the one before, the first the last", (place - 1) % count * tile + within
            yield rank + 1, f"each {blocks} is the one after, the last the first", (place + 1) % count * tile + within
            yield rank + 1, f"every second {blocks} is the one before", place // 2 * 2 * tile + within
        if count > 2 and count % 2 == 0:
            yield rank, f"each even {blocks} is exchanged with the odd one after it", (place ^ 1) * tile + within
        for i in range(min(count - 1, _FEW) if count > 2 else 0):
            to = np.where(place == i, i + 1, np.where(place == i + 1, i, place))
            yield rank + (i > 0), f"blocks {i} and {i + 1} of {tile} {rows} of {{}} are exchanged", to * tile + within
        yield rank + 1, f"the blocks of {tile} {rows} of {{}} are in reverse order", (count - 1 - place) * tile + within
        across, along = every.reshape(count, tile).T.reshape(-1), every.reshape(tile, count).T.reshape(-1)
        yield rank + 1, f"the {rows} of {{}} are read across its blocks of {tile} (not rearranged)", across
        yield rank + 1, f"the {rows} of {{}} are read in stretches of {count} (not rearranged)", along


def _strides(rows: int, width: int) -> Iterator[tuple[int, str, Change]]:
    """Rows that begin a wrong number of elements behind each other, in each tile of 128 rows or in all of the array."""
    every = np.arange(rows)
    for step, said in (
        (width // 2, "half a row"),
        (width // 4, "a quarter of a row"),
        (width - 1, "a row less 1"),
        (width + 1, "a row and 1"),
    ):
        for tile in (128, rows) if rows > 128 else (rows,):
            first = every // tile * tile * width + every % tile * step
            index = np.minimum(first[:, None] + np.arange(width), rows * width - 1)
            where = " in each tile of 128 rows" if tile < rows else ""
            yield 2, f"the rows of {{}} are taken {said} apart ({step} elements, not {width}){where}", _flat(index)


def _flat(index: Array) -> Change:
    return lambda x: np.take(x.reshape(*x.shape[:-2], -1), index, -1)


def _weights(length: int, what: str) -> Iterator[tuple[int, str, Array]]:
    """How often each index of an axis counts."""
    every, rows = np.arange(length), what + "s"
    yield 2, f"the first {what} of {{}} is missing", every > 0
    yield 2, f"the last {what} of {{}} is missing", every < length - 1
    if length % 2 == 0 and length > 2:
        yield 1, f"the first half of {{}}'s {rows} is missing", every >= length // 2
        yield 1, f"the second half of {{}}'s {rows} is missing", every < length // 2
    if 2 < length <= _FEW:
        for i in range(length):
            yield 1, f"{what} {i} of {{}} is missing", every != i
            yield 1, f"{what} {i} of {{}} counts twice", 1 + (every == i)
    for rank, tile in enumerate(_TILES, 1):
        if length <= tile:
            continue
        last = (length - 1) // tile
        place = every // tile
        yield rank, f"the first {tile} {rows} of {{}} are missing", place > 0
        yield rank, f"the last {tile} {rows} of {{}} are missing", place < last
        yield rank, f"only the first {tile} {rows} of {{}} are there", place == 0
        yield rank, f"only the last {tile} {rows} of {{}} are there", place == last
        yield rank, f"the first {tile} {rows} of {{}} count twice", 1 + (place == 0)
        yield rank, f"the last {tile} {rows} of {{}} count twice", 1 + (place == last)
        if last > 1:
            yield rank, f"every second block of {tile} {rows} of {{}} is missing", place % 2 == 0


def _taking(index: Array, axis: int) -> Change:
    return lambda x: np.take(x, index, axis) if x.shape[axis] == len(index) else np.full_like(x, np.nan)


def _times(factors: Array, axis: int) -> Change:
    def change(x: Array) -> Array:
        shape = [1] * x.ndim
        shape[axis] = len(factors)
        return x * factors.astype(x.dtype).reshape(shape)

    return change


def _tiles_turned(x: Array) -> Array:
    rows, columns = x.shape[-2] // 128, x.shape[-1] // 128
    tiles = x.reshape(*x.shape[:-2], rows, 128, columns, 128)
    return np.asarray(tiles.swapaxes(-3, -1).reshape(x.shape))
