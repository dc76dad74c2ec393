"""A line of a kernel in words: sentences name the file of a line that stands in a module beside the judged one."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from nki_hf.observers.short_path import short_path

__all__ = ["line_words"]


def line_words(own: str, file: str, line: int) -> str:
    """`line 12` of the kernel's file `own`, which the reader has before them; `tiles.py:12` of a module beside it.

    An empty `own` is a kernel that stands in no one file.
    """
    if not file:
        return f"line {line}"
    if own:
        kernel, there = _real(own), _real(file)
        if there == kernel:
            return f"line {line}"
        if there.is_relative_to(kernel.parent):
            return f"{there.relative_to(kernel.parent)}:{line}"
    return f"{short_path(file)}:{line}"


@lru_cache(maxsize=256)
def _real(file: str) -> Path:
    """Kernels are named as they are given, and known to Python by where they are."""
    return Path(os.path.realpath(file))
