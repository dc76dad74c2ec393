"""A tile or tensor of kernel code and its views: memory, element type, sizes, and where in its memory a view begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nki_hf.tools.kernel_lint.evaluation.values import Cut, Unknown

__all__ = ["HBM", "WIDTHS", "Size", "Tile", "indexed", "patterned", "read_as", "reshaped", "size_of", "unlaid", "whole_steps"]

Size = int | None

WIDTHS = {
    "float32": 4, "int32": 4, "uint32": 4, "tfloat32": 4, "bfloat16": 2, "float16": 2, "int16": 2, "uint16": 2, "int8": 1,
    "uint8": 1, "bool_": 1, "float8_e4m3": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""Bytes of an element."""

HBM = ("hbm", "shared_hbm", "private_hbm")


@dataclass(frozen=True)
class Tile:
    """A tile or a view of one.

    Attributes:
      name: tells tiles apart: `a:12`.
      buffer: its memory, `sbuf`, `psum`, `shared_hbm`; empty if unknown.
      dtype: element type, `float32`; empty if unknown.
      shape: sizes, `Unknown` where the source does not show one; None if not even their number is known.
      start: first partition; None if unknown. The first axis of a whole tile is its partitions.
      offset: elements before its first one in a partition; None if unknown.
      steps: elements from place to place, by free axis; None if unknown.
      rows: True while the partitions are an axis of it.
      argument: the parameter of the kernel that it is, or is a part of.
      sure: True if that argument is surely a tensor, since it is sliced or reshaped.
      view: how it was made of the whole tile, `[h]`; empty for the whole. A part has other axes than its whole: `q[h].shape[1]`
        is not `q.shape[1]`.
    """

    name: str
    buffer: str
    dtype: str
    shape: tuple[Any, ...] | None
    start: Size = 0
    offset: Size = 0
    steps: tuple[Size, ...] | None = None
    rows: bool = True
    argument: str = ""
    sure: bool = True
    view: str = ""

    @property
    def key(self) -> str:
        """Its text in the keys of what is unknown; no other view of the same tile has it."""
        return f"{self.whole}{self.view}"

    @property
    def whole(self) -> str:
        """The text of the tile that it is a view of."""
        return self.argument or self.name

    @property
    def partitions(self) -> Size:
        """Its partitions; None if unknown."""
        if not self.rows:
            return 1
        return size_of(self.shape[0]) if self.shape else None

    @property
    def free(self) -> Size:
        """Elements per partition; None if unknown."""
        if self.shape is None or (self.rows and not self.shape):
            return None
        total = 1
        for each in self.shape[1:] if self.rows else self.shape:
            size = size_of(each)
            if size is None:
                return None
            total *= size
        return total


def size_of(value: Any) -> Size:
    """A whole number, or None."""
    return value if type(value) is int else None


def whole_steps(shape: Sequence[Any]) -> tuple[Size, ...]:
    """Steps of the free axes of a whole tile."""
    steps: list[Size] = []
    step: Size = 1
    for each in reversed(shape[1:]):
        steps.append(step)
        size = size_of(each)
        step = None if step is None or size is None else step * size
    return tuple(reversed(steps))


def unlaid(tile: Tile, shape: tuple[Any, ...] | None = None, dtype: str | None = None) -> Tile:
    """The elements shown another way: memory and type stay, where they lie is not told."""
    return replace(
        tile,
        shape=shape,
        dtype=tile.dtype if dtype is None else dtype,
        start=None,
        offset=None,
        steps=None,
        rows=True,
        sure=True,
    )


