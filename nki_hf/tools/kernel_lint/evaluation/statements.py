"""Statements of kernel code. Every loop is unrolled, as the front ends do it: all turns of short ones, else the first two and
the last; of a loop whose length is not known the first turn and one further on.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from nki_hf.tools.kernel_lint.evaluation import expressions, members, running, scopes, watch
from nki_hf.tools.kernel_lint.evaluation.operators import computed, fresh, key_of, unknown
from nki_hf.tools.kernel_lint.evaluation.paths import Ended
from nki_hf.tools.kernel_lint.evaluation.values import Frame, Instance, Listed, Unknown

if TYPE_CHECKING:
    from nki_hf.tools.kernel_lint.evaluation.machine import Machine

__all__ = ["Left", "Returned", "assumed", "run"]


class Left(Exception):
    """`break` or `continue`."""

    def __init__(self, again: bool) -> None:
        self.again = again


class Returned(Exception):
    """`return`."""

    def __init__(self, value: Any, node: ast.expr | None) -> None:
        self.value = value
        self.node = node


def run(machine: Machine, frame: Frame, body: list[ast.stmt]) -> None:
    """Runs statements one after the other."""
    for node in body:
        machine.path.step()
        kind = _KINDS.get(type(node))
        if kind is not None:
            kind(machine, frame, node)


def _assign(machine: Machine, frame: Frame, node: ast.Assign) -> None:
    value = expressions.evaluated(machine, frame, node.value)
    for target in node.targets:
        scopes.bind(machine, frame, target, value)


def _annotated(machine: Machine, frame: Frame, node: ast.AnnAssign) -> None:
    if node.value is not None:
        scopes.bind(machine, frame, node.target, expressions.evaluated(machine, frame, node.value))


def _augmented(machine: Machine, frame: Frame, node: ast.AugAssign) -> None:
    read = ast.copy_location(_loaded(node.target), node.target)
    before, more = expressions.evaluated(machine, frame, read), expressions.evaluated(machine, frame, node.value)
    if isinstance(before, Listed) and isinstance(node.op, ast.Add):
        items = machine.items(more)
        if items is not None and len(before) + len(items) > machine.ITEMS:
            items = None
        before.extend(items or [])
        before.loose |= items is None or getattr(more, "loose", False)
        return
    if not ast.unparse(node.value).startswith("nisa."):  # how one accumulated once: rules of its own tell it
        machine.tell(frame, node, watch.computed(node.op, before, more, None))
    scopes.bind(machine, frame, node.target, computed(machine.path, node.op, before, more))


def _loaded(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Attribute):
        return ast.Attribute(target.value, target.attr, ast.Load())
    return ast.Subscript(target.value, target.slice, ast.Load()) if isinstance(target, ast.Subscript) else target


def _expression(machine: Machine, frame: Frame, node: ast.Expr) -> None:
    expressions.evaluated(machine, frame, node.value)


def _if(machine: Machine, frame: Frame, node: ast.If) -> None:
    test = expressions.truth(machine, expressions.evaluated(machine, frame, node.test), node.test)
    run(machine, frame, node.body if test else node.orelse)


def _turn(machine: Machine, frame: Frame, body: list[ast.stmt]) -> bool:
    """One turn of a loop; True if it leaves the loop."""
    try:
        run(machine, frame, body)
    except Left as left:
        return not left.again
    return False


def _for(machine: Machine, frame: Frame, node: ast.For) -> None:
    over = expressions.evaluated(machine, frame, node.iter)
    machine.tell(frame, node.iter, watch.looped(over))
    items = machine.items(over)
    stored = _stored(node)
    if items is None:
        turns: list[Any] = _open_turns(machine, over, node)
    else:
        most = max(3, machine.TURNS // machine.width)
        turns = items if len(items) <= most else [items[0], items[1], items[-1]]
    skipped = items is None or len(turns) < len(items)
    width = machine.width
    machine.width = width * max(1, len(turns))
    try:
        for place, item in enumerate(turns):
            if skipped and place and place == len(turns) - 1:
                _forget(frame, stored)
            scopes.bind(machine, frame, node.target, item)
            if _turn(machine, frame, node.body):
                break
        else:
            run(machine, frame, node.orelse)
    finally:
        machine.width = width
    if skipped:
        _forget(frame, stored)


def _open_turns(machine: Machine, over: Any, node: ast.For) -> list[Any]:
    """The first turn of a loop whose length is not known, and one further on."""
    if isinstance(over, Listed) and over.loose:
        return [*over[:2], members.any_item(machine, over)]
    if isinstance(over, Unknown) and over.test is not None and over.test[0] == "range":
        first, step = over.test[1], over.test[2]
        low = machine.path.range_of(first)[0]
        later = None if low is None or not isinstance(step, int) or step < 0 else low + step
        machine.turns += 1
        named = f"range({ast.unparse(node.target)})#{machine.turns}"
        return [first, unknown(named, low=later)]
    machine.turns += 1
    return [unknown(f"{key_of(over)}[#{machine.turns}]")]


@lru_cache(maxsize=4096)
def _stored(node: ast.For | ast.While) -> list[str]:
    """Names that a loop's body binds from what they held before."""
    names = []
    for statement in node.body:
        for each in ast.walk(statement):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and each.id not in names:
                names.append(each.id)
    return names


