"""What the variables of loops hold where an instruction stands: the first, the second and the last turn of each.

Every front end unrolls such a loop, so that a place which only the second turn shows (`tile[:, 5 * n : 5 * (n + 1)]` from
n = 1 on) is one that the compiler sees.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nki_hf.tools.kernel_lint.sizes import number
from nki_hf.tools.kernel_lint.source import last_name, own_nodes

__all__ = ["turns_of"]

_RANGES = ("range", "affine_range", "sequential_range", "static_range")


@dataclass(frozen=True)
class _Loop:
    """A loop around a statement.

    Attributes:
      name: its variable.
      values: of its first, second and last turn, as far as known; empty if nothing is.
      changed: every name that it binds.
    """

    name: str
    values: tuple[int, ...]
    changed: frozenset[str]


def turns_of(
    function: ast.FunctionDef, constants: Mapping[str, int], given: Mapping[str, int]
) -> dict[int, tuple[dict[str, int], ...]]:
    """By call (its id): the whole numbers that names hold in some turns of the loops around it, `constants` among them.

    `given`: parameters that every call gives one number. A loop that may be left early, and a name that decides whether the
    call is reached, tell nothing.
    """
    bound = [node.id for node in own_nodes(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    derived = [
        (node.targets[0].id, node.value)
        for node in sorted((each for each in own_nodes(function) if isinstance(each, ast.Assign)), key=lambda each: each.lineno)
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) and bound.count(node.targets[0].id) == 1
    ]
    once = {name for name in bound if bound.count(name) == 1}
    left = any(isinstance(node, ast.Return) and node is not function.body[-1] for node in own_nodes(function))
    parameters = tuple(
        _Loop(name, (value,), frozenset({name, *bound})) for name, value in given.items() if name not in bound and not left
    )
    found = {}
    for call, loops in _placed(function.body, parameters, once, constants):
        turns = []
        for chosen in _chosen(loops):
            values = {**constants, **chosen}
            for name, value in derived:
                size = number(value, values)
                if size is not None:
                    values[name] = size
            turns.append(values)
        found[id(call)] = tuple(turns)
    return found


def _chosen(loops: tuple[_Loop, ...]) -> Iterator[dict[str, int]]:
    """Values of the variables: all loops at their first turn, each at another while the others are, all at their last."""
    known = [loop for loop in loops if loop.values]
    first = {loop.name: loop.values[0] for loop in known}
    yield first
    for loop in known:
        for value in loop.values[1:]:
            yield {**first, loop.name: value}
    if len(known) > 1:
        yield {loop.name: loop.values[-1] for loop in known}


def _placed(
    body: list[ast.stmt], loops: tuple[_Loop, ...], once: set[str], constants: Mapping[str, int]
) -> Iterator[tuple[ast.Call, tuple[_Loop, ...]]]:
    for statement in body:
        inner = loops
        if isinstance(statement, ast.For):
            inner = (*loops, _loop(statement, once, constants))
        elif isinstance(statement, ast.While):
            inner = _without(loops, statement.test)
        elif isinstance(statement, ast.If):
            inner = _without(loops, statement.test)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        for block in blocks:
            yield from _placed(block, inner, once, constants)
        if not any(blocks):
            for node in ast.walk(statement):
                if isinstance(node, ast.Call):
                    yield node, loops


def _without(loops: tuple[_Loop, ...], test: ast.expr) -> tuple[_Loop, ...]:
    """The loops inside of a condition: those that it depends on tell nothing there."""
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    return tuple(_Loop(loop.name, () if names & loop.changed else loop.values, loop.changed) for loop in loops)


def _loop(node: ast.For, once: set[str], constants: Mapping[str, int]) -> _Loop:
    inside = [each for statement in node.body for each in ast.walk(statement)]
    changed = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    changed |= {each.value.id for each in inside if isinstance(each, ast.Subscript) and isinstance(each.value, ast.Name)}
    name = node.target.id if isinstance(node.target, ast.Name) else ""
    left = any(isinstance(each, ast.Break | ast.Continue | ast.Return) for each in inside)
    values = () if left or name not in once else _values(node.iter, constants)
    return _Loop(name, values, frozenset(changed))


def _values(counted: ast.expr, constants: Mapping[str, int]) -> tuple[int, ...]:
    if not isinstance(counted, ast.Call) or last_name(counted.func) not in _RANGES or counted.keywords:
        return ()
    numbers = [number(each, constants) for each in counted.args]
    if len(numbers) == 1:
        numbers = [0, *numbers]
    start, stop, step = (*numbers, 1)[:3] if len(numbers) in (2, 3) else (None, None, None)
    if start is None or step in (None, 0):
        return ()
    turns = None if stop is None else range(start, stop, step or 1)
    if turns is None:
        return (start,)
    return tuple(dict.fromkeys((turns[0], turns[min(1, len(turns) - 1)], turns[-1]))) if turns else ()
