"""Which functions are kernel code: what a kernel's entry function reaches, in its own file and in those it imports."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable
from pathlib import Path

from nki_hf.tools.kernel_lint.source import Source, own_nodes

__all__ = ["Callee", "callees", "classes_named", "is_entry", "kernel_code", "named", "python_name"]

Callee = tuple[Source, ast.FunctionDef]

_PYTHON = {*dir(builtins), "__builtins__"} - {"__name__", "__doc__", "__debug__", "__package__", "__spec__"}
"""Names that Python gives every module."""


def kernel_code(sources: Iterable[Source], load: Callable[[Path], Source]) -> dict[Source, list[ast.FunctionDef]]:
    """Kernel functions by module, in the order of the source; modules that are only imported are loaded.

    A kernel function is an entry (decorated with `nki.jit`), calls an instruction or a function of the language itself, or is
    called by, given to or defined in a kernel function. What else stands in the same file is ordinary Python that no NKI front
    end sees: tests, references, launchers.
    """
    waiting = [
        (source, function)
        for source in sources
        for function in source.functions
        if source.speaks_nki and (is_entry(function) or _uses_language(function))
    ]
    found: dict[Source, list[ast.FunctionDef]] = {}
    seen: set[int] = set()
    while waiting:
        source, function = waiting.pop()
        if id(function) not in seen:
            seen.add(id(function))
            found.setdefault(source, []).append(function)
            waiting += callees(source, function, load)
            waiting += [
                (source, node) for node in ast.walk(function) if isinstance(node, ast.FunctionDef) and node is not function
            ]
    for functions in found.values():
        functions.sort(key=lambda node: node.lineno)
    return found


def callees(source: Source, function: ast.FunctionDef, load: Callable[[Path], Source]) -> list[Callee]:
    """The functions that a function names: those it calls and those it hands on."""
    found: list[Callee] = []
    for node in own_nodes(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found += named(source, node.id, load)
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            file = _module_file(source, owner)
            if file is not None:
                found += named(load(file), node.attr, load)
            elif owner == "self":
                found += named(source, node.attr, load)
    return found


def _module_file(source: Source, owner: str) -> Path | None:
    """The file of the module that `owner` names: an imported one, or a module of an imported package (`package.steps`)."""
    first, rest = owner, list[str]()
    while first:
        file, there = source.imports.get(first, (None, "x"))
        if file is not None and there == "":
            if not rest:
                return file
            inside = file.parent.joinpath(*rest)
            places = (inside.with_suffix(".py"), inside / "__init__.py") if file.name == "__init__.py" else ()
            return next((place for place in places if place.exists()), None)
        first, _, last = first.rpartition(".")
        rest.insert(0, last)
    return None


def named(
    source: Source, name: str, load: Callable[[Path], Source], seen: frozenset[tuple[Path | None, str]] = frozenset()
) -> list[Callee]:
    """The functions that a name of a module may mean: its own, and what it imports, binds or inherits, through any number of
    modules.
    """
    if (source.path, name) in seen:
        return []
    seen |= {(source.path, name)}
    found = [(source, function) for function in source.by_name.get(name, ())]
    for other in source.stands_for.get(name, ()):
        found += named(source, other, load, seen)
    if name in source.imports:
        file, there = source.imports[name]
        found += named(load(file), there, load, seen) if there else []
    if not found:
        for file in source.stars:
            found += named(load(file), name, load, seen)
    return found


def classes_named(
    code: dict[Source, list[ast.FunctionDef]], load: Callable[[Path], Source]
) -> dict[Source, list[ast.ClassDef]]:
    """The classes that kernel functions name, by module."""
    found: dict[Source, list[ast.ClassDef]] = {}
    for source, functions in code.items():
        names, members = set[str](), set[ast.Attribute]()
        for function in functions:
            nodes = _evaluated(function)
            local = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
            local |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
            names |= {node.id for node in nodes if isinstance(node, ast.Name)} - local
            members |= {node for node in nodes if isinstance(node, ast.Attribute)}
        places = [(source, name) for name in sorted(names)]
        for node in members:
            owner = ast.unparse(node.value)
            if source.imports.get(owner, (None, "x"))[1] == "":
                places.append((load(source.imports[owner][0]), node.attr))
        for place, name in places:
            home, known = place, name
            for _ in range(8):
                if known not in home.imports or not home.imports[known][1]:
                    break
                file, known = home.imports[known]
                home = load(file)
            for item in home.tree.body:
                if isinstance(item, ast.ClassDef) and item.name == known and item not in found.setdefault(home, []):
                    found[home].append(item)
    return {home: sorted(classes, key=lambda item: item.lineno) for home, classes in found.items() if classes}


def _evaluated(function: ast.FunctionDef) -> list[ast.AST]:
    """The nodes of a function as `own_nodes`, without its annotations and what it raises, of which no front end reads more."""
    waiting: list[ast.AST] = list(function.body)
    found = []
    while waiting:
        node = waiting.pop()
        found.append(node)
        if isinstance(node, ast.AnnAssign):
            waiting += [node.target, *([node.value] if node.value is not None else [])]
        elif not isinstance(node, ast.FunctionDef | ast.Raise):
            waiting.extend(ast.iter_child_nodes(node))
    return found


def python_name(source: Source, name: str, load: Callable[[Path], Source], depth: int = 8) -> str:
    """The function or constant of Python (`sorted`) that a module-level name means, here or where it is imported from; else
    empty.
    """
    if depth == 0 or source.by_name.get(name):
        return ""
    if name in source.imports:
        file, there = source.imports[name]
        return python_name(load(file), there, load, depth - 1) if there else ""
    if name in source.bound:
        others = source.stands_for.get(name, ())
        return python_name(source, others[0], load, depth - 1) if len(others) == 1 and others[0] != name else ""
    for file in source.stars:
        if name in load(file).bound:
            return python_name(load(file), name, load, depth - 1)
    return name if name in _PYTHON else ""


def is_entry(function: ast.FunctionDef) -> bool:
    """True if the function is decorated with `nki.jit`."""
    for decorator in function.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(called) in ("nki.jit", "jit"):
            return True
    return False


def _uses_language(function: ast.FunctionDef) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in ("nisa", "nl")
        for node in own_nodes(function)
    )
