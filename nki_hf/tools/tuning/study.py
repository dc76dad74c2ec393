"""A study: what trials of one kernel on one problem are stored under, and the results that are known already.

The name of a study is a digest of all that a result follows from: the kernel's source with what it imports from its folder and
from this package, the problem, chip, cores and order, the version of the language, and the laws: every source of the simulator,
of the timing model and of the chips.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nki_hf.sim
from nki_hf.tools.searching.journal import append, read

__all__ = ["Study", "cache_folder", "laws", "source_digest", "study_of"]

_PACKAGE = Path(nki_hf.__file__).parent
_LAWS = ("chips", "timing", "sim")
_IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+\(?([\w, \t]*)|import[ \t]+([\w.]+))", re.MULTILINE)


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
    """Digest of a file, and of what it imports from its own folder and from this package's kernels, in turn."""
    found, waiting = {}, [path.resolve()]
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        found[current] = data = current.read_bytes()
        for match in _IMPORT.finditer(data):
            base = (match[1] or match[3]).decode()
            names = [base, *(f"{base}.{name.strip()}" for name in (match[2] or b"").decode().split(",") if name.strip())]
            waiting += [other for name in names for other in _files(name, current.parent) if other not in found]
    digest = hashlib.sha256()
    for current in sorted(found):
        digest.update(current.name.encode() + b"\0" + found[current] + b"\0")
    return digest.hexdigest()[:16]


def _files(module: str, folder: Path) -> list[Path]:
    parts = module.split(".")
    if parts[0] == "nki_hf":
        if parts[1:2] not in (["kernels"], ["ladder"], ["tasks"]):
            return []  # the laws cover the language, nothing else reaches a kernel
        roots = [_PACKAGE.parent]
    else:
        roots = [folder]
    found = []
    for root in roots:
        at = root.joinpath(*parts)
        found += [item.resolve() for item in (at.with_suffix(".py"), at / "__init__.py") if item.is_file()]
    return found


@dataclass(frozen=True)
class Study:
    """One kernel on one problem.

    Attributes:
      facts: what its results follow from.
      file: where they are kept; None = nowhere.
    """

    facts: Mapping[str, Any]
    file: Path | None

    @functools.cached_property
    def name(self) -> str:
        """Its digest."""
        return hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()[:24]

    def known(self) -> dict[str, dict[str, Any]]:
        """Results by `space.key_of`; of several, a time counts more than the word that it is not of interest."""
        found: dict[str, dict[str, Any]] = {}
        if self.file is not None:
            for record in read(self.file, skip=True):
                key = record.get("constants")
                if record.get("study") == self.name and isinstance(key, str) and ("us" in record or key not in found):
                    found[key] = record
        return found

    def keep(self, constants: str, result: Mapping[str, Any]) -> None:
        """Add one result."""
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            append(self.file, {"study": self.name, "constants": constants, **result})


def study_of(facts: Mapping[str, Any], source: Path, folder: Path | None) -> Study:
    """The study of a kernel's source and a problem."""
    whole = {**facts, "source": source_digest(source), "laws": laws(), "language": nki_hf.sim.__version__}
    study = Study(whole, None)
    return Study(whole, None if folder is None else folder / f"{study.name}.jsonl")
