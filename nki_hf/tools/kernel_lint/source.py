"""Source files: a module with NKI's names made plain, what it defines and what it imports from other files."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from nki_hf.tools.kernel_lint.imports import with_known_names

__all__ = ["Source", "bound_in_module", "imported_file", "last_name", "own_nodes", "read_source", "string_constants"]


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
        for a whole module. A module that is named in full (`import a.b`) stands under its full name.
      stars: the files from which it imports every name.
      stands_for: name -> the names in what the module binds it to: `run` of `RUN = run` and of `TABLE = (run,)`, and the bases
        of a class.
      bound: every name that the module itself defines, imports or binds.
      speaks_nki: True if it imports the language.
      broken: line and message of a file that is not Python; it has no tree then.
      coroutines: the functions (their ids) that are written `async def`.
    """

    path: Path | None
    tree: ast.Module
    functions: tuple[ast.FunctionDef, ...]
    by_name: dict[str, list[ast.FunctionDef]]
    imports: dict[str, tuple[Path, str]]
    speaks_nki: bool
    stars: tuple[Path, ...] = ()
    stands_for: dict[str, list[str]] = field(default_factory=dict)
    bound: frozenset[str] = frozenset()
    broken: tuple[int, str] | None = None
    coroutines: frozenset[int] = frozenset()


def read_source(text: str, path: Path | None = None) -> Source:
    """A module from its text."""
    tree = with_known_names(ast.parse(text))
    coroutines = frozenset(id(function) for function in _made_plain(tree))
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
        stars=() if path is None else tuple(_stars(tree, path)),
        stands_for=_stands_for(tree),
        bound=frozenset(_bound(tree)),
        coroutines=coroutines,
    )


def _made_plain(scope: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """Functions in place of the `async def` of a module and its classes."""
    for place, node in enumerate(scope.body):
        if isinstance(node, ast.ClassDef):
            yield from _made_plain(node)
        elif isinstance(node, ast.AsyncFunctionDef):
            plain = ast.FunctionDef(**dict(ast.iter_fields(node)))
            scope.body[place] = ast.copy_location(plain, node)
            yield plain


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
                if whole is not None:
                    found[alias.asname or alias.name] = (whole, "")
    return found


def _stars(tree: ast.Module, path: Path) -> Iterator[Path]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            file = imported_file(path, node.module or "", node.level)
            if file is not None:
                yield file


def _stands_for(tree: ast.Module) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found.setdefault(node.name, []).extend(base.id for base in node.bases if isinstance(base, ast.Name))
        elif isinstance(node, ast.Assign):
            named = [name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)]
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).extend(named)
    return found


def _bound(tree: ast.Module) -> Iterator[str]:
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)
        waiting.extend(ast.iter_child_nodes(node))


def imported_file(path: Path, module: str, level: int) -> Path | None:
    """The file of a module or package that `path` imports, looked for relative to it and to each folder above it; else None.
    The language itself is none of them.
    """
    if level == 0 and (module in _LANGUAGES or module.startswith(tuple(f"{name}." for name in _LANGUAGES))):
        return None
    parts = module.split(".") if module else []
    folders = [path.parents[level - 1]] if 0 < level <= len(path.parents) else list(path.parents)[:8]
    for folder in folders:
        package = folder.joinpath(*parts)
        for file in (package.with_suffix(".py"), package / "__init__.py") if parts else (package / "__init__.py",):
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


@lru_cache(maxsize=256)
def string_constants(tree: ast.Module) -> frozenset[str]:
    """Module-level names that are bound once, to a string."""
    seen: dict[str, list[bool]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
                    seen.setdefault(target.id, []).append(text)
    return frozenset(name for name, texts in seen.items() if texts == [True])


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


def _outside(item: ast.stmt) -> tuple[ast.AST, ...]:
    return () if isinstance(item, ast.FunctionDef | ast.ClassDef) else tuple(ast.walk(item))
