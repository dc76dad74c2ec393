"""Arrays kept on disk under a key that names everything they depend on; safe against crashes and other processes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from nki_hf.tools.model_bench.whole_file import whole_file

__all__ = ["Cached", "cached_array"]

_MAGIC = b"nki_hf reference output 1\n"
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
    run leaves nothing behind that could be read. A file that cannot be read, or whose contents do not match its own
    checksum or key, is one line through `say`; the array is computed again and the file replaced.

    Args:
      folder: the cache folder; it is made if it is missing.
      key: plain JSON values; every entry is kept in the file and compared.
      compute: gives the array.
      say: takes one line of text for the user.

    Raises:
      OSError: the folder cannot be made or written.
    """
    text = json.dumps(key, sort_keys=True)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.ref"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"the cache folder {folder} cannot be made ({error.strerror}): choose another --cache-dir.") from error
    with FileLock(f"{path}.lock"):
        if path.exists():
            try:
                return Cached(array=_read(path, text), path=path, hit=True)
            except (OSError, ValueError) as error:
                say(f"the cached reference {path} cannot be used ({error}); computing it again.")
        array = compute()
        _write(path, text, array)
    return Cached(array=array, path=path, hit=False)


def _write(path: Path, key: str, array: Array) -> None:
    data = np.ascontiguousarray(array)
    header = {
        "key": key,
        "dtype": str(data.dtype),
        "shape": list(data.shape),
        "sha256": hashlib.sha256(data.view(np.uint8).data).hexdigest(),
    }
    if path.is_dir():
        raise OSError(f"{path} is a folder: remove it, or choose another --cache-dir.")
    with whole_file(path) as file:
        file.write(_MAGIC + json.dumps(header).encode() + b"\n")
        file.write(data.view(np.uint8).data)


def _read(path: Path, key: str) -> Array:
    with path.open("rb") as file:
        if file.readline() != _MAGIC:
            raise ValueError("it is no reference file of this version")
        try:
            header = json.loads(file.readline())
            dtype, shape, checksum = np.dtype(header["dtype"]), tuple(header["shape"]), header["sha256"]
        except (ValueError, KeyError, TypeError):
            raise ValueError("its header is damaged") from None
        if header["key"] != key:
            raise ValueError("it belongs to another run")
        data = file.read()
    if hashlib.sha256(data).hexdigest() != checksum:
        raise ValueError("its contents do not match their checksum")
    return np.frombuffer(data, dtype).reshape(shape).copy()
