"""Calls of the language and the instructions: kinds of arguments, and in which memory their operands live."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from typing import Any

from nki_hf.tools.kernel_lint.evaluation.machine import Use
from nki_hf.tools.kernel_lint.evaluation.tile import Tile
from nki_hf.tools.kernel_lint.evaluation.values import Language
from nki_hf.tools.kernel_lint.rule import VERSIONS, Found, Module, rule
from nki_hf.tools.kernel_lint.source import own_nodes

__all__ = ["calls_of"]

_ENUM_ARGUMENTS = ("engine", "dge_mode", "oob_mode", "reduce_cmd", "dma_engine")
_DMA = ("dma_copy", "dma_transpose", "dma_compute")
_CREATORS = ("ndarray", "zeros", "ones", "full")
_FP32_MIN = -(2 - 2.0**-23) * 2.0**127
_PSUM_BANK_BYTES = 2048


@rule("raw-enum", VERSIONS, "migration guide 0.3.0: raw integers are no longer taken for enum parameters; name the member")
def _raw_enum(module: Module) -> Found:
    for use in _instructions(module):
        for word in _ENUM_ARGUMENTS:
            if isinstance(use.given.get(word), int | float | str):
                if word == "dge_mode" and not isinstance(use.nodes[word], ast.Constant):
                    continue  # public kernels that compile have a module's 3 there, by name
                yield use.nodes[word], f"nisa.{use.name}({word}={use.given[word]!r})"


@rule("string-buffer", VERSIONS, "migration guide 0.3.0: creation takes buffer objects of nl, no strings")
def _string_buffer(module: Module) -> Found:
    for use in module.uses.of(module.functions, "nl"):
        if use.name in _CREATORS and isinstance(use.given.get("buffer"), str):
            yield use.nodes["buffer"], f"nl.{use.name}(buffer={use.given['buffer']!r})"


@rule("psum-in-dma", VERSIONS, "migration guide 0.3.0: a DMA does not reach PSUM; copy to SBUF first")
def _psum_in_dma(module: Module) -> Found:
    for use in _instructions(module, *_DMA):
        for word in ("dst", "src", "srcs"):
            given = use.given.get(word)
            for operand in given if isinstance(given, list | tuple) else (given,):
                if isinstance(operand, Tile) and operand.buffer == "psum":
                    yield use.nodes[word], f"nisa.{use.name}: {word} {ast.unparse(use.nodes[word])} is in PSUM"


@rule("output-buffer", VERSIONS, "migration guide 0.3.0: outputs are allocated in shared_hbm and returned")
def _output_buffer(module: Module) -> Found:
    for function in _launched(module):
        for node, value in module.uses.returned.get(id(function), ()):
            for tile in _tiles(value):
                if tile.buffer not in ("", "shared_hbm") and not tile.argument:
                    yield node, f"{function.name} returns {ast.unparse(node)} in {tile.buffer}"


@rule(
    "output-given",
    VERSIONS,
    "an output that is an argument aliases it, which is unverified; return fresh tensors",
    refused=False,
)
def _output_given(module: Module) -> Found:
    for function in _launched(module):
        for node, value in module.uses.returned.get(id(function), ()):
            for tile in _tiles(value):
                if tile.argument:
                    yield node, f"{function.name} returns its parameter {tile.argument.rpartition('.')[2]}"
        if not any(isinstance(node, ast.Return) and node.value is not None for node in own_nodes(function)):
            yield function, f"{function.name} returns no output"


@rule("fill-type", VERSIONS, "migration guide 0.3.0: memset's value has its destination's type; packed x4 types take 0 only")
def _fill_type(module: Module) -> Found:
    for use, tile, value in _fills(module):
        integer = tile.dtype.startswith(("int", "uint"))
        if (integer and isinstance(value, float)) or (tile.dtype.endswith("_x4") and value != 0):
            yield use.call, f"memset of {ast.unparse(use.nodes['dst'])} ({tile.dtype}) with {value!r}"


@rule("fill-integer", VERSIONS, "a float tile is best filled with a float: 0.3.0 says that the types match", refused=False)
def _fill_integer(module: Module) -> Found:
    fills = [(use, tile.dtype, value) for use, tile, value in _fills(module)]
    other = {id(use.call) for use, dtype, _ in fills if not dtype.startswith(("float", "bfloat")) or dtype.endswith("_x4")}
    for use, dtype, value in fills:
        if type(value) is int and id(use.call) not in other:  # 0 suits a tile that has one type here, another there
            yield use.call, f"memset of {ast.unparse(use.nodes['dst'])} ({dtype}) with {value!r}"


@rule("range-fill", VERSIONS, "migration guide 0.3.0: range_select's on_false_value is the lowest float32, nothing else")
def _range_fill(module: Module) -> Found:
    for use in _instructions(module, "range_select"):
        value = use.given.get("on_false_value")
        if isinstance(value, int | float) and not math.isclose(value, _FP32_MIN, rel_tol=1e-6):
            yield use.call, f"nisa.range_select(on_false_value={ast.unparse(use.nodes['on_false_value'])})"


@rule("hwdge-cast", VERSIONS, "migration guide 0.3.0: hwdge moves bytes, so source and destination have one element type")
def _hwdge_cast(module: Module) -> Found:
    for use in _instructions(module, "dma_copy"):
        mode = use.given.get("dge_mode")
        if isinstance(mode, Language) and mode.text.endswith(".hwdge"):
            types = [tile.dtype for word in ("dst", "src") if isinstance(tile := use.given.get(word), Tile) and tile.dtype]
            if len(set(types)) > 1:
                yield use.call, f"nisa.dma_copy from {types[1]} to {types[0]} by hwdge"


@rule("transpose-rank", VERSIONS[1:], "migration guide 0.4.0: dma_transpose's dst has the rank of its src")
def _transpose_rank(module: Module) -> Found:
    for use in _instructions(module, "dma_transpose"):
        tiles = [use.given.get(word) for word in ("dst", "src")]
        ranks = [len(tile.shape) for tile in tiles if isinstance(tile, Tile) and tile.shape and not tile.argument]
        if len(set(ranks)) > 1:
            yield use.call, f"nisa.dma_transpose of rank {ranks[1]} to rank {ranks[0]}"


@rule("rsqrt-psum", VERSIONS[2:], "migration guide 0.5.0: nl.rsqrt no longer takes PSUM; use nisa.activation")
def _rsqrt_psum(module: Module) -> Found:
    for use in module.uses.of(module.functions, "nl"):
        for word, value in use.given.items() if use.name == "rsqrt" else ():
            if isinstance(value, Tile) and value.buffer == "psum":
                yield use.call, f"nl.rsqrt({ast.unparse(use.nodes[word])}) reads PSUM"


@rule("psum-address", VERSIONS, "migration guide 0.2.0: an address in PSUM is the start of a bank, a multiple of 2,048 bytes")
def _psum_address(module: Module) -> Found:
    for use in module.uses.of(module.functions, "nl"):
        address = use.given.get("address")
        if isinstance(use.result, Tile) and use.result.buffer == "psum" and isinstance(address, tuple | list) and address:
            if type(address[-1]) is int and address[-1] % _PSUM_BANK_BYTES:
                yield use.nodes["address"], f"address={ast.unparse(use.nodes['address'])} in PSUM"


def calls_of(module: Module, language: str) -> Iterator[tuple[ast.FunctionDef, ast.Call, str]]:
    """(function, call, name) of every call `<language>.<name>(...)` in kernel code."""
    for function in module.functions:
        for node in own_nodes(function):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == language
            ):
                yield function, node, node.func.attr


def _instructions(module: Module, *names: str) -> Iterator[Use]:
    """Calls of instructions, of all or of those named."""
    for use in module.uses.of(module.functions, "nisa"):
        if not names or use.name in names:
            yield use


def _launched(module: Module) -> Iterator[ast.FunctionDef]:
    """The kernels that are launched; another kernel's part, wrongly decorated, is none: see kernel-in-kernel."""
    for function in module.entries:
        if function.name not in module.sub_kernels:
            yield function


def _tiles(value: Any, depth: int = 6) -> Iterator[Tile]:
    if isinstance(value, Tile):
        yield value
    elif isinstance(value, list | tuple) and depth:
        for each in value:
            yield from _tiles(each, depth - 1)


def _fills(module: Module) -> Iterator[tuple[Use, Tile, int | float]]:
    for use in _instructions(module, "memset"):
        tile, value = use.given.get("dst"), use.given.get("value")
        if isinstance(tile, Tile) and isinstance(value, int | float) and not isinstance(value, bool):
            yield use, tile, value
