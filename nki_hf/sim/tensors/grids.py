"""Grid views of NKI 0.7: a tensor navigated in coordinates of tiles (`nl.tiles`) or of blocks of tiles (`nl.blocks`).

Source: the SDK's pages of NKI 0.7 for nki.language.tiles, blocks, alloc_tiles, alloc_blocks, empty_like, NkiGrid,
NkiTileGrid and NkiBlockGrid. A view allocates nothing and moves nothing; `.data` is the operand of instructions.

What the pages leave open is refused rather than guessed: `.data` of a selection that no single access pattern shows in the
order of its elements. On chip that is every selection of more than one tile along the partition axis.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nki_hf.errors import KernelTypeFault, KernelValueFault
from nki_hf.sim.dtypes import DType
from nki_hf.sim.faults import fault
from nki_hf.sim.tensors.grid_axes import Axis, Backing, Level, axes_over, regridded
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["NkiBlockGrid", "NkiGrid", "NkiTileGrid", "blocks", "tiles"]


class NkiGrid:
    """Base class of the two kinds of grid view; made by `tiles` and `blocks`, never by its own constructor.

    Indexing gives a grid of the same kind: an integer fixes a coordinate, which `shape` then no longer counts; a slice with
    a step of 1 or more keeps it. Coordinates that are left out are whole.
    """

    _backing: Backing
    _axes: tuple[Axis, ...]

    def __init__(self, **kwargs: Any) -> None:
        fault(
            "argument",
            type(self).__name__,
            "a grid is constructed directly",
            limit="grids come from nl.tiles, nl.blocks, nl.alloc_tiles and nl.alloc_blocks",
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells (tiles or blocks) along each coordinate that is not fixed yet; untiled leading axes count elements."""
        return tuple(axis.count for axis in self._axes if not axis.fixed)

    @property
    def tile_shape(self) -> tuple[int, ...]:
        """Elements of one whole tile, along the tiled axes."""
        return tuple(axis.level.tile for axis in self._axes if axis.tiled)

    @property
    def element_shape(self) -> tuple[int, ...]:
        """Elements that are selected along each axis of the source; untiled axes that are fixed are left out."""
        return tuple(axis.elements for axis in self._axes if axis.tiled or not axis.fixed)

    @property
    def index_step_elements(self) -> tuple[int, ...]:
        """Elements of the source from one cell to the next, for each coordinate of `shape`."""
        return tuple(axis.step * axis.cell for axis in self._axes if not axis.fixed)

    @property
    def is_remainder(self) -> bool:
        """Whether the selection has a cell that the end of the source makes smaller than `tile_shape` or its block."""
        return any(axis.tiled and axis.partial for axis in self._axes)

    @property
    def is_data_representable(self) -> bool:
        """Whether `data` can show this selection."""
        return self._backing.shows(self._axes)

    @property
    def data(self) -> NkiTensor:
        """The selection as one tensor of `element_shape`; writing to it writes the source.

        Raises:
          KernelFault: `is_data_representable` is False.
        """
        if not self.is_data_representable:
            fault(
                "unsupported",
                "data",
                f"{self!r} has no single access pattern",
                limit="slices with gaps, and on chip more than one tile along the partition axis, have none",
                advice="Index down to one tile",
            )
        return self._backing.tensor_of(self._axes)

    @property
    def dtype(self) -> DType:
        """Element type of the source."""
        return self._backing.tensor.dtype

    @property
    def buffer(self) -> Any:
        """Memory region of the source."""
        return self._backing.tensor.buffer

    def __getitem__(self, key: Any) -> Any:
        keys = list(key) if isinstance(key, tuple) else [key]
        free = [position for position, axis in enumerate(self._axes) if not axis.fixed]
        if len(keys) > len(free):
            fault("bounds", "index", f"{len(keys)} subscripts on {self!r}", limit=f"it has {len(free)} free coordinates")
        axes = list(self._axes)
        for position, item in zip(free, keys, strict=False):
            axes[position] = axes[position].indexed(item, repr(self))
        return _grid(type(self), self._backing, tuple(axes))

    __iter__ = None  # as for tensors: loop over range(grid.shape[0])

    def __repr__(self) -> str:
        source = self._backing.tensor
        return f"{type(self).__name__}{list(self.shape)} of {source!r}"


class NkiTileGrid(NkiGrid):
    """A tensor seen in tile coordinates."""


