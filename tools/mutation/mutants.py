"""Mutants: copies of a kernel's source with one planted fault each, made from its syntax tree."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["CLASSES", "Mutant", "mutants"]

CLASSES = {
    "dropped instruction": "an instruction is left out: a load, a copy, a product, a reset",
    "swapped operands": "two operands or operators of an instruction are exchanged",
    "wrong offset": "an access starts one element or one tile too late",
    "off by one": "a mask bound, a loop end or a comparison is off by one",
    "wrong dtype": "a tile has another element type",
    "oversize tile": "a tile or a constant is twice as large",
    "wrong memory": "a tile lies in another memory",
    "wrong operator": "an instruction computes something else",
    "wrong sign": "a factor changes its sign",
    "wrong condition": "a condition is inverted",
    "missing wait": "work is ordered or divided as if nobody had to wait: cores overlap, buffers are shared, stages run early",
}
"""The classes of planted faults."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One planted fault.

    Attributes:
      kind: one of `CLASSES`.
      line: line of the original source.
      what: the change, in words.
      number, variant: which node of the syntax tree, and which of the changes that are possible there.
    """

    kind: str
    line: int
    what: str
    number: int
    variant: int

    def plant(self, source: str) -> str:
        """The source with the fault in it."""
        tree = ast.parse(source)
        change = dict(_CHANGES)[self.kind]
        change(list(ast.walk(tree))[self.number], self.variant)
        return ast.unparse(ast.fix_missing_locations(tree))


_SWAPS = (
    ("stationary", "moving"),
    ("bound0", "bound1"),
    ("comp_op0", "comp_op1"),
    ("op0", "op1"),
    ("dst", "src"),
    ("dst", "data"),
    ("operand0", "operand1"),
    ("bias", "scale"),
    ("predicate", "on_true"),
    ("dst", "on_true_tile"),
)
_DTYPES = {"float32": "bfloat16", "uint8": "float32", "int32": "float32"}
_MEMORIES = {"sbuf": "psum", "psum": "sbuf", "shared_hbm": "private_hbm"}
_OPERATORS = {
    "maximum": "minimum",
    "minimum": "maximum",
    "multiply": "add",
    "add": "multiply",
    "exp": "tanh",
    "greater_equal": "greater",
    "less": "less_equal",
    "greater": "greater_equal",
    "tanh": "exp",
    "subtract": "add",
    "copy": "exp",
}


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a kernel's source, in the order of `CLASSES` and lines; the same source gives the same mutants."""
    nodes = list(enumerate(ast.walk(ast.parse(source))))
    found = []
    for kind, change in _CHANGES:
        for number, node in nodes:
            for variant in range(4):
                what = change(_probe(node), variant) if isinstance(node, _CHANGED) else None
                if what is None:
                    break
                found.append(Mutant(kind=kind, line=getattr(node, "lineno", 0), what=what, number=number, variant=variant))
    return sorted(found, key=lambda item: (list(CLASSES).index(item.kind), item.line, item.number, item.variant))


def _probe(node: ast.AST) -> ast.AST:
    """A copy to try a change on; the branches of an `if` are left out, because no change looks at them."""
    if isinstance(node, ast.If):
        return ast.If(test=copy.deepcopy(node.test), body=[], orelse=[])
    return copy.deepcopy(node)


_CHANGED = (ast.Expr, ast.Call, ast.keyword, ast.Slice, ast.Compare, ast.Assign, ast.If)


