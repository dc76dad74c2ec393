"""What a kernel's Python may not go by, seen without waiting for it to show: random numbers, its process, rewritten modules."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

__all__ = ["Impurity", "another_process"]


class Impurity:
    """Watches one process from before a kernel's file is loaded."""

    def __init__(self, file: str) -> None:
        self._folder = Path(file).resolve().parent if file.endswith(".py") else None
        self._began = time.time_ns()
        self._drawn = _generators()

    def words(self) -> str:
        """What the file or its kernel did since; empty if nothing."""
        if _generators() != self._drawn:
            return "the kernel's Python draws random numbers"
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if self._folder is None or not isinstance(file, str) or Path(file).resolve().parent != self._folder:
                continue
            with contextlib.suppress(OSError):
                if Path(file).stat().st_mtime_ns > self._began:
                    return f"{Path(file).name} was written while the kernel ran, and is another file for the next round"
        return ""


def _generators() -> tuple[object, ...]:
    """Where the generators of a process stand that have no seed of their own."""
    name, keys, position, *rest = np.random.get_state(legacy=True)  # noqa: NPY002  (that of a kernel's own calls)
    return random.getstate(), name, np.asarray(keys).tobytes(), position, *rest


@contextlib.contextmanager
def another_process() -> Iterator[None]:
    """Block in which this process seems to be another one."""
    before, number = os.getpid, os.getpid()
    os.getpid = lambda: number + 1
    try:
        yield
    finally:
        os.getpid = before
