"""What a result follows from beside its kernel's source: one text per thing that was noticed, with what it was.

file PATH              bytes of a file, names in a folder
entries PATH           names in a folder, each with what `there` has
there PATH             nothing, a folder, or a file of some size; where a link leads, which file it is, who may do what with it
module NAME in PATHS   where it lies
variable NAME          its value, as a digest
start                  working folder, Python's own folder and path, names and versions of the installed packages
own                    where the kernel's file lies, if it asked for files, folders or modules, or its source says that it asks
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import os
import re
import stat
import sys
from collections.abc import Mapping
from importlib.util import source_from_cache
from pathlib import Path

from nki_hf.tools.searching.workers import worker_environment
from nki_hf.tools.tuning.noticing import EVERY_VARIABLE, INSTALLED, KNOWN, Noticed

__all__ = ["begun", "surroundings", "unchanged"]

_PLACE = re.compile(rb"__\w+__|inspect|traceback|_getframe|co_filename")


def surroundings(noticed: Noticed, own: str, environment: Mapping[str, str], start: str) -> dict[str, str]:
    """What it was, by what it is.

    Args:
      noticed: what the kernel's Python asked.
      own: the kernel's file, which is in the digest of its source.
      environment, start: the environment and `begun` of the process before it ran a kernel, which may change them.
    """
    skipped = os.path.abspath(own) if own else ""
    files = {_source(path) for path in noticed.files} - {skipped}
    keys = [f"file {path}" for path in files if not _known(path)]
    keys += [f"entries {path}" for path in noticed.entries if not _known(path)]
    keys += [f"there {path}" for path in noticed.asked - {skipped} if not _known(path)]
    keys += [f"module {name} in {os.pathsep.join(folders)}" for name, folders in noticed.modules]
    keys += ["own"] * (bool(own) and (bool(keys) or _asks_its_place(skipped)))
    keys += ["start"] * (noticed.relative or bool(noticed.modules))
    keys += [f"variable {name}" for name in noticed.variables]
    return {key: _now(key, environment, start, skipped) for key in sorted(keys)}


def unchanged(recorded: Mapping[str, str], own: str | Path = "") -> bool:
    """True if all of `surroundings` would be the same in a process that is started now, for the kernel's file `own`."""
    environment = worker_environment()
    start = begun(environment) if "start" in recorded else ""
    place = os.path.abspath(own) if own else ""
    return all(_now(key, environment, start, place) == value for key, value in recorded.items())


def _asks_its_place(path: str) -> bool:
    """True if a source has words that say where it lies or what it is called."""
    try:
        return _PLACE.search(Path(path).read_bytes()) is not None
    except OSError:
        return True


def begun(environment: Mapping[str, str]) -> str:
    """Digest of what the paths of files and modules follow from in a process that is started now."""
    packages = []
    for folder in sorted(INSTALLED):
        if os.path.isdir(folder):
            packages += [name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info", ".pth"))]
    try:
        working = os.getcwd()
    except OSError:  # the folder is gone
        working = ""
    return _hashed(repr((working, environment.get("PYTHONPATH", ""), sys.prefix, sorted(set(packages)))).encode())


def _known(path: str) -> bool:
    return os.path.realpath(path).startswith(KNOWN) or path.startswith(KNOWN)


def _now(key: str, environment: Mapping[str, str], start: str, own: str) -> str:
    kind, _, rest = key.partition(" ")
    if kind == "file":
        return _digest(rest)
    if kind == "entries":
        return _entries(rest)
    if kind == "own":
        return own
    if kind == "there":
        return _kind(rest)
    if kind == "module":
        name, _, folders = rest.partition(" in ")
        return _located(name, folders.split(os.pathsep))
    if kind == "variable":
        value = repr(sorted(environment.items())) if rest == EVERY_VARIABLE else environment.get(rest)
        return "" if value is None else _hashed(value.encode(errors="surrogateescape"))
    return start if kind == "start" else "?"


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
            return _hashed("\0".join(sorted(os.listdir(path))).encode(errors="surrogateescape"))
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except (OSError, ValueError):
        return ""


def _entries(path: str) -> str:
    """Of the names in a folder and of what each is; empty if it cannot be listed."""
    try:
        names = sorted(os.listdir(path))
    except (OSError, ValueError):
        return ""
    return _hashed("\0".join(f"{name} {_kind(os.path.join(path, name))}" for name in names).encode(errors="surrogateescape"))


def _kind(path: str) -> str:
    """Nothing, a folder or a file's size, the link's target, device, number, owner and mode, and what this user may do."""
    try:
        own = os.lstat(path)
    except (OSError, ValueError):
        return ""
    said = f"link to {os.readlink(path)}, " if stat.S_ISLNK(own.st_mode) else ""
    try:
        found = os.stat(path)
    except OSError:
        return f"{said}nothing"
    what = "a folder" if stat.S_ISDIR(found.st_mode) else f"{found.st_size} B"
    may = "".join(letter for letter, how in (("r", os.R_OK), ("w", os.W_OK), ("x", os.X_OK)) if os.access(path, how))
    return f"{said}{what}, {found.st_dev}:{found.st_ino} {found.st_uid}:{found.st_gid} {found.st_mode:o} {may}"


def _located(name: str, folders: list[str]) -> str:
    """Every file and folder that would be the module, the first one first."""
    last = name.rpartition(".")[2]
    endings = ("", *importlib.machinery.all_suffixes())
    paths = (os.path.join(folder, last + ending) for folder in folders for ending in endings)
    return os.pathsep.join(path for path in paths if os.path.exists(path))


def _hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
