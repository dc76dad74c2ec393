"""Modules from files that their authors rewrite: always from the text, never from bytecode that Python kept of it."""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import PathEntryFinder
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import CodeType

__all__ = ["importable", "spec_of"]

_PACKAGE = Path(__file__).resolve().parent


class _FromSource(SourceFileLoader):
    """Python takes kept bytecode for that of a file of the same size and second: of another kernel of a search, then."""

    def get_code(self, fullname: str) -> CodeType:
        """The file's text, compiled now.

        Raises:
          SyntaxError: it is no Python; the error names the file, as Python's own do not where it holds a null byte.
        """
        text = self.get_data(self.path)
        try:
            return self.source_to_code(text, self.path)
        except SyntaxError as error:
            if not error.filename:
                error.filename, error.lineno = self.path, text.partition(b"\0")[0].count(b"\n") + 1
            raise


def spec_of(name: str, path: Path) -> ModuleSpec | None:
    """The spec of a module of that name in the file `path`; None if it is no Python file."""
    if path.suffix != ".py":
        return None
    return importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))


def importable(folder: Path) -> None:
    """Put a folder first on Python's path; modules and packages in it are imported from their text.

    What lies in it, but is on the path by itself (an environment's packages, this package) is imported as ever: it is not
    rewritten, and large.
    """
    folder = folder.resolve()
    others = [path for path in (_PACKAGE, *(Path(item or ".").resolve() for item in sys.path)) if folder in path.parents]
    finder = FileFinder.path_hook(
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (_FromSource, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )

    def hook(name: str) -> PathEntryFinder:
        path = Path(name).resolve()
        if not path.is_relative_to(folder) or any(path.is_relative_to(other) for other in others):
            raise ImportError(f"{path} is no folder beside a kernel", path=name)
        return finder(name)

    sys.path_hooks.insert(0, hook)
    for name in [name for name in sys.path_importer_cache if Path(name).resolve().is_relative_to(folder)]:
        del sys.path_importer_cache[name]
    sys.path.insert(0, str(folder))
