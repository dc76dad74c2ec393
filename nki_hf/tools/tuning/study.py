"""A study: what trials of one kernel on one problem are stored under, and the results that are known already.

The name of a study is a digest of all that a result follows from: the kernel's source with what it imports from its folder and
from this package, the problem, chip, cores and order, the version of the language, and the laws: every source of the simulator,
of the timing model and of the chips.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import nki_hf.sim
from nki_hf.tools.searching.journal import append, read
from nki_hf.tools.tuning.surroundings import unchanged

__all__ = ["Study", "cache_folder", "laws", "source_digest", "study_of"]

_PACKAGE = Path(nki_hf.__file__).parent
_LAWS = ("chips", "timing", "sim")
_DYNAMIC = frozenset(
    ("importlib", "import_module", "__import__", "runpy", "exec", "eval", "open", "read_text", "read_bytes", "fromfile",
     "loadtxt", "genfromtxt", "memmap")
)  # fmt: skip
"""Names by which a source imports or reads what its text does not name."""
_FORMAT = 3
"""Of a result's line."""
_MOST_FILES, _MOST_BYTES = 2_000, 1 << 26


def cache_folder() -> Path:
    """Where results are kept unless told otherwise: `nki_hf/tune` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or (
        Path.home() / "Library/Caches" if sys.platform == "darwin" else Path.home() / ".cache"
    )
    return Path(home) / "nki_hf" / "tune"


@functools.cache
def laws() -> str:
    """Digest of every source that times follow from."""
    found = hashlib.sha256()
    for folder in _LAWS:
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            found.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def source_digest(path: Path) -> str:
    """Digest of the contents of a file, and of what it imports from its own folder and from this package's kernels, in turn.

    Where the file lies and what it is called is not part of it; what it imports has the place that it has beside it.

    Of a source that imports by a name made while it runs, or reads files, every file of its folder and every .py file of the
    folders below count too; where these are too many, the digest is new each time, so that no result is found again.
    """
    found: dict[Path, bytes] = {}
    waiting = [path.resolve()]
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        found[current] = data = current.read_bytes()
        if current.suffix == ".py":
            modules, more = _needs(data)
            roots = {current.parent, path.resolve().parent}  # Python looks in the folder of the file that is run
            waiting += [other for name, level in modules for root in roots for other in _files(name, level, root)]
            beside = _beside(current.parent) if more and not current.is_relative_to(_PACKAGE) else []
            if beside is None:
                found[current.with_name("too many files")] = secrets.token_bytes(16)
            waiting += beside or []
    digest = hashlib.sha256()
    root = path.resolve()
    for label, current in sorted((_label(item, root), item) for item in found):
        digest.update(label.encode(errors="surrogateescape") + b"\0" + found[current] + b"\0")
    return digest.hexdigest()[:16]


def _label(path: Path, root: Path) -> str:
    """The place of a file as the kernel's file `root` sees it."""
    if path == root:
        return ""
    base = _PACKAGE.parent if path.is_relative_to(_PACKAGE) and not root.is_relative_to(_PACKAGE) else root.parent
    return Path(os.path.relpath(path, base)).as_posix()


def _needs(data: bytes) -> tuple[list[tuple[str, int]], bool]:
    """Modules that a source imports anywhere, each with the dots before it; and whether it may import or read others."""
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [], True
    found: list[tuple[str, int]] = []
    more = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(item.name, 0) for item in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            found += [(base, node.level), *((f"{base}.{item.name}".lstrip("."), node.level) for item in node.names)]
        elif isinstance(node, ast.Name):
            more |= node.id in _DYNAMIC
        elif isinstance(node, ast.Attribute):
            more |= node.attr in _DYNAMIC
            more |= node.attr == "load" and isinstance(node.value, ast.Name) and node.value.id not in ("nl", "language")
    more |= any(name.partition(".")[0] in _DYNAMIC for name, _ in found)
    return found, more


def _beside(folder: Path) -> list[Path] | None:
    """Files of a folder and .py files below it; None if there are too many."""
    found: list[Path] = []
    size = 0
    for at, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        for name in names:
            path = Path(at) / name
            if path.is_file() and not name.startswith(".") and (Path(at) == folder or name.endswith(".py")):
                found.append(path.resolve())
                size += path.stat().st_size
                if len(found) > _MOST_FILES or size > _MOST_BYTES:
                    return None
    return found


def _files(module: str, level: int, folder: Path) -> list[Path]:
    """The files of a module as a source in `folder` imports it: it, and the packages that it is in."""
    parts = [part for part in module.split(".") if part]
    root = folder
    if parts[:1] == ["nki_hf"] and not level:
        if parts[1:2] not in (["kernels"], ["ladder"], ["tasks"]):
            return []  # the laws cover the language, nothing else reaches a kernel
        root = _PACKAGE.parent
    for _ in range(level - 1):
        root = root.parent
    found = [root / "__init__.py"] if level else []
    for count in range(1, len(parts) + 1):
        at = root.joinpath(*parts[:count])
        found += [at.with_suffix(".py"), at / "__init__.py"]
    return [item.resolve() for item in found if item.is_file()]


@dataclass(frozen=True)
class Study:
    """One kernel on one problem.

    Attributes:
      facts: what its results follow from.
      file: where they are kept; None = nowhere.
      source: the kernel's file.
    """

    facts: Mapping[str, Any]
    file: Path | None
    source: Path

    @functools.cached_property
    def name(self) -> str:
        """Its digest."""
        return hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()[:24]

    def known(self) -> dict[str, dict[str, Any]]:
        """Results by `space.key_of`; of several, a time counts more than the word that it is not of interest. Those of which
        something is another one now that their kernel asked for (surroundings.py) are left out.
        """
        found: dict[str, dict[str, Any]] = {}
        if self.file is not None:
            for record in read(self.file, skip=True):
                key = record.get("constants")
                if record.get("study") == self.name and isinstance(key, str) and ("us" in record or key not in found):
                    found[key] = record
        around = {key: value for record in found.values() for key, value in record.get("around", {}).items()}
        if unchanged(around, self.source):  # one look at each is enough where all results follow from the same
            return found
        return {key: record for key, record in found.items() if unchanged(record.get("around", {}), self.source)}

    def forget(self) -> None:
        """Drop every result."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)

    def keep(self, constants: str, result: Mapping[str, Any]) -> None:
        """Add one result; one that follows from more than Python says is not kept."""
        if self.file is not None and not result.get("programs"):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            append(self.file, {"study": self.name, "constants": constants, **result})


def study_of(facts: Mapping[str, Any], source: Path, folder: Path | None) -> Study:
    """The study of a kernel's source and a problem."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}, NumPy {np.__version__}"
    whole = {
        **facts,
        "source": source_digest(source),
        "laws": laws(),
        "language": nki_hf.sim.__version__,
        "python": python,
        "format": _FORMAT,
    }
    study = Study(whole, None, source)
    return Study(whole, None if folder is None else folder / f"{study.name}.jsonl", source)
