"""A step of a random kernel whose drawing, issue and model stand together: what each of the three is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tools.fuzz.kernel_programs import Step

__all__ = ["UNIT", "Array", "Draw", "Rare", "Seen", "Site", "as_type", "flat_of", "typed"]

Array = np.ndarray[Any, Any]
UNIT = 2.0**-24
_LEAST = 2.0**-126


@dataclass(frozen=True)
class Draw:
    """What a step is drawn with: numbers, and the program that it will be part of."""

    rng: np.random.Generator
    program: Step
    reading: Callable[[], Step]

    def pick(self, *items: Any) -> Any:
        """One of them."""
        return items[int(self.rng.integers(len(items)))]

    def number(self) -> float:
        """A small number that float32 holds."""
        return float(self.pick(1.0, -1.5, 2.0, 0.5, 3.0, -4.0))

    def flag(self) -> bool:
        """True or False."""
        return bool(self.rng.integers(2))


class Site:
    """Where a step is issued. `data` is the view `[p, ...]` of `n` elements a partition that it reads."""

    def __init__(self, step: Step, tiles: dict[str, Any], view: Callable[[Step], Any], program: Step, core: Any) -> None:
        self.step, self.tiles, self.view, self.program, self.core = step, tiles, view, program, core
        self.data = view(step["data"])
        self.p, self.n = self.data.shape[0], int(np.prod(self.data.shape[1:]))
        self.start = step["data"]["partitions"][0]

    def fresh(self, *shape: int, dtype: Any = nl.float32, buffer: Any = nl.sbuf) -> Any:
        """A new tile."""
        return nl.ndarray(shape, dtype, buffer=buffer)

    def flat(self, name: str = "data", dtype: Any = nl.float32) -> Any:
        """A view's elements `[p, n]` in a new tile."""
        return flat_of(self.view(self.step[name]), dtype)

    def ints(self, rows: int, count: int, below: int, dtype: Any = nl.int32, least: int = 0) -> Any:
        """Whole numbers `[rows, count]` from `least` on, `below` many, of the input of random ones."""
        found = self.fresh(rows, count, dtype=dtype)
        more = {"op1": nl.add, "operand1": float(least)} if least else {}
        nisa.tensor_scalar(dst=found, data=self.tiles["noise"][0:rows, 0:count], op0=nl.mod, operand0=float(below), **more)
        return found

    def operand(self, value: Any) -> Any:
        """A number, or the column of that name beside the data."""
        return self.tiles[value][self.start : self.start + self.p, 0:1] if isinstance(value, str) else value

    def hbm(self, tile: Any) -> Any:
        """A copy in HBM."""
        found = self.fresh(*tile.shape, dtype=tile.dtype, buffer=nl.private_hbm)
        nisa.dma_copy(dst=found, src=tile)
        return found


class Seen:
    """What a step's model knows: what really was in the tiles before it. `kind`: the type that the result must have."""

    kind: str | None = None

    def __init__(self, step: Step, state: dict[str, Array], raw: Callable[[Step], Array], which: int) -> None:
        self.step, self.state, self._raw, self.which = step, state, raw, which
        self.data = raw(step["data"])
        self.p, self.n = self.data.shape
        self.start = step["data"]["partitions"][0]

    def raw(self, name: str = "data") -> Array:
        """A view's elements `[p, n]` in their type."""
        return self._raw(self.step[name])

    def wide(self, name: str = "data", dtype: str = "float32") -> Array:
        """The same in float64, after a copy to a tile of that type."""
        return typed(self.raw(name), dtype).astype(np.float64)

    def ints(self, rows: int, count: int, below: int, least: int = 0) -> Array:
        """What `Site.ints` gives."""
        return self.state["noise"][:rows, :count].astype(np.int64) % below + least

    def operand(self, value: Any) -> Any:
        """A float32 number or column."""
        if isinstance(value, str):
            return self.state[value][self.start : self.start + self.p]
        return np.float32(value)


@dataclass(frozen=True)
class Rare:
    """A kind of step.

    Attributes:
      draw: gives the fields of a step, or None where the program has no room for it.
      issue: issues it; the tile that holds its result.
      model: values `[partitions, elements]`, and how far a result may be from them beside the rounding to its type.
    """

    draw: Callable[[Draw], Step | None]
    issue: Callable[[Site], Any]
    model: Callable[[Seen], tuple[Array, Any]]


def flat_of(view: Any, dtype: Any = nl.float32) -> Any:
    """A view's elements in a new tile `[partitions, elements]`."""
    found = nl.ndarray((view.shape[0], int(np.prod(view.shape[1:]))), dtype)
    nisa.tensor_copy(dst=found, src=view)
    return found


def as_type(name: str) -> np.dtype[Any]:
    """NumPy's element type of that name."""
    names = {"float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2, "bfloat16": ml_dtypes.bfloat16}
    return np.dtype(names.get(name, name))


def typed(values: Array, name: str) -> Array:
    """Values through float32 to an element type: to nearest even; integers saturate. tfloat32 has 10 bits of fraction."""
    if name == "tfloat32":
        bits = values.astype(np.float32).view(np.uint32)
        kept = (bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFFE000)
        return np.where(np.isfinite(values), kept.view(np.float32), values.astype(np.float32))
    kind = as_type(name)
    if values.dtype == kind:
        return values
    with np.errstate(all="ignore"):
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            wide = np.rint(values.astype(np.float64))
            return np.where(np.isnan(wide), 0, np.clip(wide, limits.min, limits.max)).astype(kind)
        return values.astype(np.float32).astype(kind)
