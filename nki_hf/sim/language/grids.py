"""Grid views of NKI 0.7 (`nl.tiles`, `nl.blocks`, ...): their public signatures; none of them is simulated.

Source: pages nki.language.tiles, blocks, alloc_tiles, alloc_blocks, NkiGrid of the SDK's documentation of NKI 0.7.
"""

from __future__ import annotations

from typing import Any, NoReturn

from nki_hf.sim.faults import fault

__all__ = ["NkiBlockGrid", "NkiGrid", "NkiTileGrid", "alloc_blocks", "alloc_tiles", "blocks", "tiles"]


def _refuse(name: str) -> NoReturn:
    fault(
        "unsupported", name, f"nl.{name} is not simulated",
        limit="grid views of NKI 0.7 are not part of this simulator",
        advice="Index the tensor with slices (t[i * rows : (i + 1) * rows, ...]) and allocate tiles with nl.ndarray",
    )  # fmt: skip


class NkiGrid:
    """Base class of grid views. Refused: raises a KernelFault of kind `unsupported`, as all names of this module do."""

    def __init__(self, **kwargs: Any) -> None:
        _refuse(type(self).__name__)


class NkiTileGrid(NkiGrid):
    """A tensor seen in tile coordinates. Refused."""


class NkiBlockGrid(NkiGrid):
    """A tensor seen in coordinates of blocks of tiles. Refused."""


def tiles(source: Any, *, tile_shape: tuple[int, ...] | None = None) -> NkiTileGrid:
    """A tensor as a grid of tiles. Refused."""
    _refuse("tiles")


def blocks(source: Any, *, tile_shape: tuple[int, ...] | None = None, block_shape: tuple[int, ...]) -> NkiBlockGrid:
    """A tensor as a grid of blocks of tiles. Refused."""
    _refuse("blocks")


def alloc_tiles(
    *, tile_shape: tuple[int, ...], element_shape: tuple[int, ...], buffer: Any, dtype: Any, address: Any = None, name: str = ""
) -> NkiTileGrid:
    """A new tensor as a grid of tiles. Refused."""
    _refuse("alloc_tiles")


def alloc_blocks(
    *, tile_shape: tuple[int, ...], block_shape: tuple[int, ...], element_shape: tuple[int, ...], buffer: Any, dtype: Any,
    address: Any = None, name: str = "",
) -> NkiBlockGrid:  # fmt: skip
    """A new tensor as a grid of blocks of tiles. Refused."""
    _refuse("alloc_blocks")