def _instruction(node: ast.AST) -> str:
    """Name of the instruction that a call is (`nisa.<name>`); empty for anything else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        return node.func.attr if node.func.value.id == "nisa" else ""
    return ""


def _drop(node: ast.AST, variant: int) -> str | None:
    if variant or not (isinstance(node, ast.Expr) and _instruction(node.value)):
        return None
    name = _instruction(node.value)
    node.value = ast.Constant(None)
    return f"{name} is left out"


def _swap(node: ast.AST, variant: int) -> str | None:
    if not isinstance(node, ast.Call) or not _instruction(node):
        return None
    by_name = {keyword.arg: keyword for keyword in node.keywords}
    pairs = [pair for pair in _SWAPS if pair[0] in by_name and pair[1] in by_name]
    if variant >= len(pairs):
        return None
    first, second = (by_name[name] for name in pairs[variant])
    first.value, second.value = second.value, first.value
    return f"{' and '.join(pairs[variant])} of {_instruction(node)} are exchanged"


def _offset(node: ast.AST, variant: int) -> str | None:
    if isinstance(node, ast.keyword) and node.arg == "offset" and not (isinstance(node.value, ast.Constant)):
        if variant > 1:
            return None
        step = (1, 128)[variant]
        what = ast.unparse(node.value)
        node.value = ast.BinOp(node.value, ast.Add(), ast.Constant(step))
        return f"offset={what} is {step} too large"
    if (
        isinstance(node, ast.Slice)
        and not variant
        and isinstance(node.lower, ast.expr)
        and not isinstance(node.lower, ast.Constant)
    ):
        what = ast.unparse(node)
        node.lower = ast.BinOp(node.lower, ast.Add(), ast.Constant(1))
        if node.upper is not None:
            node.upper = ast.BinOp(node.upper, ast.Add(), ast.Constant(1))
        return f"slice {what} is one too late"
    return None


def _off_by_one(node: ast.AST, variant: int) -> str | None:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and not variant:
        other = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}.get(type(node.ops[0]))
        if other is None:
            return None
        what = ast.unparse(node)
        node.ops = [other()]
        return f"{what} becomes {ast.unparse(node)}"
    if isinstance(node, ast.Assign) and variant < 2 and isinstance(node.targets[0], ast.Name):
        if node.targets[0].id not in ("start", "limit", "keys", "full", "last", "first", "tiles"):
            return None
        what, step = ast.unparse(node), (1, -1)[variant]
        node.value = ast.BinOp(node.value, ast.Add(), ast.Constant(step))
        return f"{what} is off by {step}"
    return None


def _attribute(owner: str, table: dict[str, str], words: str) -> Callable[[ast.AST, int], str | None]:
    def change(node: ast.AST, variant: int) -> str | None:
        if variant or not (isinstance(node, ast.keyword) and isinstance(node.value, ast.Attribute)):
            return None
        value = node.value
        if not (isinstance(value.value, ast.Name) and value.value.id == owner and value.attr in table):
            return None
        old, value.attr = value.attr, table[value.attr]
        return f"{words} {node.arg}={owner}.{old} becomes {owner}.{value.attr}"

    return change


def _oversize(node: ast.AST, variant: int) -> str | None:
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.targets[0], ast.Name):
        name, value = node.targets[0].id, node.value.value
        if variant or not name.isupper() or not isinstance(value, int):
            return None
        node.value = ast.Constant(2 * value)
        return f"{name} = {2 * value}"
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "ndarray"):
        return None
    shape = node.args[0] if node.args else None
    if not isinstance(shape, ast.Tuple) or variant >= min(2, len(shape.elts)):
        return None
    axis = 0 if variant == 0 else len(shape.elts) - 1
    what = ast.unparse(shape)
    shape.elts[axis] = ast.BinOp(shape.elts[axis], ast.Mult(), ast.Constant(2))
    return f"a tile of shape {what} has axis {axis} twice as long"


def _sign(node: ast.AST, variant: int) -> str | None:
    if variant or not (isinstance(node, ast.keyword) and node.arg in ("scale", "operand0", "operand1", "value")):
        return None
    if isinstance(node.value, ast.UnaryOp) and isinstance(node.value.op, ast.USub):
        what = ast.unparse(node.value)
        node.value = node.value.operand
    elif isinstance(node.value, ast.Name | ast.Subscript | ast.BinOp | ast.Constant) and not _is_zero(node.value):
        what = ast.unparse(node.value)
        if node.arg != "scale" and not isinstance(node.value, ast.BinOp | ast.Constant):
            return None  # a tile has no sign of its own
        node.value = ast.UnaryOp(ast.USub(), node.value)
    else:
        return None
    return f"{node.arg}={what} changes its sign"


def _is_zero(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in (0, 0.0, None)


def _condition(node: ast.AST, variant: int) -> str | None:
    if variant or not isinstance(node, ast.If):
        return None
    what = ast.unparse(node.test)
    node.test = ast.UnaryOp(ast.Not(), node.test)
    return f"if {what} is inverted"


def _wait(node: ast.AST, variant: int) -> str | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "ndarray":
        spaces = {keyword.arg: keyword.value for keyword in node.keywords}
        space = spaces.get("buffer")
        if variant or "address" in spaces or not (isinstance(space, ast.Attribute) and space.attr in ("sbuf", "psum")):
            return None
        node.keywords.append(ast.keyword("address", ast.Tuple([ast.Constant(0), ast.Constant(0)], ast.Load())))
        return f"a tile of shape {ast.unparse(node.args[0])} lies at address (0, 0) of {space.attr} every time"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("program_id", "num_programs"):
        if variant:
            return None
        name = node.func.attr
        node.func = ast.Name("int", ast.Load())
        node.args, node.keywords = [ast.Constant(0 if name == "program_id" else 1)], []
        return f"{name} is a constant: both cores do the same work"
    if isinstance(node, ast.Compare) and re.fullmatch(r"i >= \d", ast.unparse(node)) and not variant:
        return _late(node, int(ast.unparse(node)[-1]))
    return None


def _late(node: ast.Compare, stage: int) -> str:
    node.comparators = [ast.Constant(stage + 1)]
    return f"stage {stage + 1} of the pipeline starts one iteration late and loses its first step"


_CHANGES: tuple[tuple[str, Callable[[ast.AST, int], str | None]], ...] = (
    ("dropped instruction", _drop),
    ("swapped operands", _swap),
    ("wrong offset", _offset),
    ("off by one", _off_by_one),
    ("wrong dtype", _attribute("nl", _DTYPES, "dtype")),
    ("oversize tile", _oversize),
    ("wrong memory", _attribute("nl", _MEMORIES, "memory")),
    ("wrong operator", _attribute("nl", _OPERATORS, "operator")),
    ("wrong sign", _sign),
    ("wrong condition", _condition),
    ("missing wait", _wait),
)
