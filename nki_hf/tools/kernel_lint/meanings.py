"""What names stand for, where a function or its module binds them once: language names, tuples of numbers, parts of an axis."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache

from nki_hf.tools.kernel_lint.source import own_nodes

__all__ = ["bound_in_module", "bound_once", "derived_names", "meaning", "parsed", "stores_of"]

_STEPS = 8
"""Names that are followed one after the other: `axes = both`, `both = ALL`, `ALL = (0, 1)`."""


@lru_cache(maxsize=4096)
def bound_once(function: ast.FunctionDef) -> Mapping[str, ast.expr]:
    """Names that a function binds once, by a plain assignment, and to what; no parameters, no lists that it changes."""
    inside = own_nodes(function)
    stores = stores_of(function)
    changed = {
        node.value.id
        for node in inside
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.value, ast.Name)
        if isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Store)
    }
    return {
        node.targets[0].id: node.value
        for node in inside
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        if stores[node.targets[0].id] == 1 and not (isinstance(node.value, ast.List) and node.targets[0].id in changed)
    }


@lru_cache(maxsize=4096)
def derived_names(function: ast.FunctionDef) -> tuple[tuple[str, ast.expr], ...]:
    """(name, expression) of names that a function binds once, in the order of the source; `rows, cols = tile.shape` gives
    `tile.shape[0]` and `tile.shape[1]`.
    """
    stores = stores_of(function)
    found: list[tuple[str, ast.expr]] = []
    for node in sorted((each for each in own_nodes(function) if isinstance(each, ast.Assign)), key=lambda each: each.lineno):
        target, value = node.targets[0], node.value
        pairs: list[tuple[ast.expr, ast.expr]] = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Name | ast.Attribute):
            pairs = [(each, parsed(f"{ast.unparse(value)}[{place}]")) for place, each in enumerate(target.elts)]
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
            pairs = list(zip(target.elts, value.elts, strict=True))
        if len(node.targets) == 1:
            found += [(each.id, is_) for each, is_ in pairs if isinstance(each, ast.Name) and stores[each.id] == 1]
    return tuple(found)


def bound_in_module(tree: ast.Module) -> dict[str, ast.expr]:
    """Names that a module binds once, by a plain assignment, and to what."""
    stores = Counter(
        node.id
        for item in tree.body
        for node in _outside(item)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    return {
        item.targets[0].id: item.value
        for item in tree.body
        if isinstance(item, ast.Assign) and len(item.targets) == 1 and isinstance(item.targets[0], ast.Name)
        if stores[item.targets[0].id] == 1
    }


def meaning(
    function: ast.FunctionDef,
    node: ast.expr,
    given: Callable[[str], ast.expr | None],
    module: Mapping[str, ast.expr],
    known: Callable[[ast.expr], ast.expr | None],
) -> ast.expr:
    """What an expression of a function stands for, as far as names that are bound once tell; else the expression.

    Args:
      function: where it stands.
      node: the expression.
      given: what a parameter stands for.
      module: names of the module.
      known: what an expression that is no name stands for: `tile.dtype`.
    """
    arguments = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
    stores = stores_of(function)
    for _ in range(_STEPS):
        further: ast.expr | None
        if isinstance(node, ast.Name) and node.id in arguments:
            further = None if stores[node.id] > 1 else given(node.id)
        elif isinstance(node, ast.Name):
            further = bound_once(function).get(node.id) if stores[node.id] else module.get(node.id)
        else:
            further = known(node)
        if further is None:
            return node
        node = further
    return node


def parsed(text: str) -> ast.expr:
    """The expression of a text."""
    return ast.parse(text, mode="eval").body


@lru_cache(maxsize=4096)
def stores_of(function: ast.FunctionDef) -> Counter[str]:
    """How often each name is bound in a function; parameters count once."""
    arguments = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
    nodes = own_nodes(function)
    return Counter([*arguments, *(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))])


def _outside(item: ast.stmt) -> tuple[ast.AST, ...]:
    return () if isinstance(item, ast.FunctionDef | ast.ClassDef) else tuple(ast.walk(item))
