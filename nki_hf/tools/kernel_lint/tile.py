"""A tile as the source of a kernel shows it: its memories, element type and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nki_hf.tools.kernel_lint.sizes import WIDTHS, Size

__all__ = ["Tile", "by_axis", "joined", "read_as"]


@dataclass(frozen=True)
class Tile:
    """A tile or a view of one.

    Attributes:
      spaces: memories it may live in; several only for a parameter that is given several.
      dtype: element type as written, e.g. `float32`; empty if that is not a name of the language.
      rank: of its shape; 0 if unknown.
      shape: sizes by axis, None where the source does not show one; empty if unknown.
    """

    spaces: frozenset[str]
    dtype: str = ""
    rank: int = 0
    shape: tuple[Size, ...] = ()


def joined(one: Tile, other: Tile) -> Tile:
    """What two tiles that one name may stand for have in common, in the memories of both."""
    return Tile(
        spaces=one.spaces | other.spaces,
        dtype=one.dtype if one.dtype == other.dtype else "",
        rank=one.rank if one.rank == other.rank else 0,
        shape=one.shape if one.shape == other.shape else (),
    )


def read_as(tile: Tile, dtype: str) -> Tile:
    """The bytes of a tile read as another element type: the last axis scales."""
    old, new = WIDTHS.get(tile.dtype), WIDTHS.get(dtype)
    last = tile.shape[-1] if tile.shape else None
    if old is None or new is None or last is None or last * old % new:
        return replace(tile, rank=0, shape=(), dtype=dtype)
    return replace(tile, shape=(*tile.shape[:-1], last * old // new), dtype=dtype)


def by_axis(name: str, sizes: Sequence[Size]) -> dict[str, int]:
    """`name[0]` and `name[-2]`, ... -> size, of those that are known."""
    places = [(place, size) for place, size in enumerate(sizes) if size is not None]
    return {f"{name}[{each}]": size for place, size in places for each in (place, place - len(sizes))}
