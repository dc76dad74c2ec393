"""Paths of a kernel's files as people read them."""

from __future__ import annotations

from pathlib import Path

__all__ = ["short_path"]

_PACKAGE = Path(__file__).resolve().parents[2]


def short_path(file: str) -> str:
    """A path for people: from the package on, from the working directory on, or its last two parts."""
    path = Path(file)
    for start in (_PACKAGE, Path.cwd()):
        if path.is_relative_to(start):
            return str(path.relative_to(start))
    return "/".join(path.parts[-2:]) if path.is_absolute() else file
