"""Which files a kernel's Python reads, or looks for, while it is loaded and traced, wherever they lie, so that a result names
what it follows from.

Python reports every file that it opens and every folder that it lists to audit hooks, those of imports, NumPy and pathlib
included; what native code opens by itself, and what is only asked to exist, is not seen.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import source_from_cache
from pathlib import Path
from typing import Any

import nki_hf

__all__ = ["digests", "noticed", "unchanged"]

_KNOWN = tuple(
    os.path.realpath(folder) + os.sep
    for folder in {
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(str(Path(nki_hf.__file__).parent / name) for name in ("sim", "timing", "chips", "tools")),
        "/proc", "/sys", "/dev",
    }
)  # fmt: skip
"""Folders whose files are no part of a kernel, or are covered by the digest of the laws."""
_WRITES = os.O_WRONLY | os.O_RDWR

_noticing: list[set[str]] = []
_hooked: list[bool] = []


@contextmanager
def noticed(paths: set[str]) -> Iterator[None]:
    """Block in which the path of every file that is opened for reading, there or not, and of every folder that is listed,
    goes into `paths`. Folders that imports list do not count: what they import is opened.
    """
    if not _hooked:
        sys.addaudithook(_hook)  # for good: hooks cannot be taken away
        _hooked.append(True)
    _noticing.append(paths)
    try:
        yield
    finally:
        _noticing.pop()


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _noticing and isinstance(arguments[0], str | bytes) and not (arguments[2] or 0) & _WRITES:
        _noticing[-1].add(os.fsdecode(arguments[0]))
    elif event in ("os.listdir", "os.scandir") and _noticing and isinstance(arguments[0], str | bytes):
        if "importlib" not in sys._getframe(1).f_code.co_filename:
            _noticing[-1].add(os.fsdecode(arguments[0]))


def digests(paths: set[str]) -> dict[str, str]:
    """Digest of each file and folder that is part of a kernel, by its full path; empty where nothing is there."""
    found = {}
    for path in sorted(paths):
        real = os.path.realpath(_source(path))
        if not real.startswith(_KNOWN):
            found[real] = _digest(real)
    return found


def unchanged(recorded: Mapping[str, str]) -> bool:
    """True if every file of `digests` is as it was."""
    return all(_digest(path) == digest for path, digest in recorded.items())


def _source(path: str) -> str:
    if not path.endswith(".pyc"):
        return path
    try:
        return source_from_cache(path)
    except ValueError:
        return path


def _digest(path: str) -> str:
    """Of a file's bytes, or of the names in a folder; empty if it cannot be read."""
    try:
        if os.path.isdir(path):
            return hashlib.sha256("\0".join(sorted(os.listdir(path))).encode()).hexdigest()[:16]
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError:
        return ""
