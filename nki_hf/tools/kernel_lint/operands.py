"""Operands of instructions: the tiles that reach a call of the language, and the engine that runs it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from nki_hf.tools.kernel_lint.evaluation.machine import Use
from nki_hf.tools.kernel_lint.evaluation.tile import HBM, Size, Tile
from nki_hf.tools.kernel_lint.evaluation.values import Language
from nki_hf.tools.kernel_lint.rule import Module

__all__ = ["ALIKE", "COLUMNS", "DTYPES", "ENGINES", "PAIRS", "TILES", "Operand", "engine_of", "operands"]

PAIRS = {
    "tensor_tensor": ("data1", "data2"),
    "scalar_tensor_tensor": ("data", "operand1"),
    "select_reduce": ("on_true", "predicate"),
    "tensor_copy_predicated": ("src", "predicate"),
}
"""Instruction -> the two operands of which one at most is in PSUM."""

ALIKE = {
    "tensor_tensor": ("dst", "data1", "data2"),
    "tensor_copy": ("dst", "src"),
    "tensor_copy_predicated": ("dst", "src", "predicate"),
    "scalar_tensor_tensor": ("dst", "data", "operand1"),
    "tensor_scalar": ("dst", "data"),
    "activation": ("dst", "data"),
    "reciprocal": ("dst", "data"),
    "select_reduce": ("dst", "on_true", "predicate"),
    "range_select": ("dst", "on_true_tile"),
}
"""Instruction -> the tiles that have the same partitions and the same elements in each."""

COLUMNS = {
    "tensor_scalar": ("operand0", "operand1"),
    "scalar_tensor_tensor": ("operand0",),
    "activation": ("bias", "scale", "reduce_res"),
    "activation_reduce": ("bias", "scale", "reduce_res"),
    "range_select": ("bound0", "bound1", "reduce_res"),
    "select_reduce": ("on_false", "reduce_res"),
}
"""Instruction -> the operands that hold one value per partition, where they are tiles."""

DTYPES = {
    ("range_select", "bound0"): ("float32",),
    ("range_select", "bound1"): ("float32",),
    ("select_reduce", "predicate"): ("int8", "uint8", "int16", "uint16"),
    ("tensor_copy_predicated", "predicate"): ("uint8", "uint16", "uint32"),
}
"""(instruction, operand) -> element types that its stub allows."""

ENGINES = {
    "memset": ("vector", "gpsimd"),
    "tensor_copy": ("vector", "scalar", "gpsimd"),
    "tensor_tensor": ("vector", "gpsimd"),
    "tensor_scalar": ("vector", "scalar", "gpsimd"),
    "nc_transpose": ("tensor", "vector"),
}
"""Instruction -> the engines that its stub names, besides `unknown`."""

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
    def in_hbm(self) -> bool:
        """True if it lies in HBM."""
        return self.tile.buffer in HBM

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
