"""Output files: found out to be writable before the work, then complete or absent; devices and pipes are written as streams."""

from __future__ import annotations

import errno
import importlib
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["LOCKS", "check_writable", "leftover", "remove_leftovers", "whole_file", "writing"]

LOCKS: Any = importlib.import_module("fcntl") if os.name == "posix" else None
"""Without locks, as on Windows, nothing that a killed process left behind is removed."""
_ASIDE = re.compile(r"\.writing-[a-z0-9_]{8}")


def check_writable(path: Path | str, name: str = "output") -> None:
    """Open `path` for writing without changing it; a file that this created is removed again. Pipes and devices are not opened.

    Raises:
      ValueError: it cannot be opened.
    """
    with writing(path, name):
        if _is_stream(_status(path)):
            return
        target = Path(os.path.realpath(path))  # of a link: what it points to, which need not exist
        new = not target.exists()
        target.open("ab").close()
        if new:
            target.unlink()


@contextmanager
def writing(path: Path | str, name: str = "output") -> Iterator[None]:
    """What fails inside because of the operating system becomes a ValueError that names `path`, given as `name`."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise ValueError(
            f"{name}={path} cannot be written ({why}): give a file in an existing folder that you may write to, with room."
        ) from None


@contextmanager
def whole_file(path: Path | str) -> Iterator[BinaryIO]:
    """A binary file to write, which becomes `path` when the block ends, and vanishes if it ends by an exception.

    The folder is made if it is missing. An interrupt (Ctrl-C) counts as an exception; what a killed process left aside is
    removed by the next one. A link is followed, a file that is replaced keeps its mode, a new one gets that of the umask. A
    device, a pipe, or what standard output already goes to, is written to directly.

    Raises:
      OSError: it cannot be written.
    """
    before = _status(path)
    if (own := _own_stream(before)) is not None or _is_stream(before):
        with os.fdopen(_opened(path) if own is None else own, "wb") as stream:
            yield stream
        return
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target.parent)
    try:
        number, aside = _aside(target.parent)
    except PermissionError:  # of the folder; the file itself may be writable
        if before is None:
            raise
        with target.open("wb") as file:
            yield file
        return
    try:
        with os.fdopen(number, "wb") as file:
            yield file
            file.flush()
            os.fsync(number)
            if before is not None:
                os.chmod(aside, stat.S_IMODE(before.st_mode))
            if LOCKS is not None:
                _move(aside, target)  # while it is locked
        if LOCKS is None:
            _move(aside, target)
    except BaseException:  # an interrupt too: nothing half-written may stay
        aside.unlink(missing_ok=True)
        raise


def leftover(name: str) -> bool:
    """True if a file of that name is one that was being written."""
    return _ASIDE.fullmatch(name) is not None


def remove_leftovers(folder: Path) -> None:
    """Remove the files in `folder` that a killed process had begun to write; one that is being written is locked, and stays."""
    if LOCKS is None:
        return
    for entry in folder.iterdir():
        if leftover(entry.name) and not entry.is_symlink() and entry.is_file():
            with suppress(OSError):
                number = os.open(entry, os.O_RDWR)
                try:
                    LOCKS.flock(number, LOCKS.LOCK_EX | LOCKS.LOCK_NB)
                    entry.unlink()
                finally:
                    os.close(number)


def _aside(folder: Path) -> tuple[int, Path]:
    """A new file in `folder`, locked for as long as it is open."""
    while True:
        aside = folder / f".writing-{secrets.token_hex(4)}"
        try:
            number = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        except FileExistsError:
            continue
        if LOCKS is None:
            return number, aside
        with suppress(OSError):  # a file system without locks: nobody can tell that it is a leftover either
            LOCKS.flock(number, LOCKS.LOCK_EX)
        if aside.exists():
            return number, aside
        os.close(number)  # another process took it for a leftover, before it was locked


def _move(aside: Path, target: Path) -> None:
    try:
        os.replace(aside, target)
    except OSError as error:
        if error.errno != errno.EBUSY or not target.is_file():
            raise
        shutil.copyfile(aside, target)  # a file that something is mounted on
        aside.unlink()


def _status(path: Path | str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_stream(status: os.stat_result | None) -> bool:
    return status is not None and not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode)


def _own_stream(status: os.stat_result | None) -> int | None:
    """A copy of the descriptor of standard output or error if the path stands for that, as /dev/stdout does."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        with suppress(OSError):
            if status is not None and os.path.samestat(status, os.fstat(number)):
                if stream is not None:
                    stream.flush()
                return os.dup(number)
    return None


def _opened(path: Path | str) -> int:
    """A device or a pipe, open for writing. A pipe that nobody reads is an error: it would be waited for without end."""
    try:
        number = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "nobody reads this pipe: start its reader first", str(path)) from None
        raise
    os.set_blocking(number, True)
    return number
