"""What modules import that is no kernel code: Python's own modules and functions."""

from __future__ import annotations

import ast
from pathlib import Path

__all__ = ["hosts_of", "module_file"]


def hosts_of(tree: ast.Module) -> dict[str, str]:
    """Name -> the dotted name of what is imported under it."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {
                alias.asname or alias.name.split(".")[0]: (alias.asname and alias.name) or alias.name.split(".")[0]
                for alias in node.names
            }
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def module_file(package: Path, name: str) -> Path | None:
    """The file of a module inside of a package (its `__init__.py`)."""
    if package.name != "__init__.py":
        return None
    places = (package.parent / f"{name}.py", package.parent / name / "__init__.py")
    return next((place for place in places if place.exists()), None)
