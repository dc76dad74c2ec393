"""Case: one call of what is verified, and what it must return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Array", "Case", "Expected"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """One output: its name, reference, allowed row error, the size that errors are relative to at least (see
    `verify_judge.row_error`), and its element type (None = any).
    """

    name: str
    reference: Array
    tolerance: float
    scale: Array | float = 0.0
    dtype: np.dtype[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call: the kernel's keyword arguments, and what it must return; the last `optional` outputs may be missing.

    A kernel that `certifies` its query tiles returns one output more, the failed rows of each [batch, heads, query tiles].
    Those that have some are right in a second launch, which names them in its constant `exact`.
    """

    arguments: Mapping[str, Any]
    expected: Sequence[Expected]
    optional: int = 0
    certifies: bool = False
