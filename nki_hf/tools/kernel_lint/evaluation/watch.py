"""What the parser's evaluator (NKI 0.3 to 0.6) does not do with a value, told by the rule of parser_values.py or syntax.py that
names it: these see what stands in the source, this sees what a name, an item or a result turns out to be.
"""

from __future__ import annotations

import ast
from typing import Any

from nki_hf.tools.kernel_lint.evaluation.tile import Tile
from nki_hf.tools.kernel_lint.evaluation.values import Function, Host, Language, Listed, Member

__all__ = ["called", "computed", "indexed", "looped", "ordered", "read", "stored"]

FUNCTIONS = (
    "abs", "bool", "dict", "divmod", "float", "int", "isinstance", "len", "list", "max", "min", "print", "range", "slice",
    "str", "tuple", "type",
)  # fmt: skip
"""Built-in functions of Python that it has (KLR, Trace/Python)."""
LIST_METHODS = ("append", "clear", "copy", "count", "extend", "index", "pop", "remove", "reverse")
DICT_METHODS = ("clear", "copy", "get", "items", "keys", "pop", "setdefault", "values")
ONE_VALUE = ("abs", "bool", "float", "int", "len", "list", "str", "tuple", "type")
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def _is_tile(value: Any) -> bool:
    return isinstance(value, Tile) and value.sure


def computed(op: ast.operator, left: Any, right: Any, made: Any) -> str:
    """The rule that an operator breaks; empty if none."""
    sides = (left, right)
    if any(isinstance(each, str) for each in sides) and not isinstance(op, ast.Add):
        return "string-operator"
    if any(_is_tile(each) for each in sides):
        return "tile-assignment"
    if any(isinstance(each, dict) for each in sides):
        return "container-operator"
    if any(isinstance(each, Listed) for each in sides) and not isinstance(op, ast.Add | ast.Mult):
        return "container-operator"
    if any(isinstance(each, Member) for each in sides):
        return "enum-operator"
    return "wide-integer" if type(made) is int and not -(2**31) <= made < 2**31 else ""


def ordered(op: ast.cmpop, left: Any, right: Any) -> str:
    """The rule that a comparison breaks."""
    if not isinstance(op, _ORDER):
        return ""
    if _is_tile(left) or _is_tile(right):
        return "tile-assignment"
    return "enum-operator" if isinstance(left, Member) or isinstance(right, Member) else ""


def read(owner: Any, name: str) -> str:
    """The rule that `owner.name` breaks."""
    if isinstance(owner, str):
        return "string-method"
    if isinstance(owner, Listed) and name not in LIST_METHODS:
        return "container-method"
    if isinstance(owner, dict) and name not in DICT_METHODS:
        return "container-method"
    return "builtin-attribute" if isinstance(owner, Host) and owner.text.startswith("builtins.") else ""


def indexed(owner: Any, index: Any) -> str:
    """The rule that `owner[index]` breaks."""
    if isinstance(owner, str):
        return "string-item"
    return "dict-key" if isinstance(owner, dict) and _no_text(index) else ""


def stored(owner: Any, index: Any) -> str:
    """The rule that `owner[index] = ...` breaks."""
    if isinstance(owner, Tile):
        return "tile-assignment"
    if isinstance(owner, list) and (isinstance(index, slice | tuple) or (type(index) is int and index < 0)):
        return "slice-target"
    return "dict-key" if isinstance(owner, dict) and _no_text(index) else ""


def _no_text(index: Any) -> bool:
    return isinstance(index, int | float | tuple | Language | None)


def looped(over: Any) -> str:
    """The rule that a loop over a value breaks."""
    return "dictionary-loop" if isinstance(over, dict) else "string-item" if isinstance(over, str) else ""


def called(function: Any, given: list[Any]) -> str:
    """The rule that a call breaks."""
    if isinstance(function, Function):
        return "named-lambda" if isinstance(function.node, ast.Lambda) and function.outer is None else ""
    if not isinstance(function, Host) or not function.text.startswith("builtins."):
        return ""
    name = function.text.rpartition(".")[2]
    if name not in FUNCTIONS:
        return "" if name in ("set", "frozenset", "super") else "builtin"
    if name in ("min", "max") and len(given) > 2:
        return "least-of-many"
    if name in ("len", "list", "tuple") and given and isinstance(given[0], str):
        return "string-item"
    return "one-value" if name in ONE_VALUE and len(given) > 1 else ""
