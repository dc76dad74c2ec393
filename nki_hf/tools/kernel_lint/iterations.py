"""What the variables of loops hold where an instruction stands: the first, the second and the last turn of each.

Every front end unrolls such a loop, so that a place which only the second turn shows (`tile[:, 5 * n : 5 * (n + 1)]` from
n = 1 on) is one that the compiler sees. `while` over a number that it counts up or down is such a loop, too.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from nki_hf.tools.kernel_lint.meanings import derived_names
from nki_hf.tools.kernel_lint.sizes import number
from nki_hf.tools.kernel_lint.source import last_name, own_nodes

__all__ = ["straight_calls", "truth", "turns_of"]

_RANGES = ("range", "affine_range", "sequential_range", "static_range")
_MOST_TURNS = 65536
_COMPARED: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Lt: lambda one, other: one < other,
    ast.LtE: lambda one, other: one <= other,
    ast.Gt: lambda one, other: one > other,
    ast.GtE: lambda one, other: one >= other,
    ast.Eq: lambda one, other: one == other,
    ast.NotEq: lambda one, other: one != other,
}


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


Guards = tuple[tuple[ast.expr, bool], ...]
"""Conditions around a statement, and what each has to be."""


def turns_of(
    function: ast.FunctionDef, constants: Mapping[str, int], given: Mapping[str, int]
) -> dict[int, tuple[dict[str, int], ...]]:
    """By call (its id): the whole numbers that names hold in some turns of the loops around it, `constants` among them; no
    turn where a condition leaves the call out, or may do so by an element type or a memory.

    `given`: parameters that every call gives one number, and sizes of the tiles that they are (`tile.shape[1]`). A loop that
    may be left early, and a name that decides whether the call is reached, tell nothing.
    """
    bound = Counter(node.id for node in own_nodes(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    once = {name for name, times in bound.items() if times == 1}
    left = any(isinstance(node, ast.Return) and node is not function.body[-1] for node in own_nodes(function))
    parameters = tuple(
        _Loop(name, (value,), frozenset({_root(name), *bound}))
        for name, value in given.items()
        if _root(name) not in bound and not left
    )

    known: dict[tuple[_Loop, ...], list[dict[str, int]]] = {}

    def turns(loops: tuple[_Loop, ...]) -> list[dict[str, int]]:
        if loops in known:
            return known[loops]
        found = known.setdefault(loops, [])
        for chosen in _chosen(loops):
            values = {**constants, **chosen}
            for name, value in derived_names(function):
                size = number(value, values)
                if size is not None:
                    values[name] = size
            found.append(values)
        return found

    found = {}
    for call, loops, guards in _placed(function.body, parameters, (), once, constants, bound):
        for test, _ in guards:
            if any(truth(test, values) is None for values in turns(loops)):
                loops = _without(loops, test)
        found[id(call)] = tuple(
            values for values in turns(loops) if all(_open(test, wanted, values) for test, wanted in guards)
        )
    return found


@lru_cache(maxsize=4096)
def straight_calls(function: ast.FunctionDef) -> frozenset[int]:
    """The calls (their ids) that are reached whenever the function is called, but for loops of no turns."""
    left = any(isinstance(node, ast.Return) and node is not function.body[-1] for node in own_nodes(function))
    placed = () if left else _placed(function.body, (), (), set(), {}, {})
    return frozenset(id(call) for call, _, guards in placed if not guards)


def truth(test: ast.expr, values: Mapping[str, int]) -> bool | None:
    """What a condition is; None if the numbers do not tell."""
    if isinstance(test, ast.Constant) and (test.value is None or isinstance(test.value, bool)):
        return bool(test.value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = truth(test.operand, values)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = [truth(each, values) for each in test.values]
        decides = isinstance(test.op, ast.Or)
        return decides if decides in parts else None if None in parts else not decides
    if isinstance(test, ast.Compare):
        sides = [size for each in (test.left, *test.comparators) if (size := number(each, values)) is not None]
        if len(sides) <= len(test.comparators) or not all(type(each) in _COMPARED for each in test.ops):
            return None
        return all(_COMPARED[type(each)](one, other) for each, one, other in zip(test.ops, sides[:-1], sides[1:], strict=True))
    size = number(test, values)
    return None if size is None else bool(size)


def _open(test: ast.expr, wanted: bool, values: Mapping[str, int]) -> bool:
    """False if a condition leaves out what is behind it, or may do so by an element type or a memory."""
    known = truth(test, values)
    if known is not None:
        return known == wanted
    text = ast.unparse(test)
    return not any(word in text for word in ("dtype", "buffer", "nl."))


def _root(name: str) -> str:
    """`tile` of `tile.shape[0]`."""
    return name.split(".")[0].split("[")[0]


def _chosen(loops: tuple[_Loop, ...]) -> Iterator[dict[str, int]]:
    """Values of the variables: all loops at their first turn, each at another while the others are, all at their last."""
    known = [loop for loop in loops if loop.values]
    first = {loop.name: loop.values[0] for loop in known}
    yield first
    for loop in known:
        for value in loop.values[1:]:
            yield {**first, loop.name: value}
    if any(len(loop.values) > 1 for loop in known) and len(known) > 1:
        yield {loop.name: loop.values[-1] for loop in known}


def _placed(
    body: list[ast.stmt],
    loops: tuple[_Loop, ...],
    guards: Guards,
    once: set[str],
    constants: Mapping[str, int],
    bound: Mapping[str, int],
    before: Mapping[str, int] | None = None,
) -> Iterator[tuple[ast.Call, tuple[_Loop, ...], Guards]]:
    starts = dict(before or {})  # names that a `while` may count, and where they stand now
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(statement, ast.If):
            for node in ast.walk(statement.test):
                if isinstance(node, ast.Call):
                    yield node, loops, guards
            yield from _placed(statement.body, loops, (*guards, (statement.test, True)), once, constants, bound, starts)
            yield from _placed(statement.orelse, loops, (*guards, (statement.test, False)), once, constants, bound, starts)
        elif isinstance(statement, ast.While):
            last, counted = _counted(statement, starts, constants, bound)
            inner = _without(loops, statement.test)
            split = len(statement.body) if counted is None else last
            yield from _placed(
                statement.body[:split], inner if counted is None else (*loops, counted), guards, once, constants, bound
            )
            yield from _placed(statement.body[split:] + statement.orelse, inner, guards, once, constants, bound)
        elif isinstance(statement, ast.For):
            inner = (*loops, _loop(statement, once, constants))
            yield from _placed(statement.body + statement.orelse, inner, guards, once, constants, bound)
        else:
            blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
            for block in blocks:
                yield from _placed(block, loops, guards, once, constants, bound)
            if not any(blocks):
                for node in ast.walk(statement):
                    if isinstance(node, ast.Call):
                        yield node, loops, guards
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
            start = number(statement.value, constants)
            starts.pop(statement.targets[0].id, None)
            if start is not None:
                starts[statement.targets[0].id] = start


def _without(loops: tuple[_Loop, ...], test: ast.expr) -> tuple[_Loop, ...]:
    """The loops inside of a condition: those that it depends on tell nothing there."""
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    return tuple(_Loop(loop.name, () if names & loop.changed else loop.values, loop.changed) for loop in loops)


def _counted(
    node: ast.While, starts: Mapping[str, int], constants: Mapping[str, int], bound: Mapping[str, int]
) -> tuple[int, _Loop | None]:
    """The place of the step in a `while` that counts one number, and the loop that it is up to there."""
    for place, statement in enumerate(node.body):
        name, step = _step(statement, constants)
        if name not in starts or step in (None, 0) or bound.get(name) != 2:
            continue
        if any(isinstance(each, ast.Break | ast.Continue | ast.Return) for item in node.body for each in ast.walk(item)):
            continue
        value = starts[name]
        values: list[int] = []
        while len(values) < _MOST_TURNS and truth(node.test, {**constants, name: value}):
            values.append(value)
            value += step or 0
        if truth(node.test, {**constants, name: value}) is not False or not values:
            continue
        changed = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        few = tuple(dict.fromkeys((values[0], values[min(1, len(values) - 1)], values[-1])))
        return place, _Loop(name, few, frozenset(changed))
    return 0, None


def _step(statement: ast.stmt, constants: Mapping[str, int]) -> tuple[str, int | None]:
    """(name, step) of `name += step`, `name -= step` and `name = name + step`."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        target, op, by = statement.target, statement.op, statement.value
    elif (
        isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.BinOp)
        and ast.unparse(statement.value.left) == statement.targets[0].id
    ):
        target, op, by = statement.targets[0], statement.value.op, statement.value.right
    else:
        return "", None
    size = number(by, constants)
    if size is None or not isinstance(op, ast.Add | ast.Sub):
        return "", None
    return target.id, size if isinstance(op, ast.Add) else -size


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
