"""Numbers that stand in the source: sizes of tiles and of their views, as far as constants tell them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from nki_hf.tools.kernel_lint.source import last_name, own_nodes

__all__ = ["WIDTHS", "Size", "View", "constants_of", "number", "pattern_of", "view_of", "whole_of"]

Size = int | None


@dataclass(frozen=True)
class View:
    """A part of a tile, as far as the source shows it.

    Attributes:
      shape: sizes of its axes.
      starts: first place of each axis of the whole.
      offset: elements before its first one in the partition.
      axes: `(step in elements, size)` of its free axes.
    """

    shape: tuple[Size, ...]
    starts: tuple[Size, ...]
    offset: Size
    axes: tuple[tuple[Size, Size], ...]


WIDTHS = {
    "float32": 4, "int32": 4, "uint32": 4, "tfloat32": 4, "bfloat16": 2, "float16": 2, "int16": 2, "uint16": 2, "int8": 1,
    "uint8": 1, "bool_": 1, "float8_e4m3": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""Bytes of an element."""

_TILE_SIZES = {"pmax": 128, "gemm_stationary_fmax": 128, "gemm_moving_fmax": 512, "psum_fmax": 512, "psum_bank_fmax": 512}


def constants_of(tree: ast.Module, function: ast.FunctionDef) -> dict[str, int]:
    """Names that hold one whole number in a function: of the module, and those that the function binds once."""
    own: dict[str, list[ast.expr]] = {}
    for node in own_nodes(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.setdefault(node.id, [])
    for node in own_nodes(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            own[node.targets[0].id].append(node.value)
    stores = [node.id for node in own_nodes(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    hidden = {argument.arg for argument in function.args.args} | set(own)
    found: dict[str, int] = {}
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        pairs = [(target, statement.value) for target in targets if isinstance(target, ast.Name)] if targets else []  # type: ignore[attr-defined]
        for target, value in pairs:
            size = number(value, found)
            if size is not None and target.id not in hidden:
                found[target.id] = size
    for name, values in own.items():
        size = number(values[0], found) if len(values) == 1 and stores.count(name) == 1 else None
        if size is not None:
            found[name] = size
    return found


def number(node: ast.expr | None, constants: Mapping[str, int]) -> Size:
    """The whole number that an expression stands for; None if the source does not show it."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("nl.tile_size."):
        return _TILE_SIZES.get(node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name | ast.Attribute):
        return constants.get(ast.unparse(node))  # `tile.shape[1]`, `sizes[0]`
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        size = number(node.operand, constants)
        return None if size is None else -size
    if isinstance(node, ast.BinOp):
        left, right = number(node.left, constants), number(node.right, constants)
        if left is None or right is None:
            return None
        if isinstance(node.op, ast.Add | ast.Sub):
            return left + right if isinstance(node.op, ast.Add) else left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.FloorDiv | ast.Mod) and right:
            return left // right if isinstance(node.op, ast.FloorDiv) else left % right
    return None


def view_of(shape: tuple[Size, ...], index: ast.expr, constants: Mapping[str, int], cuts: Collection[str] = ()) -> View | None:
    """The view `tile[index]`; None if its axes cannot be told.

    Args:
      shape: of the whole.
      index: what stands in the brackets.
      constants: names that hold one whole number.
      cuts: names that hold, or may hold, a part of an axis (`slice`, `nl.ds`): their axis stays, its size is not known.
    """
    items = list(index.elts) if isinstance(index, ast.Tuple) else [index]
    if len(items) > len(shape) or any(isinstance(item, ast.Constant) and item.value in (None, ...) for item in items):
        return None
    items += [ast.Slice()] * (len(shape) - len(items))
    sizes: list[Size] = []
    starts: list[Size] = []
    steps: list[Size] = []
    for size, item in zip(shape, items, strict=True):
        steps.append(1)
        if isinstance(item, ast.Slice):
            first = 0 if item.lower is None else number(item.lower, constants)
            last = size if item.upper is None else number(item.upper, constants)
            steps[-1] = 1 if item.step is None else number(item.step, constants)
            starts.append(first)
            step = steps[-1]
            known = first is not None and last is not None and step is not None and step > 0
            sizes.append(-((first - last) // step) if known else None)  # type: ignore[operator]
        elif isinstance(item, ast.Name) and item.id in cuts:
            starts.append(None)
            sizes.append(None)
        elif isinstance(item, ast.Call) and last_name(item.func) == "ds" and len(item.args) == 2:
            starts.append(number(item.args[0], constants))
            sizes.append(number(item.args[1], constants))
        elif isinstance(item, ast.Constant | ast.Name | ast.BinOp | ast.UnaryOp):
            starts.append(number(item, constants))  # one place: the axis goes
            steps[-1] = 0
        else:
            return None
    return _laid_out(shape, sizes, starts, steps)


def whole_of(shape: tuple[Size, ...]) -> View:
    """A tile itself."""
    return _laid_out(shape, list(shape), [0] * len(shape), [1] * len(shape))


def _laid_out(shape: tuple[Size, ...], sizes: list[Size], starts: list[Size], steps: list[Size]) -> View:
    """`sizes` has an entry for each axis that stays; a step of 0 says that the axis goes."""
    stays, left = [step != 0 for step in steps], list(sizes)
    offset: Size = 0
    stride: Size = 1
    axes: list[tuple[Size, Size]] = []
    for place in range(len(shape) - 1, 0, -1):
        start, step = starts[place], steps[place]
        offset = None if None in (offset, start, stride) else offset + start * stride  # type: ignore[operator]
        if stays[place]:
            axes.append((None if None in (step, stride) else step * stride, left.pop()))  # type: ignore[operator]
        size = shape[place]
        stride = None if None in (stride, size) else stride * size  # type: ignore[operator]
    return View(tuple(sizes), tuple(starts), offset, tuple(reversed(axes)))


def pattern_of(call: ast.Call, constants: Mapping[str, int]) -> View | None:
    """The view `tile.ap(pattern=[[step, size], ...], offset=n)` if its pattern is written out; its partitions are not told."""
    given = {word.arg: word.value for word in call.keywords}
    pattern = given.get("pattern", call.args[0] if call.args else None)
    if not isinstance(pattern, ast.List | ast.Tuple) or not set(given) <= {"pattern", "offset"} or len(call.args) > 1:
        return None
    pairs = [each.elts for each in pattern.elts if isinstance(each, ast.List | ast.Tuple) and len(each.elts) == 2]
    if len(pairs) != len(pattern.elts) or not pairs:
        return None
    numbers = [(number(step, constants), number(size, constants)) for step, size in pairs]
    row, offset = numbers[0][0], number(given["offset"], constants) if "offset" in given else 0
    inside = None if offset is None or not row else offset % row
    return View(tuple(size for _, size in numbers), (None,) * len(numbers), inside, tuple(numbers[1:]))
