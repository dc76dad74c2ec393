"""One thread per BLAS call while kernels are simulated: the simulator's own threads share the processors, and tiles are
small enough that OpenBLAS loses time by dividing them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["one_blas_thread"]

_NAMES = (
    "scipy_openblas_{}_num_threads64_",
    "scipy_openblas_{}_num_threads",
    "openblas_{}_num_threads64_",
    "openblas_{}_num_threads",
)

_lock = threading.Lock()
_depth = 0
_before = 1


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """NumPy's OpenBLAS limited to one thread for a block of code, in the whole process; no effect with another BLAS.

    Blocks may overlap in several threads: the first sets the limit, the last restores what was there before.
    """
    global _depth, _before
    calls = _openblas()
    if calls is None:
        yield
        return
    get, put = calls
    with _lock:
        if _depth == 0:
            _before = get()
            put(1)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                put(_before)


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
