"""Arithmetic on shapes and strides, without tensors."""

from __future__ import annotations

import math

__all__ = ["permutation", "reshaped_strides", "row_major", "split_sizes"]


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Element strides of a dense row-major tensor of `shape`."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    strides.reverse()
    return tuple(strides)


def split_sizes(total: int, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """`shape` with its one -1 (if any) inferred so that the product is `total`; None if there is no such size."""
    if shape.count(-1) > 1 or any(size < -1 for size in shape):
        return None
    if -1 in shape:
        known = math.prod(size for size in shape if size != -1)
        if known == 0 or total % known:
            return None
        return tuple(total // known if size == -1 else size for size in shape)
    return shape if math.prod(shape) == total else None


def permutation(names: list[str], wanted: list[str]) -> tuple[int, ...] | None:
    """Positions in `names` of each of `wanted`; None unless both have the same names, each once."""
    if len(set(names)) != len(names) or sorted(names) != sorted(wanted):
        return None
    return tuple(names.index(name) for name in wanted)


def reshaped_strides(shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides that show the same elements, in the same order, as `wanted`; None if no strides do.

    Axes of size 1 do not matter. Runs of axes that are contiguous with one another are merged and split again.
    """
    if math.prod(shape) == 0:
        return row_major(wanted)
    old = [(size, step) for size, step in zip(shape, strides, strict=True) if size != 1]
    result = [0] * len(wanted)
    position = 0  # first old axis that is not used up
    axis = 0
    while axis < len(wanted):
        if wanted[axis] == 1:
            result[axis] = 1
            axis += 1
            continue
        if position == len(old):
            return None
        first_old, first_new = position, axis
        have, need = old[position][0], wanted[axis]
        while have != need:
            if have < need:
                position += 1
                if position == len(old):
                    return None
                have *= old[position][0]
            else:
                axis += 1
                need *= wanted[axis]
        for outer, inner in zip(old[first_old:position], old[first_old + 1 : position + 1], strict=True):
            if outer[1] != inner[1] * inner[0]:
                return None
        step = old[position][1]
        for back in range(axis, first_new - 1, -1):
            result[back] = step
            step *= wanted[back]
        position, axis = position + 1, axis + 1
    return tuple(result)
