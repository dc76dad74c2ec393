"""Patterns of a wrong output beside the right one: blocks elsewhere, sums not cleared, narrower types, wrong places."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["added_up", "everywhere", "few_rows", "misplaced", "off", "parts", "permuted", "rounded", "where", "wide"]

Array = np.ndarray[Any, Any]
_TILE = 128
_MOST_BLOCKS = 64
_FEW = 0.1
"""Share of the wrong rows of the worst head below which a head is not called wrong as a whole."""


def wide(array: Array) -> Array:
    """In float64."""
    return np.asarray(array, np.float64)


def off(first: Array, second: Array) -> float:
    """The size of the difference over that of the second."""
    with np.errstate(over="ignore"):
        size = float(np.linalg.norm(second))
        return float(np.linalg.norm(first - second)) / size if size else float(np.linalg.norm(first))


def everywhere(output: Array, other: Array, tolerance: float) -> bool:
    """True if every row agrees, so that small rows do not hide behind large ones."""
    rows, sizes = (np.linalg.norm(np.atleast_1d(item), axis=-1) for item in (output - other, other))
    return bool((rows <= tolerance * np.maximum(sizes, 1e-2 * np.sqrt((sizes**2).mean()))).all())


def added_up(output: Array, reference: Array, near: float) -> str:
    """Blocks that hold the sum of those before them as well."""
    for axis, what in ((-1, "columns"), (-2, "rows")):
        for size in (128, 256, 512):
            length = reference.shape[axis]
            if length % size or length == size:
                continue
            blocks = np.moveaxis(reference, axis, 0).reshape(length // size, size, -1)
            summed = np.moveaxis(np.cumsum(blocks, 0).reshape(np.moveaxis(reference, axis, 0).shape), 0, axis)
            if off(output, summed) < near:
                return f"each block of {size} {what} also holds the sum of those before it: an accumulator is not cleared"
    return ""


def misplaced(output: Array, reference: Array, near: float) -> str:
    """Blocks of a matrix that are right, but elsewhere."""
    if output.ndim != 2:
        return ""
    for height, width in ((128, 512), (128, 128)):
        rows, columns = output.shape[0] // height, output.shape[1] // width
        if output.shape[0] % height or output.shape[1] % width or not 1 < rows * columns <= _MOST_BLOCKS:
            continue
        mine, right = (
            item.reshape(rows, height, columns, width).swapaxes(1, 2).reshape(rows * columns, -1)
            for item in (output, reference)
        )
        found = [min((off(block, other), i) for i, other in enumerate(right)) for block in mine]
        if all(left < max(near, 1e-2) for left, _ in found) and [i for _, i in found] != list(range(len(found))):
            wrong = [number for number, (_, i) in enumerate(found) if i != number]
            return (
                f"{len(wrong)} of {len(found)} blocks of {height} x {width} hold what belongs into another block: block "
                f"{wrong[0]} holds block {found[wrong[0]][1]}"
            )
    return ""


def rounded(output: Array, reference: Array, itemsize: int) -> str:
    """Elements that are all of a type narrower than the output's `itemsize`, where the reference's are not."""
    for dtype, most in ((ml_dtypes.float8_e4m3, 0.06), (ml_dtypes.bfloat16, 0.02), (np.float16, 0.003)):
        if np.dtype(dtype).itemsize < itemsize and off(output, reference) < most:
            own, wanted = ((item.astype(dtype).astype(np.float64) == item).mean() for item in (output, reference))
            if own == 1 and wanted < 0.5:
                return f"every element is a {np.dtype(dtype).name} number: values are rounded on the way"
    return ""


def permuted(output: Array, reference: Array, axis: int, tolerance: float) -> str:
    """Tiles of 128 along an axis that are right, but in another order."""
    count = reference.shape[axis] // _TILE
    if count < 2 or reference.shape[axis] % _TILE:
        return ""
    pieces = [np.moveaxis(item, axis, 0).reshape(count, _TILE, -1) for item in (output, reference)]
    order = []
    for piece in pieces[0]:
        near = [off(piece, other) for other in pieces[1]]
        if min(near) > tolerance:
            return ""
        order.append(int(np.argmin(near)))
    if order == list(range(count)):
        return ""
    return f"are {'in another order' if len(set(order)) == count else 'repeated'}: {order[:16]}"


def where(name: str, what: str, wrong: Array) -> str:
    """Which rows and columns are wrong, if they are a block."""
    if wrong.ndim < 2:
        return ""
    if words := _beginnings(wrong):
        return f"{name} is {what} in {words} of {list(wrong.shape)}"
    few = few_rows(wrong)
    if few.any():
        most = wrong & ~few[..., None, None]
        rows = int(np.count_nonzero((wrong & few[..., None, None]).any(-1)))
        words = f"{' and '.join(parts(most))} of {list(wrong.shape)}, and in {rows:,} rows of heads"
        return f"{name} is {what} in {words} {np.flatnonzero(few).tolist()[:8]}"
    wrongs = parts(wrong)
    if not wrongs and (right := parts(~wrong)):
        return f"{name} is {what} except in {' and '.join(right)} of {list(wrong.shape)}"
    return f"{name} is {what} in {' and '.join(wrongs)} of {list(wrong.shape)}" if wrongs else ""


def few_rows(wrong: Array) -> Array:
    """The heads that have few wrong rows beside the worst one, bool in the shape of the axes before rows and columns."""
    rows = wrong.any(-1).sum(-1)
    return np.asarray((rows > 0) & (rows < _FEW * rows.max()))


def _beginnings(wrong: Array) -> str:
    """The first columns or rows of each block but the first, where nothing else is wrong; empty otherwise."""
    for axis, what in ((-1, "columns"), (-2, "rows")):
        index = np.flatnonzero(wrong.any(tuple(i for i in range(wrong.ndim) if i != axis % wrong.ndim)))
        for size in (512, 256, 128, 64):
            if not len(index) or index[0] < size or wrong.shape[axis] <= size:
                continue
            width = int((index % size).max()) + 1
            starts = len(np.unique(index // size))
            if index[0] % size or width > size // 4 or len(index) < width or starts < min(2, wrong.shape[axis] // size - 1):
                continue
            return (
                f"the first {width} {what} of blocks of {size}, but for the first block (what comes before a block is not "
                "taken along, or from a wrong place),"
            )
    return ""


def parts(wrong: Array) -> list[str]:
    """Heads, rows and columns outside of which nothing is wrong; empty if that is everywhere, or nothing."""
    found: list[str] = []
    if not wrong.any():
        return found
    rows = np.flatnonzero(wrong.any(tuple(i for i in range(wrong.ndim) if i != wrong.ndim - 2)))
    columns = np.flatnonzero(wrong.any(tuple(range(wrong.ndim - 1))))
    for index, size, word in ((rows, wrong.shape[-2], "rows"), (columns, wrong.shape[-1], "columns")):
        if len(index) < size:
            dense = len(index) == index[-1] - index[0] + 1
            found.append(f"{word} {index[0]} to {index[-1]}" + ("" if dense else f" ({len(index)} of them)"))
    heads = wrong.any((-1, -2))
    if heads.ndim and not heads.all():
        found.insert(0, f"heads {np.flatnonzero(heads).tolist()[:8]}")
    return found