def read_as(tile: Tile, dtype: str) -> Tile:
    """The bytes of a tile read as another element type: the last axis scales."""
    old, new = WIDTHS.get(tile.dtype), WIDTHS.get(dtype)
    last = size_of(tile.shape[-1]) if tile.shape else None
    steps = tile.steps or ()
    if old is None or new is None or last is None or last * old % new or (steps and steps[-1] != 1):
        return unlaid(tile, None, dtype)
    scaled = tuple(None if step is None else step * old // new for step in steps[:-1])
    return replace(
        tile,
        dtype=dtype,
        shape=(*(tile.shape or ())[:-1], last * old // new),
        offset=None if tile.offset is None or tile.offset * old % new else tile.offset * old // new,
        steps=(*scaled, 1) if steps else tile.steps,
        sure=True,
    )


def reshaped(tile: Tile, shape: Any) -> Tile:
    """The same elements in order in axes of other sizes; partitions stay where the first axis does."""
    if not isinstance(shape, tuple | list):
        return unlaid(tile)
    sizes = tuple(Unknown("?") if each == -1 else each for each in shape)
    in_order = tile.shape is not None and tile.steps == whole_steps(tile.shape)
    if in_order and tile.rows and sizes and tile.shape and sizes[0] == tile.shape[0]:
        return replace(tile, shape=sizes, steps=whole_steps(sizes), sure=True)
    return unlaid(tile, sizes)


def indexed(tile: Tile, index: Any) -> Tile | None:
    """`tile[index]`; None if that is no place of it: more indices than axes."""
    items = list(index) if isinstance(index, tuple) else [index]
    if tile.shape is None:
        first = items[0]
        simple = tile.rows and isinstance(first, slice | Cut) and not any(each is None or each is ... for each in items)
        start = _first(first) if simple and tile.start is not None else None
        rows = _extent(None, first) if simple else None
        others = [Unknown("?")] * max(1, len(items) - 1)  # how many axes it has is not told
        return replace(
            unlaid(tile),
            start=None if start is None or tile.start is None else tile.start + start,
            shape=None if rows is None else (rows, *others),
        )
    if ... in items:
        at = items.index(...)
        missing = len(tile.shape) - sum(each is not None for each in items) + 1
        items[at : at + 1] = [slice(None)] * missing
    if None in items:
        return unlaid(tile)
    if len(items) > len(tile.shape):
        return None
    items += [slice(None)] * (len(tile.shape) - len(items))
    start, offset, rows = tile.start, tile.offset, tile.rows
    sizes: list[Any] = []
    steps: list[Size] = []
    old = [None] * tile.rows + list(tile.steps if tile.steps is not None else [None] * (len(tile.shape) - tile.rows))
    for axis, (item, size) in enumerate(zip(items, tile.shape, strict=True)):
        first = _first(item)
        if axis == 0 and tile.rows:
            start = None if start is None or first is None else start + first
            rows = isinstance(item, slice | Cut) or not isinstance(item, int | Unknown)
        else:
            moved = first == 0 or None not in (first, old[axis])
            offset = None if offset is None or not moved else offset + (first * old[axis] if first else 0)  # type: ignore[operator]
        if isinstance(item, slice | Cut):
            sizes.append(_extent(size, item))
            if axis or not tile.rows:
                step = item.step if isinstance(item, slice) and item.step is not None else 1
                steps.append(None if old[axis] is None or size_of(step) is None else old[axis] * step)  # type: ignore[operator]
        elif not isinstance(item, int | Unknown):
            return unlaid(tile)  # a tensor of indices
        elif isinstance(item, Unknown) and item.key.startswith("?"):
            return unlaid(tile)  # what may be a place or a part
    return replace(tile, shape=tuple(sizes), start=start, offset=offset, steps=tuple(steps), rows=rows, sure=True)


def _first(item: Any) -> Size:
    """The first place that an index takes; from the end is not told."""
    if isinstance(item, slice):
        first = 0 if item.start is None else size_of(item.start)
    else:
        first = size_of(item.start if isinstance(item, Cut) else item)
    return None if first is None or first < 0 else first


def _extent(size: Any, item: slice | Cut) -> Any:
    """The places that a part has; as Python does it not cut off at the axis' end, since the front end refuses that."""
    if isinstance(item, Cut):
        return item.size
    first, last = item.start or 0, size if item.stop is None else item.stop
    if item.start is None and item.step is None and item.stop is None:
        return size
    step = 1 if item.step is None else item.step
    if all(type(each) is int for each in (first, last, step)) and step > 0:
        known = size_of(size)
        if known is not None:
            first, last = (each + known if each < 0 else each for each in (first, last))
        elif first < 0 or last < 0:
            return Unknown("?")
        return max(0, -((first - last) // step))
    return Unknown("?")


def patterned(tile: Tile, pattern: Any, offset: Any) -> Tile:
    """`tile.ap(pattern=[[step, size], ...], offset=n)`; its partitions are not told."""
    pairs = (
        [tuple(each) for each in pattern if isinstance(each, list | tuple) and len(each) == 2]
        if isinstance(pattern, list | tuple)
        else []
    )
    if not pairs or len(pairs) != len(pattern):
        return unlaid(tile)
    row, first = size_of(pairs[0][0]), size_of(offset)
    inside = first % row if row and first is not None and tile.offset == 0 else None
    return replace(
        unlaid(tile, tuple(size for _, size in pairs)),
        offset=inside,
        steps=tuple(size_of(step) for step, _ in pairs[1:]),
    )