class NkiBlockGrid(NkiGrid):
    """A tensor seen in coordinates of blocks; `nl.tiles(block)` gives the tiles of a selection."""

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Tiles of one whole block, along the tiled axes."""
        return tuple(axis.level.block for axis in self._axes if axis.tiled)


def tiles(source: Any, *, tile_shape: tuple[int, ...] | None = None) -> NkiTileGrid:
    """A tensor, or what a grid selects, as a grid of tiles.

    Args:
      source: a tensor, a grid of tiles or a grid of blocks.
      tile_shape: elements of one tile, for the trailing axes of the source: two or more. Axes before them are not tiled
        (HBM only). None takes that of a grid.
    """
    return _grid(NkiTileGrid, *_divided("tiles", source, tile_shape, None))


def blocks(source: Any, *, tile_shape: tuple[int, ...] | None = None, block_shape: tuple[int, ...]) -> NkiBlockGrid:
    """A tensor, or what a grid selects, as a grid of blocks of tiles; `block_shape` counts tiles along the tiled axes."""
    return _grid(NkiBlockGrid, *_divided("blocks", source, tile_shape, block_shape))


def _divided(what: str, source: Any, tile_shape: Any, block_shape: Any) -> tuple[Backing, tuple[Axis, ...]]:
    if isinstance(source, NkiGrid):
        sizes = source.tile_shape if tile_shape is None else whole_numbers(what, "tile_shape", tile_shape)
        groups = (1,) * len(sizes) if block_shape is None else whole_numbers(what, "block_shape", block_shape)
        _same_length(what, sizes, groups, source.tile_shape)
        levels = iter([Level(size, group) for size, group in zip(sizes, groups, strict=True)])
        return source._backing, tuple(regridded(axis, next(levels)) if axis.tiled else axis for axis in source._axes)
    if not isinstance(source, NkiTensor):
        fault("argument", what, f"source={source!r}", limit="must be a tensor or a grid")
    if source.is_indirect():
        fault("unsupported", what, f"{source!r} is moved by a run-time index", limit="a grid stands on a direct view")
    if tile_shape is None:
        fault("argument", what, "tile_shape is missing", limit="a tensor has no tile shape of its own")
    sizes = whole_numbers(what, "tile_shape", tile_shape)
    groups = (1,) * len(sizes) if block_shape is None else whole_numbers(what, "block_shape", block_shape)
    _same_length(what, sizes, groups, sizes)
    return Backing(source), axes_over(what, source.shape, sizes, groups, on_chip=source.on_chip)


def whole_numbers(what: str, name: str, value: Any) -> tuple[int, ...]:
    """`value`, checked to be a tuple of positive integers."""
    if not isinstance(value, tuple) or not all(type(item) is int for item in value):
        fault("argument", what, f"{name}={value!r}", limit="must be a tuple of integers", raised=KernelTypeFault)
    if any(item < 1 for item in value):
        fault("shape", what, f"{name}={value}", limit="every entry must be 1 or more", raised=KernelValueFault)
    return value


def _same_length(what: str, sizes: tuple[int, ...], groups: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if len(groups) != len(sizes):
        fault(
            "shape",
            what,
            f"block_shape={groups}",
            limit=f"must have the {len(sizes)} entries of tile_shape={sizes}",
            raised=KernelValueFault,
        )
    if len(sizes) != len(wanted):
        fault("shape", what, f"tile_shape={sizes}", limit=f"must have the {len(wanted)} entries of the source's {wanted}")


def grid_over(backing: Backing, axes: tuple[Axis, ...]) -> NkiTileGrid:
    """The grid of tiles of an allocation."""
    made: NkiTileGrid = _grid(NkiTileGrid, backing, axes)
    return made


def _grid(kind: type, backing: Backing, axes: tuple[Axis, ...]) -> Any:
    grid: Any = object.__new__(kind)
    grid._backing, grid._axes = backing, axes
    return grid


def packed_like(grid: NkiGrid, backing: Backing, order: tuple[int, ...] | None) -> Any:
    """A grid over `backing`, which holds the elements of `grid` without gaps, with the coordinates that `grid` has.

    Args:
      order: where each tiled axis of the new grid comes from; None keeps their order.
    """
    kept = [axis for axis in grid._axes if axis.tiled or not axis.fixed]
    dense = [replace(axis, origin=0, step=1, end=axis.elements) for axis in kept]
    if order is not None:
        dense = [dense[position] for position in order]
    return _grid(type(grid), backing, tuple(dense))
