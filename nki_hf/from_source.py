"""Modules from files that their authors rewrite: always from the text, never from bytecode that Python kept of it."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType

__all__ = ["spec_of"]


class _FromSource(SourceFileLoader):
    """Python takes kept bytecode for that of a file of the same size and second: of another kernel of a search, then."""

    def get_code(self, fullname: str) -> CodeType:
        """The file's text, compiled now."""
        return self.source_to_code(self.get_data(self.path), self.path)


def spec_of(name: str, path: Path) -> ModuleSpec | None:
    """The spec of a module of that name in the file `path`; None if it is no Python file."""
    if path.suffix != ".py":
        return None
    return importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))
