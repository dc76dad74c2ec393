"""Operands of instructions: the tiles that reach a call of the language, the engine that runs it, and what the stubs allow by
the table that the simulator has, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from nki_hf.sim.constraints.instructions import INSTRUCTIONS
from nki_hf.tools.kernel_lint.evaluation.machine import Use
from nki_hf.tools.kernel_lint.evaluation.tile import Size, Tile
from nki_hf.tools.kernel_lint.evaluation.values import Language
from nki_hf.tools.kernel_lint.rule import Module

__all__ = ["ALIKE", "COLUMNS", "DTYPES", "ENGINES", "ONE_DTYPE", "PAIRS", "PLACES", "TILES", "Operand", "engine_of", "operands"]

PAIRS = {name: table.one_in_psum for name, table in INSTRUCTIONS.items() if table.one_in_psum}
"""Instruction -> the two operands of which one at most is in PSUM."""

ALIKE = {name: table.equal for name, table in INSTRUCTIONS.items() if len(table.equal) > 1}
"""Instruction -> the tiles that have the same partitions and the same elements in each."""

COLUMNS = {name: table.columns for name, table in INSTRUCTIONS.items() if table.columns}
"""Instruction -> the operands that hold one value per partition, where they are tiles."""

DTYPES = {(name, word): kinds for name, table in INSTRUCTIONS.items() for word, kinds in table.dtypes}
DTYPES |= {(name, word): ("float32",) for name, table in INSTRUCTIONS.items() for word in table.fp32}
"""(instruction, operand) -> element types that its stub allows."""

ONE_DTYPE = {name: table.same_dtype for name, table in INSTRUCTIONS.items() if table.same_dtype}
ONE_DTYPE["nc_transpose"] = ("dst", "data")
"""Instruction -> operands with one element type."""

ENGINES = {name: table.engines for name, table in INSTRUCTIONS.items()}
"""Instruction -> the engines that its stub names, besides `unknown`."""

PLACES = {(name, word): "sbuf" for name, table in INSTRUCTIONS.items() for word in table.sbuf}
PLACES |= {(name, word): "psum" for name, table in INSTRUCTIONS.items() for word in table.psum}
"""(instruction, operand) -> the memory in which it has to lie."""

TILES = ("dst", "src", "data", "data1", "data2", "stationary", "moving", "on_true_tile", "on_true", "predicate")
"""Operands that are tiles, not numbers."""


@dataclass(frozen=True)
class Operand:
    """A tile that a call is given on one way through the kernel."""

    node: ast.expr
    tile: Tile

    @property
    def in_psum(self) -> bool:
        """True if it lies in PSUM."""
        return self.tile.buffer == "psum"

    @property
    def rows(self) -> Size:
        """Partitions; None if unknown."""
        return self.tile.partitions

    @property
    def free(self) -> Size:
        """Elements per partition; None if unknown."""
        return self.tile.free

    @property
    def flat(self) -> bool:
        """True if its shape is known to have one axis only, or not known at all."""
        return self.tile.shape is None or len(self.tile.shape) < 2

    @property
    def text(self) -> str:
        """As it stands in the source."""
        return ast.unparse(self.node)


def operands(module: Module, name: str | None = None) -> Iterator[tuple[Use, dict[str, Operand]]]:
    """(call, its tiles by parameter) of every instruction, or of the one named, on each way that the source shows; no
    arguments of a kernel, of which nothing but the memory is known.
    """
    for use in module.uses.of(module.functions, "nisa"):
        if name in (None, use.name):
            tiles = {word: value for word, value in use.given.items() if isinstance(value, Tile) and not value.argument}
            yield use, {word: Operand(use.nodes[word], tile) for word, tile in tiles.items()}


def engine_of(use: Use) -> str:
    """The engine that a call names: `vector`; empty if it names none, or that is not known."""
    engine = use.given.get("engine")
    return engine.text.rpartition(".")[2].removesuffix("_engine") if isinstance(engine, Language) else ""
