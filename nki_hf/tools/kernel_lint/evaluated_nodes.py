"""Evaluated nodes: what the parser's evaluator meets in a kernel's functions, and of which type names surely are."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from nki_hf.tools.kernel_lint.evaluation.watch import DICT_METHODS, LIST_METHODS
from nki_hf.tools.kernel_lint.rule import Module
from nki_hf.tools.kernel_lint.source import own_nodes, string_constants

_TILE_WORDS = ("dst", "src", "data", "data1", "data2", "stationary", "moving", "on_true_tile")
"""Parameters of instructions that take tiles or tensors only."""


def tiles_of(function: ast.FunctionDef) -> set[str]:
    """Names that are surely tiles or tensors: allocated here and bound to nothing else, or given and handed to instructions."""
    bound = list(_bound(function))
    tiles = {name for name, value in bound if _allocates(value)} - {name for name, value in bound if not _allocates(value)}
    given = {argument.arg for argument in function.args.args}
    given -= {node.id for node in own_nodes(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in own_nodes(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("nisa."):
            for word in node.keywords:
                if word.arg in _TILE_WORDS and isinstance(word.value, ast.Name) and word.value.id in given:
                    tiles.add(word.value.id)
    return tiles


def _allocates(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) in ("nl.ndarray", "nl.zeros", "nl.ones", "nl.full")


def values(module: Module) -> Iterator[tuple[ast.FunctionDef, ast.AST]]:
    """(function, node) of what is evaluated: bodies and defaults, but annotations and what other rules refuse as a whole."""
    for function in module.functions:
        for node in _evaluated(function):
            yield function, node


@lru_cache(maxsize=4096)
def _evaluated(function: ast.FunctionDef) -> tuple[ast.AST, ...]:
    waiting: list[ast.AST] = [*function.body, *function.args.defaults]
    waiting += [each for each in function.args.kw_defaults if each is not None]
    found = []
    while waiting:
        node = waiting.pop()
        found.append(node)
        if isinstance(node, ast.Raise | ast.FunctionDef | ast.ClassDef | ast.Match):
            continue
        skipped = (
            node.annotation if isinstance(node, ast.AnnAssign) else node.type if isinstance(node, ast.ExceptHandler) else None
        )
        waiting += [child for child in ast.iter_child_nodes(node) if child is not skipped]
    return tuple(found)


@lru_cache(maxsize=4096)
def own_names(function: ast.FunctionDef) -> frozenset[str]:
    """Names of a function's parameters and of what it binds."""
    names = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    stored = {node.id for node in own_nodes(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return frozenset(names | stored)


@lru_cache(maxsize=4096)
def _own_strings(function: ast.FunctionDef) -> frozenset[str]:
    """Names that a function binds to strings only."""
    stored = Counter(node.id for node in own_nodes(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    texts = Counter(name for name, value in _bound(function) if _text(value))
    given = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    return frozenset(name for name, count in texts.items() if stored[name] == count and name not in given)


def is_string(module: Module, function: ast.FunctionDef, node: ast.expr) -> bool:
    """True for a string as it stands there, `str(...)`, and a name that is bound to such only, here or in the module."""
    if isinstance(node, ast.Name):
        own = _own_strings(function)
        return node.id in own or (node.id in string_constants(module.tree) and node.id not in own_names(function))
    return _text(node)


def _text(node: ast.expr) -> bool:
    constant = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return constant or isinstance(node, ast.JoinedStr) or calls(node, ("str",))


def calls(node: ast.AST, names: tuple[str, ...]) -> bool:
    """True for a call of one of these functions by its name."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def minus(node: ast.expr) -> bool:
    """True for `-x`."""
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def targets(node: ast.AST) -> list[ast.expr]:
    """What an assignment puts its value into."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign) else []


def containers(function: ast.FunctionDef) -> dict[str, tuple[str, ...] | None]:
    """Methods of the names that are surely lists or dictionaries; None for names that are bound to something else as well."""
    found: dict[str, tuple[str, ...] | None] = {}
    for name, value in _bound(function):
        kind: tuple[str, ...] | None = None
        if isinstance(value, ast.List) or calls(value, ("list",)):
            kind = LIST_METHODS
        elif isinstance(value, ast.Dict) or calls(value, ("dict",)):
            kind = DICT_METHODS
        found[name] = kind if found.get(name, kind) == kind else None
    return found


def _bound(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    for node in own_nodes(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value
