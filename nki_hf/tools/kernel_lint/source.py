"""Source files: a module with NKI's names made plain, what it defines and what it imports from other files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from nki_hf.tools.kernel_lint.imports import with_known_names

__all__ = ["Source", "imported_file", "last_name", "own_nodes", "read_source"]


_LANGUAGES = ("nki_hf.lang", "nki", "neuronxcc")
"""How the names of modules begin that hand out the language; the last is of before 0.2."""


_ENUMS = ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag")


@dataclass(frozen=True, eq=False)
class Source:
    """One module.

    Attributes:
      path: its file; None for text without one.
      tree: its syntax, in which NKI's modules are called `nki`, `nl` and `nisa` whatever they were imported as.
      functions: every function in it, nested ones and methods too, in the order of the source.
      by_name: the same by name; under a class's name the methods that may run where the class is named.
      imports: name -> (file, name there) of what it imports from files that exist beside it or above it; the second is empty
        for a whole module.
      speaks_nki: True if it imports the language.
      broken: line and message of a file that is not Python; it has no tree then.
    """

    path: Path | None
    tree: ast.Module
    functions: tuple[ast.FunctionDef, ...]
    by_name: dict[str, list[ast.FunctionDef]]
    imports: dict[str, tuple[Path, str]]
    speaks_nki: bool
    broken: tuple[int, str] | None = None


def read_source(text: str, path: Path | None = None) -> Source:
    """A module from its text."""
    tree = with_known_names(ast.parse(text))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    by_name: dict[str, list[ast.FunctionDef]] = {}
    for function in functions:
        by_name.setdefault(function.name, []).append(function)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            by_name.setdefault(node.name, []).extend(_run_by_name(node))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return Source(
        path=path,
        tree=tree,
        functions=tuple(sorted(functions, key=lambda node: node.lineno)),
        by_name=by_name,
        imports={} if path is None else _imports(tree, path),
        speaks_nki=any(module is not None and module.startswith(_LANGUAGES) for module in modules),
    )


def _run_by_name(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """The methods of a class, but for those that Python itself calls on members of an Enum, to print or compare them."""
    enum = any(last_name(base) in _ENUMS for base in node.bases)
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and not (enum and item.name.startswith("__")):
            yield item


def _imports(tree: ast.Module, path: Path) -> dict[str, tuple[Path, str]]:
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module = imported_file(path, node.module or "", node.level)
                whole = imported_file(path, f"{node.module}.{alias.name}" if node.module else alias.name, node.level)
                if whole is not None:
                    found[alias.asname or alias.name] = (whole, "")
                elif module is not None:
                    found[alias.asname or alias.name] = (module, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                whole = imported_file(path, alias.name, 0)
                if whole is not None and alias.asname:
                    found[alias.asname] = (whole, "")
    return found


def imported_file(path: Path, module: str, level: int) -> Path | None:
    """The file of a module that `path` imports, looked for relative to it and to each folder above it; else None."""
    parts = module.split(".") if module else []
    folders = [path.parents[level - 1]] if 0 < level <= len(path.parents) else list(path.parents)[:8]
    for folder in folders:
        file = folder.joinpath(*parts).with_suffix(".py") if parts else folder / "__init__.py"
        if file.exists():
            return file
    return None


@lru_cache(maxsize=4096)
def own_nodes(function: ast.FunctionDef) -> tuple[ast.AST, ...]:
    """The nodes of a function without those of functions defined inside it."""
    waiting: list[ast.AST] = list(function.body)
    found = []
    while waiting:
        node = waiting.pop()
        found.append(node)
        if not isinstance(node, ast.FunctionDef):
            waiting.extend(ast.iter_child_nodes(node))
    return tuple(found)


def last_name(node: ast.AST) -> str:
    """`float32` of `nl.float32`."""
    return ast.unparse(node).split(".")[-1]
