"""Precision relative to an ideal kernel: exact arithmetic on the same inputs, rounded where the element type forces it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["RATIOS", "Precision", "precision"]

Array = np.ndarray[Any, Any]

RATIOS = {True: 1.3, False: 3.5}
"""Error of a kernel over that of an ideal one from which it fails, by whether the task states what an ideal one rounds. A good
kernel of attention in bfloat16 has 0.98 to 1.02, one that rounds its output twice 1.2; accumulators in bfloat16 have 1.34 with
two blocks of keys, 1.4 with four, 1.6 with eight."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Root mean square over the rows, each divided by that of the ideal kernel.

    Attributes:
      ratio: of the relative error of a row.
      factor_ratio: of how much a row as a whole is too large or too small. Roundings of elements average out in it; a
        rounded sum or divisor, which one row shares, does not.
    """

    ratio: float
    factor_ratio: float


def precision(output: Array, ideal: Array, reference: Array) -> Precision | None:
    """The precision of `output`, all three of one shape; None where the ideal kernel makes no error."""
    kernel, best = _errors(output, reference), _errors(ideal, reference)
    if not best[0] or output.shape[-1:] < (16,):
        return None
    return Precision(ratio=kernel[0] / best[0], factor_ratio=kernel[1] / best[1] if best[1] else 1.0)


def _errors(output: Array, reference: Array) -> tuple[float, float]:
    size = (reference * reference).sum(-1)
    keep = size > 1e-4 * size.mean() if size.size else np.zeros(size.shape, bool)
    error = ((output - reference) ** 2).sum(-1)[keep] / size[keep]
    factor = ((output * reference).sum(-1)[keep] / size[keep] - 1) ** 2
    return float(np.sqrt(error.mean())), float(np.sqrt(factor.mean()))
