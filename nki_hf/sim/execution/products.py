"""Products of small tiles that a replay does together: one NumPy call for many, each with the bits it has alone.

NumPy multiplies a stack item by item, with the same call of the same library. Sums over several products are taken in their
order. An element has the same bits however wide its tile is and however its operands lie, as on the chip: kernels that multiply
the same rows in tiles of their own must find the same scores (at scores of 1e8 the last bit is a weight). So the library's two
other routines are avoided: that for matrix times vector by computing one row or one column as two, that for small matrices,
which runs where the left operand lies row by row, by laying it column by column or by exchanging the operands. On some
processors (OpenBLAS for Haswell and Zen) the routine itself sums in another order at other places of a tile: there sums are
taken in float64, which holds those of products of 16-bit numbers exactly, and rounded once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nki_hf.sim.execution.actions import Action

__all__ = ["Product", "joined", "multiplied", "sums_alike"]

Array = np.ndarray[Any, Any]

_FEWEST = 3
_WORK: Any = 1000
"""How long NumPy may look for an element that two views share."""
_BYTES = 1 << 18
"""Most bytes that a stack's float32 results, or its operands after widening, may take: what stays near the processor."""


def multiplied(left: Array, right: Array, out: Array | None = None) -> Array:
    """`left @ right`, float32 [..., M, K] and [..., K, N], whose elements have the same bits at any M, N and layout."""
    if not sums_alike():
        with np.errstate(over="ignore", invalid="ignore"):
            wide = np.matmul(left.astype(np.float64), right.astype(np.float64))
            if out is None:
                return wide.astype(np.float32)
            out[...] = wide
            return out
    rows, columns = left.shape[-2], right.shape[-1]
    if rows > 1 and columns > 1 and left.strides[-2] == left.itemsize and right.itemsize in right.strides[-2:]:
        return np.matmul(left, right) if out is None else np.matmul(left, right, out=out)
    left, right = _at_least_two(left.swapaxes(-1, -2)).swapaxes(-1, -2), _at_least_two(right)
    if right.itemsize not in right.strides[-2:]:
        right = np.ascontiguousarray(right)
    if left.strides[-2] == left.itemsize:
        product = np.matmul(left, right)
    elif right.strides[-1] == right.itemsize and left.itemsize in left.strides[-2:] and columns <= left.shape[-1]:
        # The smaller copy: that of the result.
        product = np.matmul(right.swapaxes(-1, -2), left.swapaxes(-1, -2)).swapaxes(-1, -2)
    else:
        product = np.matmul(np.ascontiguousarray(left.swapaxes(-1, -2)).swapaxes(-1, -2), right)
    found: Array = product[..., :rows, :columns]
    if out is None:
        return found
    out[...] = found
    return out


@functools.cache
def sums_alike() -> bool:
    """True if the library's float32 product sums alike on this processor, which is asked once: that takes a millisecond."""
    return sums_alike_everywhere(np.matmul)


def sums_alike_everywhere(product: Callable[[Array, Array], Array]) -> bool:
    """True if a product sums an element in the same order wherever it is.

    Operands are moved by the widths that such routines go by, and cut.
    """
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((_DEPTH, width)).astype(np.float32) for width in (64, 160))
    whole = product(left.T, right)
    for width in (1, 4, 6, 8, 12, 24):
        moved = product(np.roll(left, width, 1).T, np.roll(right, width, 1))
        if not np.array_equal(moved, np.roll(whole, (width, width), (0, 1))):
            return False
    cuts = ((2, 160), (3, 7), (17, 33), (64, 5), (33, 24))
    return all(np.array_equal(product(left[:, :m].T, right[:, :n]), whole[:m, :n]) for m, n in cuts)


_DEPTH = 96
"""Of the products by which a library is asked: orders of sums differ from a few terms on."""


def _at_least_two(values: Array) -> Array:
    """`values` [..., K, N], a single column twice."""
    if values.shape[-1] > 1:
        return values
    twice = np.empty((*values.shape[:-1], 2), np.float32)
    twice[...] = values
    return twice


class Product:
    """`target (=|+=) left.T @ right`, as one action, and what a replay must know to do several at once.

    Attributes:
      action: the computation.
      left: [K, M] and right: [K, N], float32, bfloat16 or float16; target: [M, N] float32: where the operands always lie.
      adds: whether the product is added to the target.
    """

    __slots__ = ("action", "adds", "left", "right", "target")

    def __init__(self, action: Action, left: Array, right: Array, target: Array, adds: bool) -> None:
        self.action, self.left, self.right, self.target, self.adds = action, left, right, target, adds

    def __call__(self) -> None:
        """The product alone."""
        self.action()

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """Its operands and its target."""
        return self.left, self.right, self.target


