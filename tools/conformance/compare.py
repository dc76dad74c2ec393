"""Comparison of a kernel's output with its reference, by the rule that nki-library's own tests use."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Mismatch", "compare"]


class Mismatch(AssertionError):
    """An output differs from its reference by more than the tolerance allows."""


def compare(actual: Any, expected: Any, *, rtol: float, atol: float, name: str = "out") -> float:
    """Largest error as a share of what is allowed, `max|a - b| / (atol + rtol * max|b|)`; at most 1.

    Infinities and NaN must stand at the same places in both.

    Raises:
      Mismatch: shapes, non-finite places or values differ; the message has the worst element and its index.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        if actual.size != expected.size:
            raise Mismatch(f"{name} has shape {actual.shape}, the reference {expected.shape}.")
        actual = actual.reshape(expected.shape)
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite):
        where = tuple(int(i) for i in np.argwhere(np.isfinite(a) != finite)[0])
        raise Mismatch(f"{name}{list(where)} is {a[where]}, the reference {b[where]}: not finite at the same places.")
    if not finite.any():
        return 0.0
    error = np.where(finite, np.abs(np.where(finite, a, 0) - np.where(finite, b, 0)), 0)
    allowed = atol + rtol * float(np.abs(b[finite]).max())
    worst = float(error.max())
    if worst > allowed:
        where = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
        raise Mismatch(
            f"{name}{list(where)} is {a[where]:.6g}, the reference {b[where]:.6g}: off by {worst:.3g} of {allowed:.3g}."
        )
    return worst / allowed if allowed else 0.0
