"""Which files of a folder are kernels to rank: not the task's own, and no module without a kernel that others import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

__all__ = ["candidates"]


def candidates(folder: Path, task: str) -> tuple[list[Path], list[Path]]:
    """The folder's Python files that are to be kernels, and those that are parts of them or the task, in the order of names.

    A file without a kernel that nothing imports is meant to be one: the judge says what is wrong with it.
    """
    files = sorted(path for path in folder.glob("*.py") if path.is_file())
    trees = {path: _tree(path) for path in files}
    imported = {name for path, tree in trees.items() if tree is not None for name in _imported(tree) if name != path.stem}
    asked = Path("".join(task.partition(".py")[:2])).resolve()
    parts = [path for path in files if path.resolve() == asked or (path.stem in imported and not _has_kernel(trees[path]))]
    return [path for path in files if path not in parts], parts


def _tree(path: Path) -> ast.Module | None:
    """None of a file that Python cannot read."""
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return None


def _imported(tree: ast.Module) -> Iterator[str]:
    """Names of modules that may lie beside the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def _has_kernel(tree: ast.Module | None) -> bool:
    """True if the source speaks of `jit`, as a decorator or a call; of one that cannot be read, too."""
    if tree is None:
        return True
    return any("jit" in (getattr(node, "id", ""), getattr(node, "attr", "")) for node in ast.walk(tree))
