"""The file that a user's task is read from, which a kernel must leave as it is: it is judged by it."""

from __future__ import annotations

import contextlib
import os

__all__ = ["stamp", "written"]

Stamp = tuple[int, ...] | None


def stamp(task: str) -> Stamp:
    """Which file a task is, and when it was written, by a clock that no process sets back; None for a task of the package."""
    file, dot, _ = task.partition(".py")  # FILE.py:NAME, too
    if dot:
        with contextlib.suppress(OSError):
            state = os.stat(file + dot)
            return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
    return None


def written(task: str, before: Stamp) -> str:
    """What a kernel did to the task's file since its stamp was taken, in words; empty if nothing."""
    if stamp(task) == before:
        return ""
    return (
        f"{os.path.basename(task).partition(':')[0]}, the task's file, is written while the kernel runs, which is judged by it"
    )
