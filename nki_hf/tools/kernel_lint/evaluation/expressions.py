"""Expressions of kernel code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from nki_hf.tools.kernel_lint.evaluation import members, running, scopes, watch
from nki_hf.tools.kernel_lint.evaluation.operators import compared, computed, fresh, key_of, marked, negated, unknown
from nki_hf.tools.kernel_lint.evaluation.paths import Ended
from nki_hf.tools.kernel_lint.evaluation.tile import Tile
from nki_hf.tools.kernel_lint.evaluation.values import Dictionary, Frame, Listed, Unknown

if TYPE_CHECKING:
    from nki_hf.tools.kernel_lint.evaluation.machine import Machine

__all__ = ["evaluated", "truth"]


def evaluated(machine: Machine, frame: Frame, node: ast.expr) -> Any:
    """The value of an expression."""
    kind = _KINDS.get(type(node))
    return fresh(ast.unparse(node)[:80]) if kind is None else kind(machine, frame, node)


def truth(machine: Machine, value: Any, place: ast.AST) -> bool:
    """What a value counts for in a condition; one that nothing decides is decided by the way that is followed."""
    if isinstance(value, Tile) and value.argument:
        value = Unknown(value.key)
    if isinstance(value, Listed | Dictionary) and value.loose and not value:
        value = unknown(f"len({marked(value)})")
    if not isinstance(value, Unknown):
        return bool(value) if isinstance(value, int | float | str | tuple | list | dict | set | range) else value is not None
    path = machine.path
    told = path.told(value)
    if told is None:
        told = path.choose(id(place), 2, value.key) == 0
        path.assume(value, told)
    return told


def _constant(_: Machine, __: Frame, node: ast.Constant) -> Any:
    return node.value


def _name(machine: Machine, frame: Frame, node: ast.Name) -> Any:
    return machine.path.known(scopes.lookup(machine, frame, node.id))


def _attribute(machine: Machine, frame: Frame, node: ast.Attribute) -> Any:
    module = scopes.imported(machine, frame, node)
    if module is not None:
        return module
    owner = evaluated(machine, frame, node.value)
    machine.tell(frame, node, watch.read(owner, node.attr))
    return machine.path.known(members.attribute(machine, owner, node.attr))


def _items(machine: Machine, frame: Frame, nodes: list[ast.expr]) -> list[Any]:
    found: list[Any] = []
    for node in nodes:
        if isinstance(node, ast.Starred):
            more = machine.items(evaluated(machine, frame, node.value))
            found += [fresh(f"*{id(node)}")] if more is None else more
        else:
            found.append(evaluated(machine, frame, node))
    return found


def _tuple(machine: Machine, frame: Frame, node: ast.Tuple) -> Any:
    return tuple(_items(machine, frame, node.elts))


def _list(machine: Machine, frame: Frame, node: ast.List) -> Any:
    return Listed(_items(machine, frame, node.elts))


def _set(machine: Machine, frame: Frame, node: ast.Set) -> Any:
    return Listed(_items(machine, frame, node.elts))


def _dict(machine: Machine, frame: Frame, node: ast.Dict) -> Any:
    made = Dictionary()
    for key, value in zip(node.keys, node.values, strict=True):
        held = evaluated(machine, frame, value)
        if key is None:
            if isinstance(held, dict):
                made.update(held)
            made.loose |= getattr(held, "loose", not isinstance(held, dict))
        else:
            named = evaluated(machine, frame, key)
            machine.tell(frame, key, watch.stored(made, named))
            members.put(made, named, held)
    return made


def _binary(machine: Machine, frame: Frame, node: ast.BinOp) -> Any:
    left = evaluated(machine, frame, node.left)
    right = evaluated(machine, frame, node.right)
    machine.tell(frame, node, watch.computed(node.op, left, right, None))
    made = computed(machine.path, node.op, left, right)
    machine.tell(frame, node, watch.computed(node.op, 0, 0, made))
    return made


def _unary(machine: Machine, frame: Frame, node: ast.UnaryOp) -> Any:
    value = evaluated(machine, frame, node.operand)
    if isinstance(node.op, ast.Not):
        if isinstance(value, Unknown):
            return negated(value)
        return not truth(machine, value, node)
    if isinstance(value, int | float):
        return -value if isinstance(node.op, ast.USub) else +value if isinstance(node.op, ast.UAdd) else ~int(value)
    low, high = machine.path.range_of(value)
    bounds = (None if high is None else -high, None if low is None else -low) if isinstance(node.op, ast.USub) else (None, None)
    return unknown(f"(-{key_of(value)})", low=bounds[0], high=bounds[1])


def _both(machine: Machine, frame: Frame, node: ast.BoolOp) -> Any:
    stops = isinstance(node.op, ast.Or)
    value = None
    for place, each in enumerate(node.values):
        value = evaluated(machine, frame, each)
        if place < len(node.values) - 1 and truth(machine, value, each) == stops:
            return value
    return value


def _compare(machine: Machine, frame: Frame, node: ast.Compare) -> Any:
    left = evaluated(machine, frame, node.left)
    found: Any = True
    for op, each in zip(node.ops, node.comparators, strict=True):
        right = evaluated(machine, frame, each)
        machine.tell(frame, node, watch.ordered(op, left, right))
        found = machine.path.known(compared(machine.path, op, left, right))
        if len(node.ops) > 1 and not truth(machine, found, each):
            return False
        left = right
    told = machine.path.told(found) if isinstance(found, Unknown) else None
    return found if told is None else told


def _chosen(machine: Machine, frame: Frame, node: ast.IfExp) -> Any:
    test = truth(machine, evaluated(machine, frame, node.test), node.test)
    return evaluated(machine, frame, node.body if test else node.orelse)


def _subscript(machine: Machine, frame: Frame, node: ast.Subscript) -> Any:
    owner = evaluated(machine, frame, node.value)
    index = evaluated(machine, frame, node.slice)
    machine.tell(frame, node, watch.indexed(owner, index))
    return machine.path.known(members.item(machine, owner, index, node))


def _slice(machine: Machine, frame: Frame, node: ast.Slice) -> Any:
    return slice(*(None if each is None else evaluated(machine, frame, each) for each in (node.lower, node.upper, node.step)))


def _call(machine: Machine, frame: Frame, node: ast.Call) -> Any:
    called = evaluated(machine, frame, node.func)
    given: list[Any] = []
    nodes: list[ast.expr | None] = []
    words: dict[str, Any] = {}
    loose = False
    for each in node.args:
        if isinstance(each, ast.Starred):
            more = machine.items(evaluated(machine, frame, each.value))
            loose |= more is None
            given += more or []
            nodes += [None] * len(more or [])
        else:
            given.append(evaluated(machine, frame, each))
            nodes.append(each)
    for word in node.keywords:
        value = evaluated(machine, frame, word.value)
        if word.arg is not None:
            words[word.arg] = value
        elif isinstance(value, dict) and not getattr(value, "loose", False):
            words |= {key: each for key, each in value.items() if isinstance(key, str)}
        else:
            loose = True
    machine.tell(frame, node, watch.called(called, given))
    return machine.path.known(running.call(machine, frame, node, called, given, words, nodes=nodes, loose=loose))


def _lambda(machine: Machine, frame: Frame, node: ast.Lambda) -> Any:
    return running.function(machine, frame, node)


def _walrus(machine: Machine, frame: Frame, node: ast.NamedExpr) -> Any:
    value = evaluated(machine, frame, node.value)
    scopes.bind(machine, frame, node.target, value)
    return value


def _text(machine: Machine, frame: Frame, node: ast.JoinedStr) -> Any:
    parts: list[str] = []
    for each in node.values:
        if isinstance(each, ast.FormattedValue):
            value = evaluated(machine, frame, each.value)
            if not isinstance(value, int | float | str) or each.format_spec is not None:
                return fresh(ast.unparse(node)[:60])
            parts.append(str(value))
        else:
            parts.append(str(each.value) if isinstance(each, ast.Constant) else "")
    return "".join(parts)


def _comprehension(machine: Machine, frame: Frame, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Any:
    made = Listed()
    for inner in _turns(machine, Frame({}, frame.module, frame.function, frame), node.generators, made):
        made.append(evaluated(machine, inner, node.elt))
    return made


def _dict_comprehension(machine: Machine, frame: Frame, node: ast.DictComp) -> Any:
    made = Dictionary()
    for inner in _turns(machine, Frame({}, frame.module, frame.function, frame), node.generators, made):
        members.put(made, evaluated(machine, inner, node.key), evaluated(machine, inner, node.value))
    return made


def _turns(machine: Machine, frame: Frame, generators: list[ast.comprehension], made: Listed | Dictionary) -> Iterator[Frame]:
    if not generators:
        machine.path.step()
        yield frame
        return
    first, rest = generators[0], generators[1:]
    over = evaluated(machine, frame, first.iter)
    items = machine.items(over)
    made.loose |= items is None or len(items) > machine.TURNS
    for item in [members.any_item(machine, over)] if items is None else items[: machine.TURNS]:
        scopes.bind(machine, frame, first.target, item)
        if all(truth(machine, evaluated(machine, frame, test), test) for test in first.ifs):
            yield from _turns(machine, frame, rest, made)


def _yielded(machine: Machine, frame: Frame, node: ast.Yield | ast.YieldFrom) -> Any:
    value = None if node.value is None else evaluated(machine, frame, node.value)
    made = frame.names.setdefault("<yielded>", Listed())
    if isinstance(node, ast.Yield):
        made.append(value)
    else:
        items = machine.items(value)
        made.extend(items or [])
        made.loose |= items is None
    return None


def _awaited(machine: Machine, frame: Frame, node: ast.Await) -> Any:
    return evaluated(machine, frame, node.value)


def _starred(*_: Any) -> Any:
    raise Ended("a starred expression by itself")


_KINDS: dict[type[ast.expr], Callable[..., Any]] = {
    ast.Constant: _constant, ast.Name: _name, ast.Attribute: _attribute, ast.Tuple: _tuple, ast.List: _list, ast.Set: _set,
    ast.Dict: _dict, ast.BinOp: _binary, ast.UnaryOp: _unary, ast.BoolOp: _both, ast.Compare: _compare, ast.IfExp: _chosen,
    ast.Subscript: _subscript, ast.Slice: _slice, ast.Call: _call, ast.Lambda: _lambda, ast.NamedExpr: _walrus,
    ast.JoinedStr: _text, ast.ListComp: _comprehension, ast.SetComp: _comprehension, ast.GeneratorExp: _comprehension,
    ast.DictComp: _dict_comprehension, ast.Yield: _yielded, ast.YieldFrom: _yielded, ast.Await: _awaited,
    ast.Starred: _starred,
}  # fmt: skip
