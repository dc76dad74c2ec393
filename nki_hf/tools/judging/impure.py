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
        self._drawn = self._drawn_by_file = _generators()
        self._modules = _modules()

    def loaded(self) -> None:
        """Note that the file has been loaded: what is drawn from here on its kernel draws."""
        self._drawn_by_file = _generators()

    def words(self) -> str:
        """What the file or its kernel did since; empty if nothing."""
        found = self._words()
        changed = self.changed() if found else ""
        return f"{changed}, and {found}" if changed else found

    def changed(self) -> str:
        """The first function of this package, NumPy or `random` that was replaced, in words; empty if none was.

        That is no fault by itself, since what is judged runs in another process. It is the first cause to name of what else is
        seen: modules that are loaded in order to be changed draw random numbers, as rich does.
        """
        for module, before in sorted(self._modules.items(), key=lambda item: _WATCHED.index(item[0].partition(".")[0])):
            now = vars(sys.modules[module]) if module in sys.modules else {}
            for name, value in before.items():
                if callable(value) and now.get(name) is not value:
                    return f"the kernel's file changes {module}.{name} (a kernel uses the language alone)"
        return ""

    def _words(self) -> str:
        if self._drawn_by_file != self._drawn:
            return "random numbers are drawn while the kernel's file is loaded, by it or by a module that it imports"
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


_WATCHED = ("nki_hf", "numpy", "random")
"""What a kernel's file may not change, in the order in which it is named."""


def _modules() -> dict[str, dict[str, object]]:
    """The names of the modules that a kernel's file may not change, by module."""
    found = [(name, module) for name, module in list(sys.modules.items()) if name.partition(".")[0] in _WATCHED]
    return {name: dict(vars(module)) for name, module in found}


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
