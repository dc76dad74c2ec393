"""How NumPy behaves while kernels are simulated: silent about overflow, and one thread per BLAS call.

Engines overflow and divide by zero without a word. Tiles are so small that OpenBLAS loses time by dividing them, and the
simulator's back end runs independent parts on threads of its own.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["engine_numerics"]

_NAMES = (
    "scipy_openblas_{}_num_threads64_",
    "scipy_openblas_{}_num_threads",
    "openblas_{}_num_threads64_",
    "openblas_{}_num_threads",
)

_lock = threading.Lock()
_thread = threading.local()  # `block`: a weak reference to the outermost open block
_before = 1
_limited = False
_open: weakref.WeakSet[engine_numerics] = weakref.WeakSet()  # weak: a block that an interrupt kept from its exit is gone


class engine_numerics:  # noqa: N801  (a context manager used like a function)
    """NumPy's floating-point warnings off in this thread, and its OpenBLAS limited to one thread in the whole process, for
    a block of code; the latter has no effect with another BLAS.

    Blocks may overlap in several threads: the first sets the limit, the last restores what was there before. A block inside
    another of its thread changes nothing.
    """

    def __enter__(self) -> None:
        outer = getattr(_thread, "block", None)
        self._inner = outer is not None and outer() in _open
        if self._inner:
            return
        self._errors = np.errstate(all="ignore")
        self._errors.__enter__()
        try:
            _limit(self, True)
        except BaseException:  # an interrupt; without a block there is no exit either
            self._errors.__exit__(None, None, None)
            raise
        _thread.block = weakref.ref(self)

    def __exit__(self, *exc: object) -> None:
        if self._inner:
            return
        _thread.block = None
        try:
            _limit(self, False)
        finally:
            self._errors.__exit__(None, None, None)


def _limit(block: engine_numerics, entered: bool) -> None:
    global _before, _limited
    calls = _openblas()
    if calls is None:
        return
    get, put = calls
    with _lock:
        if entered:
            if not _open:
                # What an interrupted block left behind is no setting of anybody's.
                _before = _before if _limited else get()
                _limited = True
                put(1)
            _open.add(block)
        else:
            _open.discard(block)
            if not _open:
                put(_before)
                _limited = False


def _after_fork() -> None:
    """The child has one thread: blocks that others had open are gone."""
    global _lock, _limited
    _lock, calls = threading.Lock(), _openblas()
    if _limited and calls is not None:
        calls[1](_before)
    _limited = False
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def _openblas() -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    """OpenBLAS's own functions to read and set its thread count, in the library that NumPy's wheel carries."""
    package = Path(np.__file__).parent
    folders = (package.parent / "numpy.libs", package / ".dylibs")
    for path in sorted(item for folder in folders if folder.is_dir() for item in folder.glob("*openblas*")):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for name in _NAMES:
            get, put = getattr(library, name.format("get"), None), getattr(library, name.format("set"), None)
            if get is not None and put is not None:
                return get, put
    return None
