"""A digest of a kernel's sources, for compiler caches that know a kernel by its name and arguments alone."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

__all__ = ["PARAMETER", "digest", "source_files"]

PARAMETER = "sources"
"""Kernels with a parameter of this name are given the digest: a constant like any other, and so a part of every key.

nki caches compiled kernels by their arguments; no document says that the sources of the helpers are in the key as well."""


@functools.cache
def digest(module: str) -> str:
    """16 hexadecimal digits of the SHA-256 of a kernel module and of every module of its package that it reaches."""
    found = hashlib.sha256()
    for name, file in sorted(source_files(module).items()):
        text = file.read_bytes()
        found.update(f"{name} {len(text)}\n".encode() + text)
    return found.hexdigest()[:16]


def source_files(module: str) -> dict[str, Path]:
    """File by dotted name of a module and of what it imports, in turn, from its own top-level package.

    `nki_hf.lang` is left out: it hands out the language, which each back end's version names.
    """
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = _file(name)
        if file is None or name in found or name == "nki_hf.lang":
            continue
        found[name] = file
        waiting += [each for each in _imported(name, file) if each.split(".")[0] == module.split(".")[0]]
    return found


def _imported(name: str, file: Path) -> Iterator[str]:
    """Every dotted name that an import in the file may mean, also of a function inside a module."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield parent
            yield from (f"{parent}.{alias.name}" for alias in node.names)


def _file(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # the name of a function: what it would lie in is no package
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None and spec.origin.endswith(".py") else None
