"""Calls of the language and the instructions: kinds of arguments, and in which memory their operands live."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from nki_hf.tools.kernel_lint.rule import VERSIONS, Found, Module, rule
from nki_hf.tools.kernel_lint.source import last_name, own_nodes
from nki_hf.tools.kernel_lint.tile import Tile

__all__ = ["calls_of"]

_ENUM_ARGUMENTS = ("engine", "dge_mode", "oob_mode", "reduce_cmd", "dma_engine")
_DMA = ("dma_copy", "dma_transpose", "dma_compute")
_CREATORS = ("ndarray", "zeros", "ones", "full")
_FP32_MIN = -3.4028234663852886e38
_PSUM_BANK_BYTES = 2048


@rule("raw-enum", VERSIONS, "migration guide 0.3.0: raw integers are no longer taken for enum parameters; name the member")
def _raw_enum(module: Module) -> Found:
    for _, node, name in calls_of(module, "nisa"):
        for keyword in node.keywords:
            if keyword.arg in _ENUM_ARGUMENTS and isinstance(keyword.value, ast.Constant) and keyword.value.value is not None:
                yield keyword.value, f"nisa.{name}({keyword.arg}={keyword.value.value!r})"


@rule("string-buffer", VERSIONS, "migration guide 0.3.0: creation takes buffer objects of nl, no strings")
def _string_buffer(module: Module) -> Found:
    for _, node, name in calls_of(module, "nl"):
        if name in _CREATORS:
            buffer = _argument(node, "buffer", 3 if name == "full" else 2)
            if isinstance(buffer, ast.Constant) and isinstance(buffer.value, str):
                yield buffer, f"nl.{name}(buffer={buffer.value!r})"


@rule("psum-in-dma", VERSIONS, "migration guide 0.3.0: a DMA does not reach PSUM; copy to SBUF first")
def _psum_in_dma(module: Module) -> Found:
    for function, node, name in calls_of(module, "nisa"):
        if name not in _DMA:
            continue
        given = [("dst", _argument(node, "dst", 0)), ("src", _argument(node, "srcs" if name == "dma_compute" else "src", 1))]
        for word, value in given:
            several = value.elts if isinstance(value, ast.List | ast.Tuple) else [value] if value is not None else []
            for operand in several:
                tile = module.places.tile(function, operand)
                if tile is not None and "psum" in tile.spaces:
                    yield operand, f"nisa.{name}: {word} {ast.unparse(operand)} is in PSUM"


@rule("output-buffer", VERSIONS, "migration guide 0.3.0: outputs are allocated in shared_hbm and returned")
def _output_buffer(module: Module) -> Found:
    for function, value in _returned(module):
        for tile in module.places.held_or_self(function, value):
            if not tile.spaces & {"shared_hbm"}:
                yield value, f"{function.name} returns {ast.unparse(value)} in {' or '.join(sorted(tile.spaces))}"


@rule(
    "output-given",
    VERSIONS,
    "an output that is an argument aliases it, which is unverified; return fresh tensors",
    refused=False,
)
def _output_given(module: Module) -> Found:
    returning = {id(function) for function, _ in _returned(module)}
    for function, value in _returned(module):
        name = _viewed(function, value)
        if name in {argument.arg for argument in function.args.args}:
            yield value, f"{function.name} returns its parameter {name}"
    for function in module.entries:
        if id(function) not in returning and function.name not in module.sub_kernels:
            yield function, f"{function.name} returns no output"


@rule("fill-type", VERSIONS, "migration guide 0.3.0: memset's value has its destination's type; packed x4 types take 0 only")
def _fill_type(module: Module) -> Found:
    for target, tile, value, node in _fills(module):
        integer = tile.dtype.startswith(("int", "uint"))
        if (integer and isinstance(value, float)) or (tile.dtype.endswith("_x4") and value != 0):
            yield node, f"memset of {target} ({tile.dtype}) with {value!r}"


@rule("fill-integer", VERSIONS, "a float tile is best filled with a float: 0.3.0 says that the types match", refused=False)
def _fill_integer(module: Module) -> Found:
    for target, tile, value, node in _fills(module):
        floating = tile.dtype.startswith(("float", "bfloat")) and not tile.dtype.endswith("_x4")
        if floating and type(value) is int:
            yield node, f"memset of {target} ({tile.dtype}) with {value!r}"


@rule("range-fill", VERSIONS, "migration guide 0.3.0: range_select's on_false_value is the lowest float32, nothing else")
def _range_fill(module: Module) -> Found:
    constants = _constants(module.tree)
    for _, node, name in calls_of(module, "nisa"):
        if name == "range_select":
            value = _argument(node, "on_false_value", 10)
            number = _number(value, constants)
            if number is not None and not math.isclose(number, _FP32_MIN, rel_tol=1e-6):
                yield node, f"nisa.range_select(on_false_value={ast.unparse(value) if value is not None else ''})"


@rule("hwdge-cast", VERSIONS, "migration guide 0.3.0: hwdge moves bytes, so source and destination have one element type")
def _hwdge_cast(module: Module) -> Found:
    for function, node, name in calls_of(module, "nisa"):
        mode = _argument(node, "dge_mode", 4)
        if name == "dma_copy" and mode is not None and last_name(mode) == "hwdge":
            tiles = [_tile(module, function, _argument(node, word, place)) for place, word in enumerate(("dst", "src"))]
            types = [tile.dtype for tile in tiles if tile is not None and tile.dtype]
            if len(set(types)) > 1:
                yield node, f"nisa.dma_copy from {types[1]} to {types[0]} by hwdge"


@rule("transpose-rank", VERSIONS[1:], "migration guide 0.4.0: dma_transpose's dst has the rank of its src")
def _transpose_rank(module: Module) -> Found:
    for function, node, name in calls_of(module, "nisa"):
        if name == "dma_transpose":
            tiles = [_tile(module, function, _argument(node, word, place)) for place, word in enumerate(("dst", "src"))]
            ranks = [tile.rank for tile in tiles if tile is not None and tile.rank]
            if len(set(ranks)) > 1:
                yield node, f"nisa.dma_transpose of rank {ranks[1]} to rank {ranks[0]}"


@rule("rsqrt-psum", VERSIONS[2:], "migration guide 0.5.0: nl.rsqrt no longer takes PSUM; use nisa.activation")
def _rsqrt_psum(module: Module) -> Found:
    for function, node, name in calls_of(module, "nl"):
        tile = _tile(module, function, node.args[0] if node.args else None)
        if name == "rsqrt" and tile is not None and tile.spaces == {"psum"}:
            yield node, f"nl.rsqrt({ast.unparse(node.args[0])}) reads PSUM"


@rule("psum-address", VERSIONS, "migration guide 0.2.0: an address in PSUM is the start of a bank, a multiple of 2,048 bytes")
def _psum_address(module: Module) -> Found:
    for _, node, name in calls_of(module, "nl"):
        address, buffer = _argument(node, "address", 99), _argument(node, "buffer", 2)
        if name == "ndarray" and buffer is not None and last_name(buffer) == "psum" and isinstance(address, ast.Tuple):
            start = _number(address.elts[-1], {})
            if start is not None and start % _PSUM_BANK_BYTES:
                yield address, f"address={ast.unparse(address)} in PSUM"


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


def _returned(module: Module) -> Iterator[tuple[ast.FunctionDef, ast.expr]]:
    """(entry, value) of everything that the kernels themselves return."""
    for function in module.entries:
        if function.name in module.sub_kernels:
            continue  # another kernel's part, wrongly decorated: see kernel-in-kernel
        for node in own_nodes(function):
            if isinstance(node, ast.Return) and node.value is not None:
                for value in node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]:
                    yield function, value


def _fills(module: Module) -> Iterator[tuple[str, Tile, int | float, ast.Call]]:
    for function, node, name in calls_of(module, "nisa"):
        target, value = _argument(node, "dst", 0), _argument(node, "value", 1)
        tile = _tile(module, function, target)
        if name == "memset" and tile is not None and target is not None and isinstance(value, ast.Constant):
            if isinstance(value.value, int | float) and not isinstance(value.value, bool):
                yield ast.unparse(target), tile, value.value, node


def _argument(node: ast.Call, name: str, position: int) -> ast.expr | None:
    for keyword in node.keywords:
        if keyword.arg == name:
            return keyword.value
    if position < len(node.args) and not any(isinstance(value, ast.Starred) for value in node.args):
        return node.args[position]
    return None


def _tile(module: Module, function: ast.FunctionDef, node: ast.expr | None) -> Tile | None:
    return None if node is None else module.places.tile(function, node)


def _constants(tree: ast.Module) -> dict[str, float]:
    """Module-level names of numbers."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            number = _number(node.value, {})
            if number is not None:
                found[node.targets[0].id] = number
    return found


def _number(node: ast.expr | None, constants: dict[str, float]) -> float | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _number(node.operand, constants)
        return None if number is None else -number
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    return constants.get(node.id) if isinstance(node, ast.Name) else None


def _viewed(function: ast.FunctionDef, node: ast.expr) -> str:
    """The name that an expression is a view of, through names that are bound once; empty if it is none."""
    bound: dict[str, list[ast.expr]] = {}
    for other in own_nodes(function):
        if isinstance(other, ast.Assign):
            for target in other.targets:
                if isinstance(target, ast.Name):
                    bound.setdefault(target.id, []).append(other.value)
    for _ in range(len(bound) + 1):
        while isinstance(node, ast.Subscript) or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            node = node.value if isinstance(node, ast.Subscript) else node.func.value  # type: ignore[attr-defined,unused-ignore]
        if not isinstance(node, ast.Name) or len(bound.get(node.id, ())) != 1:
            break
        node = bound[node.id][0]
    return node.id if isinstance(node, ast.Name) and node.id not in bound else ""
