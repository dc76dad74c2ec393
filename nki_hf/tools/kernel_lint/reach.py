"""Which functions are kernel code: what a kernel's entry function reaches, in its own file and in those it imports."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from pathlib import Path

from nki_hf.tools.kernel_lint.source import Source, own_nodes

__all__ = ["Callee", "callees", "is_entry", "kernel_code"]

Callee = tuple[Source, ast.FunctionDef]


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
            found += _by_name(source, node.id, load)
        elif isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and source.imports.get(node.value.id, (None, "x"))[1] == "":
                found += _by_name(load(source.imports[node.value.id][0]), node.attr, load)
            elif isinstance(node.value, ast.Name) and node.value.id == "self":
                found += _by_name(source, node.attr, load)
    return found


def _by_name(source: Source, name: str, load: Callable[[Path], Source]) -> list[Callee]:
    if name in source.imports:
        file, there = source.imports[name]
        return [(load(file), function) for function in load(file).by_name.get(there, ())] if there else []
    return [(source, function) for function in source.by_name.get(name, ())]


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
