"""A journal: records as lines of JSON that are only ever added, and survive a process that is killed while it writes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nki_hf.tools.output_files import LOCKS

__all__ = ["append", "held", "mended", "read"]


def append(path: Path, record: dict[str, Any]) -> None:
    """Add one record; it is on the disk when this returns. One write, so that processes that share the file do not mix. What a
    killed process left unfinished stays a line of its own.
    """
    new = not path.exists()
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        size = os.fstat(number).st_size
        torn = size > 0 and os.lseek(number, -1, os.SEEK_END) >= 0 and os.read(number, 1) != b"\n"
        data = ("\n" * torn + json.dumps(record, sort_keys=True) + "\n").encode()
        while data:
            data = data[os.write(number, data) :]
        os.fsync(number)
    finally:
        os.close(number)
    if new:
        _sync_folder(path.parent)


def read(path: Path, *, skip: bool = False) -> list[dict[str, Any]]:
    """Every record; a last line that a killed process did not finish is left out.

    Args:
      path: the file; one that is not there has no records.
      skip: True leaves out every line that is no record: for what can be found out again.

    Raises:
      ValueError: another line is no record.
    """
    if not path.is_file():
        return []
    *lines, _ = path.read_bytes().split(b"\n")  # the last part is empty, or not finished
    found = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            if skip:
                continue
            raise ValueError(f"damaged: {path.name} line {number}: no record: mend the line of {path}, or give another folder.")
        found.append(record)
    return found


def mended(path: Path) -> list[dict[str, Any]]:
    """`read`, and what is not finished is cut off, so that the next record begins a line of its own."""
    if path.is_file():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with path.open("r+b") as file:
                file.truncate(whole)
                os.fsync(file.fileno())
    return read(path)


@contextmanager
def held(path: Path, what: str) -> Iterator[None]:
    """The folder's lock for a block; the system frees it when its process ends, however that is.

    Raises:
      ValueError: another process has it.
    """
    with path.open("ab") as file:
        if LOCKS is not None:
            try:
                LOCKS.flock(file.fileno(), LOCKS.LOCK_EX | LOCKS.LOCK_NB)
            except OSError:
                raise ValueError(f"{what} is in use by another process: wait for it, or give another one.") from None
        yield


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
