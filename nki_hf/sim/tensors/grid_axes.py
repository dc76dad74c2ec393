"""One axis of a grid view, and how the cells chosen along all axes become one tensor view."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

from nki_hf.errors import KernelValueFault
from nki_hf.sim.faults import fault
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["Axis", "Backing", "Level", "axes_over", "regridded"]


@dataclass(frozen=True)
class Level:
    """How an axis is divided: `block` tiles of `tile` elements make a cell."""

    tile: int
    block: int = 1


@dataclass(frozen=True)
class Axis:
    """The cells chosen along one axis of the source.

    Attributes:
      origin: first element of the first cell.
      count: cells.
      step: cells from one chosen cell to the next.
      end: first element after the last chosen cell, which the end of the source may have made smaller.
      level: the division.
      tiled: False for a leading axis without tiles, whose cells are single elements.
      fixed: whether an integer has chosen this axis's coordinate.
    """

    origin: int
    count: int
    step: int
    end: int
    level: Level
    tiled: bool = True
    fixed: bool = False

    @property
    def cell(self) -> int:
        """Elements of a whole cell."""
        return self.level.tile * self.level.block

    @property
    def dense(self) -> bool:
        """Whether the chosen cells follow one another without gaps."""
        return self.step == 1 or self.count == 1

    @property
    def elements(self) -> int:
        """Elements in the chosen cells."""
        if self.count == 0:
            return 0
        last = self.origin + (self.count - 1) * self.step * self.cell
        return (self.count - 1) * self.cell + self.end - last

    @property
    def partial(self) -> bool:
        """Whether the last chosen cell is smaller than a whole one."""
        return self.elements < self.count * self.cell

    def indexed(self, key: Any, text: str) -> Axis:
        """The axis after the subscript `key`: an integer or a slice."""
        if isinstance(key, slice):
            start, stop, step = key.indices(self.count) if key.step is None or _whole(key.step, text) > 0 else (0, 0, 0)
            if step < 1:
                fault("bounds", "index", f"step={key.step} on {text}", limit="steps must be 1 or more")
            count = len(range(start, stop, step))
            if count == 0:
                fault("bounds", "index", f"{key} on {text}", limit=f"must choose at least one of {self.count} cells")
            return self._chosen(start, count, step, fixed=False)
        index = _whole(key, text)
        if not -self.count <= index < self.count:
            fault(
                "bounds",
                "index",
                f"index {index} on {text}",
                limit=f"must be {-self.count} to {self.count - 1}",
                index=index,
                size=self.count,
            )
        return self._chosen(index % self.count, 1, 1, fixed=True)

    def _chosen(self, start: int, count: int, step: int, *, fixed: bool) -> Axis:
        origin = self.origin + start * self.step * self.cell
        wide = step * self.step
        last = origin + (count - 1) * wide * self.cell
        return replace(self, origin=origin, count=count, step=wide, end=min(last + self.cell, self.end), fixed=fixed)


@dataclass(frozen=True)
class Backing:
    """The tensor under a grid.

    Attributes:
      tensor: the source, or an allocation made for a grid.
      folded: None; or, of an allocation on chip whose rows may be more than the partitions, the shape
        `(partitions, tiles of rows, *free)` that `tensor` has in that reading.
    """

    tensor: NkiTensor
    folded: tuple[int, ...] | None = None

    def shows(self, axes: tuple[Axis, ...]) -> bool:
        """Whether one strided view has exactly the chosen elements, in order."""
        if not all(axis.dense or axis.cell == 1 for axis in axes):
            return False
        rows = axes[0]
        return self.folded is None or rows.origin // self.folded[0] == (rows.end - 1) // self.folded[0]

    def tensor_of(self, axes: tuple[Axis, ...]) -> NkiTensor:
        """That view."""
        keys: list[Any] = []
        for axis in axes:
            if axis.fixed and not axis.tiled:
                keys.append(axis.origin)
            else:
                keys.append(slice(axis.origin, axis.end, None if axis.dense else axis.step))
        if self.folded is None:
            return self.tensor[tuple(keys)]
        group, row = divmod(keys[0].start, self.folded[0])
        rows = slice(row, row + keys[0].stop - keys[0].start)
        return self.tensor.reshape(self.folded)[(rows, group, *keys[1:])]


def axes_over(
    what: str, shape: tuple[int, ...], sizes: tuple[int, ...], groups: tuple[int, ...], *, on_chip: bool
) -> tuple[Axis, ...]:
    """The axes of a whole tensor of `shape` under tiles of `sizes`, which stand for its trailing axes."""
    if len(sizes) < 2:
        fault("shape", what, f"tile_shape={sizes}", limit="must have two entries or more, rows first", raised=KernelValueFault)
    free = len(shape) - len(sizes)
    if free < 0 or (free and on_chip):
        limit = f"must have {len(shape)} entries on chip" if on_chip else f"at most the {len(shape)} entries of the tensor"
        fault("shape", what, f"tile_shape={sizes} over {list(shape)}", limit=limit, raised=KernelValueFault)
    leading = tuple(Axis(0, size, 1, size, Level(1), tiled=False) for size in shape[:free])
    levels = (Level(size, group) for size, group in zip(sizes, groups, strict=True))
    whole = (Axis(0, 1, 1, size, Level(size)) for size in shape[free:])
    return leading + tuple(regridded(axis, level) for axis, level in zip(whole, levels, strict=True))


def regridded(axis: Axis, level: Level) -> Axis:
    """The elements chosen along `axis`, divided anew; its coordinate is free again."""
    if not axis.dense and level.tile * level.block != axis.cell:
        fault(
            "unsupported",
            "grid",
            f"cells with gaps between them are divided into {level.tile} x {level.block} elements",
            limit="only a selection without gaps can be divided anew",
            advice="Choose the cells after dividing",
        )
    cell = level.tile * level.block
    if not axis.dense:
        return replace(axis, level=level, fixed=False)
    return replace(axis, count=-(-(axis.end - axis.origin) // cell), step=1, level=level, fixed=False)


def _whole(value: Any, text: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        fault("argument", "index", f"{value!r} on {text}", limit="coordinates are integers or slices known at build time")
    return operator.index(value)
