"""Which functions may share a dictionary or an object: those that call one another."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from nki_hf.tools.kernel_lint.source import own_nodes

__all__ = ["sharing_groups"]


def sharing_groups(
    functions: Sequence[ast.FunctionDef], callee: Callable[[ast.FunctionDef, ast.Call], list[ast.FunctionDef]]
) -> dict[int, int]:
    """Function (its id) -> its group, below 0: functions that call one another, or a third one, may share a dictionary."""
    groups = {id(function): -1 - place for place, function in enumerate(functions)}
    for function in functions:
        for node in own_nodes(function):
            for other in callee(function, node) if isinstance(node, ast.Call) else ():
                one, two = groups[id(function)], groups[id(other)]
                if one != two:
                    groups = {each: one if group == two else group for each, group in groups.items()}
    return groups