class _Stack:
    """Products at even distances: of targets of their own, or of one target that they are added to in turn."""

    def __init__(self, products: Sequence[Product]) -> None:
        self.left, self.right, self.target = (_stacked([product.arrays[n] for product in products]) for n in range(3))
        self.adds = products[0].adds
        self.summed = not _distance(products[0].target, products[1].target)
        if self.summed:
            self.target = products[0].target

    def safe(self) -> bool:
        """No product reads what another writes, and no two write the same element."""
        try:
            if any(np.shares_memory(self.target, each, max_work=_WORK) for each in (self.left, self.right)):
                return False
            return self.summed or not any(np.shares_memory(self.target[0], each, max_work=_WORK) for each in self.target[1:])
        except np.exceptions.TooHardError:
            return False

    def __call__(self) -> None:
        left, right = _wide(self.left).swapaxes(-1, -2), _wide(self.right)
        if not self.summed:
            if self.adds:
                np.add(self.target, multiplied(left, right), out=self.target)
            else:
                self.target[...] = multiplied(left, right)
            return
        count = len(left) if left.ndim == 3 else len(right)
        terms = np.empty((count + self.adds, *self.target.shape), np.float32)
        if self.adds:
            terms[0] = self.target
        multiplied(left, right, out=terms[int(self.adds) :])
        np.add.reduce(terms, axis=0, out=self.target)


def joined(actions: Sequence[Action]) -> list[Action]:
    """The same computations, neighbouring products done together where that changes no bit."""
    found: list[Action] = []
    group: list[Product] = []
    for action in actions:
        if isinstance(action, Product):
            if group and not _follows(group, action):
                found.extend(_together(group))
                group = []
            group.append(action)
            continue
        found.extend(_together(group))
        group = []
        found.append(action)
    found.extend(_together(group))
    return found


def _together(group: Sequence[Product]) -> list[Action]:
    if len(group) >= _FEWEST:
        stack = _Stack(group)
        if stack.safe():
            return [stack]
    return [product.action for product in group]


def _follows(group: Sequence[Product], action: Product) -> bool:
    first = group[0]
    for mine, its in zip(first.arrays, action.arrays, strict=True):
        if (mine.shape, mine.strides, mine.dtype) != (its.shape, its.strides, its.dtype):
            return False
    distances = [_distance(mine, its) for mine, its in zip(first.arrays, action.arrays, strict=True)]
    if any(distance is None for distance in distances) or not any(distances[:2]):
        return False
    summed, (rows, columns) = distances[2] == 0, action.target.shape
    # A sum of terms of one element would be taken in another order.
    if (summed and (rows * columns < 2 or not action.adds)) or (not summed and action.adds != first.adds):
        return False
    if len(group) > 1:
        even = [_distance(mine, its) for mine, its in zip(first.arrays, group[1].arrays, strict=True)]
        if distances != [None if each is None else each * len(group) for each in even]:
            return False
    count = len(group) + 1
    wide = [rows * columns, *(array.size for array in action.arrays[:2] if array.dtype != np.float32)]
    return 4 * count * max(wide) <= _BYTES


def _distance(one: Array, other: Array) -> int | None:
    """Bytes from one array to another of the same memory; None if they are of different ones."""
    if one is other:
        return 0
    distance = _address(other) - _address(one)
    return distance if not distance or _owner(one) is _owner(other) else None


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _owner(array: Array) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _stacked(arrays: Sequence[Array]) -> Array:
    """A view [count, rows, columns] of arrays at even distances, or the one array that they all are."""
    distance = _distance(arrays[0], arrays[1])
    if not distance:
        return arrays[0]
    first = arrays[0]
    return np.lib.stride_tricks.as_strided(first, (len(arrays), *first.shape), (distance, *first.strides))


def _wide(values: Array) -> Array:
    """float32, each item laid out as a copy of it alone would be."""
    if values.dtype == np.float32:
        return values
    rows, columns = values.shape[-2:]
    turned = abs(values.strides[-2]) < abs(values.strides[-1])
    wide = np.empty((*values.shape[:-2], *((columns, rows) if turned else (rows, columns))), np.float32)
    if turned:
        wide = wide.swapaxes(-1, -2)
    wide[...] = values
    return wide
