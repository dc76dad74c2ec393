"""Arrays kept on disk under a key that names everything they depend on; safe against crashes and other processes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from nki_hf.tools.output_files import remove_leftovers, whole_file

__all__ = ["Cached", "cached_array"]

_MAGIC = b"nki_hf reference output 2\n"
Array = np.ndarray[Any, np.dtype[np.floating[Any]]]


@dataclass(frozen=True, kw_only=True)
class Cached:
    """What `cached_array` gave.

    Attributes:
      array: the array.
      path: its file.
      hit: True if it was read and not computed.
    """

    array: Array
    path: Path
    hit: bool


def cached_array(
    folder: Path,
    key: Mapping[str, Any],
    compute: Callable[[], Array],
    *,
    say: Callable[[str], None],
) -> Cached:
    """The array of `key`: read from `folder`, or computed, stored and returned.

    One process computes while the others wait for it. A file is written aside and moved into place, so an interrupted
    run leaves nothing behind that could be read; what a killed one left aside is removed. A file that cannot be read, or
    whose contents do not match its own checksum or key, is one line through `say`; the array is computed again and the
    file replaced. A file that is good is read from a folder that cannot be written too.

    Args:
      folder: the cache folder; it is made if it is missing.
      key: plain JSON values; every entry is kept in the file and compared.
      compute: gives the array.
      say: takes one line of text for the user.

    Raises:
      OSError: the folder cannot be made or written, and has no good file of the key.
    """
    text = json.dumps(key, sort_keys=True)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.ref"
    with suppress(OSError):  # a folder that is not there yet, or cannot be written
        remove_leftovers(folder)
    found, _ = _kept(path, text)
    if found is not None:  # files are complete or absent: a good one needs no lock
        return Cached(array=found, path=path, hit=True)
    what = "made"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        what = "written"
        held = FileLock(f"{path}.lock").acquire()
    except OSError as error:
        why = error.strerror or error
        raise OSError(f"the cache folder {folder} cannot be {what} ({why}): choose another --cache-dir.") from error
    with held:
        found, problem = _kept(path, text)
        if found is not None:
            return Cached(array=found, path=path, hit=True)
        if problem:
            say(f"the cached reference {path} cannot be used ({problem}); computing it again.")
        array = compute()
        _write(path, text, array)
    return Cached(array=array, path=path, hit=False)


def _kept(path: Path, key: str) -> tuple[Array | None, str]:
    """The array of a file, or None and what is wrong with the file; nothing is wrong with one that is not there."""
    try:
        return (_read(path, key), "") if path.exists() else (None, "")
    except (OSError, ValueError) as error:
        return None, str(error)


def _write(path: Path, key: str, array: Array) -> None:
    data = np.ascontiguousarray(array)
    header = json.dumps({"key": key, "dtype": str(data.dtype), "shape": list(data.shape)}).encode()
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is a folder: remove it, or choose another --cache-dir.")
    contents = data.view(np.uint8).data
    with whole_file(path) as file:
        file.write(_MAGIC + header + b"\n" + _checksum(header, contents) + b"\n")
        file.write(contents)


def _read(path: Path, key: str) -> Array:
    if not path.is_file():
        raise ValueError("it is no file")
    with path.open("rb") as file:
        if file.readline() != _MAGIC:
            raise ValueError("it is no reference file of this version")
        header, checksum, data = file.readline().rstrip(b"\n"), file.readline().rstrip(b"\n"), file.read()
    if _checksum(header, data) != checksum:
        raise ValueError("its contents do not match their checksum")
    try:
        found = json.loads(header)
        dtype, shape, owner = np.dtype(found["dtype"]), tuple(found["shape"]), found["key"]
        array = np.frombuffer(data, dtype).reshape(shape)
    except (ValueError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"its header is damaged: {error}") from None
    if owner != key:
        raise ValueError("it belongs to another run")
    return array.copy()


def _checksum(header: bytes, data: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(header + b"\n")
    digest.update(data)
    return digest.hexdigest().encode()