def _forget(frame: Frame, stored: list[str]) -> None:
    """After turns that were left out: what a turn counts on is not known, and lists may hold more."""
    for name in stored:
        value = frame.names.get(name)
        if isinstance(value, int | float | str | Unknown) and not isinstance(value, bool):
            frame.names[name] = fresh(name)
    for value in frame.names.values():
        if isinstance(value, Listed) and value:
            value.loose = True


def _while(machine: Machine, frame: Frame, node: ast.While) -> None:
    most, count = max(3, machine.TURNS // machine.width), 0
    width = machine.width
    while True:
        test = expressions.evaluated(machine, frame, node.test)
        open_ended = isinstance(test, Unknown)
        if open_ended and count > 0:
            _forget(frame, _stored(node))
            return
        if not expressions.truth(machine, test, node.test):
            break
        machine.width = width * (count + 1)
        try:
            if _turn(machine, frame, node.body):
                return
        finally:
            machine.width = width
        count += 1
        if count >= most:
            _forget(frame, _stored(node))
            return
    run(machine, frame, node.orelse)


def _return(machine: Machine, frame: Frame, node: ast.Return) -> None:
    raise Returned(None if node.value is None else expressions.evaluated(machine, frame, node.value), node.value)


def _leave(machine: Machine, frame: Frame, node: ast.Break | ast.Continue) -> None:
    raise Left(isinstance(node, ast.Continue))


def _assert(machine: Machine, frame: Frame, node: ast.Assert) -> None:
    assumed(machine, frame, node.test, True)


def assumed(machine: Machine, frame: Frame, node: ast.expr, wanted: bool) -> None:
    """What is asserted is so from here on; a way on which it cannot be ends."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        assumed(machine, frame, node.operand, not wanted)
    elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) == wanted:
        for each in node.values:
            assumed(machine, frame, each, wanted)
    elif not isinstance(node, ast.BoolOp):
        value = expressions.evaluated(machine, frame, node)
        if isinstance(value, Unknown):
            told = machine.path.told(value)
            if told is None:
                machine.path.assume(value, wanted)
                return
            value = told
        if isinstance(value, bool | int | float | str | None) and bool(value) != wanted:
            raise Ended("asserted")


def _raise(machine: Machine, frame: Frame, node: ast.Raise) -> None:
    raise Ended("raised")


def _try(machine: Machine, frame: Frame, node: ast.Try) -> None:
    try:
        run(machine, frame, node.body)
        run(machine, frame, node.orelse)
    except Ended:
        if not node.handlers:
            raise
        if node.handlers[0].name:
            frame.names[node.handlers[0].name] = fresh("error")
        run(machine, frame, node.handlers[0].body)
    run(machine, frame, node.finalbody)


def _with(machine: Machine, frame: Frame, node: ast.With) -> None:
    for each in node.items:
        value = expressions.evaluated(machine, frame, each.context_expr)
        if each.optional_vars is not None:
            scopes.bind(machine, frame, each.optional_vars, value if isinstance(value, Instance) else fresh("with"))
    run(machine, frame, node.body)


def _match(machine: Machine, frame: Frame, node: ast.Match) -> None:
    subject = expressions.evaluated(machine, frame, node.subject)
    for case in node.cases:
        pattern = case.pattern
        if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
            if pattern.name:
                frame.names[pattern.name] = subject
            fits: Any = True
        elif isinstance(pattern, ast.MatchValue):
            frame.names["<subject>"] = subject
            test = ast.Compare(ast.Name("<subject>", ast.Load()), [ast.Eq()], [pattern.value])
            fits = expressions.evaluated(machine, frame, test)
        else:
            fits = unknown(f"case@{id(case)}@{key_of(subject)}")
        if expressions.truth(machine, fits, case) and (
            case.guard is None or expressions.truth(machine, expressions.evaluated(machine, frame, case.guard), case)
        ):
            run(machine, frame, case.body)
            return


def _define(machine: Machine, frame: Frame, node: ast.FunctionDef) -> None:
    frame.names[node.name] = running.function(machine, frame, node)


def _class(machine: Machine, frame: Frame, node: ast.ClassDef) -> None:
    frame.names[node.name] = running.class_of(machine, frame, node)


def _delete(machine: Machine, frame: Frame, node: ast.Delete) -> None:
    for target in node.targets:
        if isinstance(target, ast.Name):
            frame.names.pop(target.id, None)


def _outside(machine: Machine, frame: Frame, node: ast.Nonlocal | ast.Global) -> None:
    frame.outside |= set(node.names)


_KINDS: dict[type[ast.stmt], Callable[..., None]] = {
    ast.Assign: _assign, ast.AnnAssign: _annotated, ast.AugAssign: _augmented, ast.Expr: _expression, ast.If: _if,
    ast.For: _for, ast.AsyncFor: _for, ast.While: _while, ast.Return: _return, ast.Break: _leave, ast.Continue: _leave,
    ast.Assert: _assert, ast.Raise: _raise, ast.Try: _try, ast.TryStar: _try, ast.With: _with, ast.AsyncWith: _with,
    ast.Match: _match, ast.FunctionDef: _define, ast.AsyncFunctionDef: _define, ast.ClassDef: _class, ast.Delete: _delete,
    ast.Nonlocal: _outside, ast.Global: _outside,
}  # fmt: skip
