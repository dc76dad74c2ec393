"""Two halves of some work at the same time: this process does one, a forked copy of it the other.

A copy has all that was made so far (traces, recordings, edges), so nothing is made twice, and gives back bytes. It is a matter
of time alone: where there is no copy, or it ends without an answer, this process does both halves.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["in_two", "two_processes"]

_Mine = TypeVar("_Mine")
_HEAD = 8
_leave = os._exit  # a kernel's file is loaded under another one
_allowed: ContextVar[bool] = ContextVar("two_processes", default=False)


@contextlib.contextmanager
def two_processes(allowed: bool = True) -> Iterator[None]:
    """Block in which `in_two` may fork. No other thread may be inside of NumPy meanwhile: a copy would wait for its locks."""
    token = _allowed.set(allowed and sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1)
    try:
        yield
    finally:
        _allowed.reset(token)


def in_two(mine: Callable[[], _Mine], other: Callable[[], bytes], *, worth: bool = True) -> tuple[_Mine, bytes]:
    """What `mine` and `other` give, in this order; inside of `two_processes` a copy of this process runs `other` meanwhile.

    What `other` changes is lost with the copy. What it raises there, it raises here when it runs again. `worth` is False where
    both take less than to fork.
    """
    copy = _copy(other) if worth and _allowed.get() else None
    if copy is None:
        return mine(), other()
    process, answer = copy
    try:
        done = mine()
        with os.fdopen(answer, "rb", closefd=False) as stream:
            data = stream.read()
    except BaseException:  # an interrupt too: the copy ends with this process's half
        with contextlib.suppress(OSError):
            os.kill(process, 9)
        raise
    finally:
        os.close(answer)
        with contextlib.suppress(OSError):
            os.waitpid(process, 0)
    whole = len(data) >= _HEAD and len(data) == _HEAD + int.from_bytes(data[:_HEAD], "little")
    return done, data[_HEAD:] if whole else other()


def _copy(other: Callable[[], bytes]) -> tuple[int, int] | None:
    """A forked process that runs `other`, and the end of a pipe that gives its answer with the length before it, or nothing if
    it raised; None if none starts.
    """
    answer, give = os.pipe()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's about threads: see `two_processes`
            process = os.fork()
    except OSError:
        os.close(answer)
        os.close(give)
        return None
    if process:
        os.close(give)
        return process, answer
    try:
        os.close(answer)
        _allowed.set(False)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            data = other()
        left = memoryview(len(data).to_bytes(_HEAD, "little") + data)
        while left:
            left = left[os.write(give, left) :]
    finally:
        _leave(0)
