"""Functions and classes of kernel code: how they are made, and what a call of them gives."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from nki_hf.tools.kernel_lint.evaluation import calls, expressions, language, members, statements
from nki_hf.tools.kernel_lint.evaluation.machine import Use
from nki_hf.tools.kernel_lint.evaluation.operators import CHANGING, fresh, key_of, marked, unknown
from nki_hf.tools.kernel_lint.evaluation.paths import Ended
from nki_hf.tools.kernel_lint.evaluation.tile import Tile
from nki_hf.tools.kernel_lint.evaluation.values import (
    Bound,
    Class,
    Dictionary,
    Frame,
    Function,
    Host,
    Instance,
    Language,
    Listed,
    Member,
    Partial,
)
from nki_hf.tools.kernel_lint.source import last_name

if TYPE_CHECKING:
    from nki_hf.tools.kernel_lint.evaluation.machine import Machine

__all__ = ["call", "class_of", "function", "run"]


def function(machine: Machine, frame: Frame, node: ast.FunctionDef | ast.Lambda) -> Function:
    """The function that a `def` or a lambda makes."""
    defaults = [expressions.evaluated(machine, frame, each) for each in node.args.defaults]
    words = {
        argument.arg: expressions.evaluated(machine, frame, each)
        for argument, each in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        if each is not None
    }
    return Function(node, frame.module, frame if frame.function is not None else None, defaults, words)


def class_of(machine: Machine, frame: Frame, node: ast.ClassDef) -> Class:
    """The class that a `class` statement makes."""
    bases = [expressions.evaluated(machine, frame, base) for base in node.bases]
    fields = [name for base in bases if isinstance(base, Class) for name in base.fields]
    fields += [item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]
    ways = {
        item.name: last_name(decorator)
        for item in node.body
        if isinstance(item, ast.FunctionDef)
        for decorator in item.decorator_list
        if last_name(decorator) in ("staticmethod", "classmethod", "property")
    }
    made = Class(node, {}, bases, list(dict.fromkeys(fields)), ways)
    inside = Frame(made.names, frame.module, None, frame if frame.function is not None else None)
    statements.run(machine, inside, node.body)
    if made.is_a("Enum", "IntEnum", "StrEnum"):
        for name, value in made.names.items():
            if not isinstance(value, Function) and not name.startswith("_"):
                made.names[name] = Member(node.name, name, value)
    return made


def run(machine: Machine, called: Any, given: list[Any], words: dict[str, Any], place: ast.AST | None = None) -> Any:
    """`called(*given, **words)`."""
    if isinstance(called, Function):
        return _run_function(machine, called, given, words)
    if isinstance(called, Class):
        return _made(machine, called, given, words)
    if isinstance(called, Partial):
        return run(machine, called.called, [*called.given, *given], {**called.words, **words}, place)
    if isinstance(called, Bound):
        return members.method(machine, called, given, words)
    if isinstance(called, Host):
        return calls.hosted(machine, called.text, given, words)
    if isinstance(called, Instance):
        try:
            return run(machine, called.kind.find("__call__").of(called, called.kind), given, words, place)
        except (KeyError, AttributeError):
            return fresh(f"{marked(called)}()")
    for each in (*given, *words.values()):
        if isinstance(each, Listed | Dictionary):
            each.loose = True
    key = f"{key_of(called)}({', '.join(map(key_of, given))})"
    return fresh(key) if key.partition("(")[0].rpartition(".")[2] in CHANGING else unknown(key)


def parent(machine: Machine, frame: Frame) -> Any:
    owner = frame.names.get("self")
    kind = frame.names.get("<class>")
    bases = [base for base in kind.bases if isinstance(base, Class)] if isinstance(kind, Class) else []
    if isinstance(owner, Instance) and bases:
        parent = Instance(bases[0], owner.fields)
        return parent
    return fresh("super")


def _run_function(machine: Machine, called: Function, given: list[Any], words: dict[str, Any]) -> Any:
    if machine.depth >= machine.DEPTH:
        return fresh(f"{marked(called)}()")
    node = called.node
    names = _arguments(machine, called, given, words)
    function = node if isinstance(node, ast.FunctionDef) else called.outer.function if called.outer else None
    frame = Frame(names, called.module, function, called.outer)
    if called.kind is not None:
        names.setdefault("<class>", _owner_of(called))
    if isinstance(node, ast.FunctionDef) and not machine.starting:
        machine.visited.setdefault(id(node), (called.module.source, node))
    machine.path.step()
    machine.depth += 1
    try:
        if isinstance(node, ast.Lambda):
            return expressions.evaluated(machine, frame, node.body)
        statements.run(machine, frame, node.body)
    except statements.Returned as returned:
        if machine.depth == 1 and returned.node is not None:
            machine.returned.append((returned.node, returned.value))
        return returned.value
    finally:
        machine.depth -= 1
    return frame.names.get("<yielded>")


def _owner_of(called: Function) -> Any:
    """The class in whose body a method is written."""
    kinds: list[Any] = [called.kind]
    while kinds:
        kind = kinds.pop(0)
        if isinstance(kind, Class):
            if called.node in kind.node.body:
                return kind
            kinds += kind.bases
    return called.kind


def _arguments(machine: Machine, called: Function, given: list[Any], words: dict[str, Any]) -> dict[str, Any]:
    """What a call gives the parameters of a function."""
    args = called.node.args
    names = [argument.arg for argument in (*args.posonlyargs, *args.args)]
    given = given if called.owner is None else [called.owner, *given]
    found = dict(zip(names, given, strict=False))
    more = {name: value for name, value in words.items() if name not in names and name not in _names(args.kwonlyargs)}
    if (len(given) > len(names) and args.vararg is None) or (more and args.kwarg is None):
        raise Ended("no such parameter")
    found |= {name: value for name, value in words.items() if name not in more}
    for name, value in zip(reversed(names), reversed(called.defaults), strict=False):
        found.setdefault(name, value)
    for name, value in called.keyword_defaults.items():
        found.setdefault(name, value)
    missing = [name for name in (*names, *_names(args.kwonlyargs)) if name not in found]
    if missing:
        raise Ended(f"without {missing[0]}")
    if args.vararg is not None:
        found[args.vararg.arg] = tuple(given[len(names) :])
    if args.kwarg is not None:
        found[args.kwarg.arg] = Dictionary(more)
    return found


def _made(machine: Machine, kind: Class, given: list[Any], words: dict[str, Any]) -> Any:
    """What a call of a class makes."""
    if kind.is_a("Enum", "IntEnum", "StrEnum"):
        members_of = [each for each in kind.names.values() if isinstance(each, Member)]
        return next((each for each in members_of if given and each.value == given[0]), unknown(f"{kind.node.name}()"))
    made = Instance(kind, {})
    try:
        first = kind.find("__init__")
    except KeyError:
        first = None
    if isinstance(first, Function):
        run(machine, first.of(made, kind), given, words)
        return made
    made.fields.update(zip(kind.fields, given, strict=False))
    made.fields.update(words)
    for name in kind.fields:
        if name not in made.fields:
            try:
                made.fields[name] = kind.find(name)
            except KeyError:
                made.fields[name] = fresh(f"{kind.node.name}.{name}")
    try:
        after = kind.find("__post_init__")
    except KeyError:
        return made
    if isinstance(after, Function):
        run(machine, after.of(made, kind), [], {})
    return made


def call(
    machine: Machine,
    frame: Frame,
    node: ast.Call,
    called: Any,
    given: list[Any],
    words: dict[str, Any],
    *,
    nodes: list[ast.expr | None],
    loose: bool = False,
) -> Any:
    """`called(*given, **words)` at a place; `loose`: some arguments are not known."""
    if isinstance(called, Language):
        return language.called(machine, frame, node, called.text, given, words, nodes, loose)
    if isinstance(called, Partial) and isinstance(called.called, Language):
        given, words = [*called.given, *given], {**called.words, **words}
        return language.called(machine, frame, node, called.called.text, given, words, [None] * len(given), loose)
    if loose and isinstance(called, Function):
        names = [argument.arg for argument in called.node.args.args][called.owner is not None :]
        given = given + [fresh(f"*{name}") for name in names[len(given) :] if name not in words]
    if isinstance(called, Function) and getattr(called.node, "name", "").endswith("assert") and node.args:
        statements.assumed(machine, frame, node.args[0], True)
        return None
    if isinstance(called, Bound) and isinstance(called.owner, Tile) and frame.function is not None:
        use = Use(frame.function, node, called.name, {}, {}, machine.path.doubtful)
        machine.uses.append(("tile", use))
    if isinstance(called, Host) and called.text == "builtins.super":
        return parent(machine, frame)
    return run(machine, called, given, words, node)


def _names(arguments: list[ast.arg]) -> list[str]:
    return [argument.arg for argument in arguments]
