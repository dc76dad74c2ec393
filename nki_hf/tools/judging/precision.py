"""Precision relative to an ideal kernel: exact arithmetic on the same inputs, rounded where the element type forces it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["NARROW", "RATIOS", "Precision", "precision"]

Array = np.ndarray[Any, Any]

RATIOS = {True: 1.3, False: 3.5}
"""Error of a kernel over that of an ideal one from which it fails, by whether the task states what an ideal one rounds. A good
kernel of attention in bfloat16 has 0.98 to 1.02, one that rounds its output twice 1.2; accumulators in bfloat16 have 1.34 with
two blocks of keys, 1.4 with four, 1.6 with eight."""


NARROW = 6.0
"""Error ratio from which a 16-bit sum is no likely cause: one over four blocks has 1.4 to 3; float8_e4m3 rounds 16 times as
coarsely as bfloat16."""
_MOST, _THIRD = 2 / 3, 1 / 3
"""Shares of the rows, or of the columns, that err least beyond an ideal kernel: narrow sums are inexact there, too, and a wrong
place is not among them. Half of the rows of a causal kernel have sums over several blocks where it has two; 8-bit values reach
all of them."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Root mean square over the rows, each divided by that of the ideal kernel.

    Attributes:
      ratio: of the relative error of a row.
      factor_ratio: of how much a row as a whole is too large or too small. Roundings of elements average out in it; a
        rounded sum or divisor, which one row shares, does not.
      rows, columns: `ratio` of those that err least.
      factor_rows: `factor_ratio` of those.
    """

    ratio: float
    factor_ratio: float
    rows: float
    columns: float
    factor_rows: float

    def exceeds(self, limit: float) -> bool:
        """True if it is less exact than `limit` times an ideal kernel."""
        return self.ratio > limit or self.factor_ratio > 2 * limit

    def is_spread(self, limit: float) -> bool:
        """True if what exceeds `limit` is an error of most rows and columns."""
        if self.ratio > limit and self.columns - 1 < (limit - 1) / 4:
            return False
        by_element = self.ratio > limit and self.rows - 1 > (limit - 1) / 4
        return by_element or (self.factor_ratio > 2 * limit and self.factor_rows - 1 > (2 * limit - 1) / 4)


def precision(output: Array, ideal: Array, reference: Array) -> Precision | None:
    """The precision of `output`, all three of one shape; None where the ideal kernel makes no error."""
    kernel, best = _errors(output, reference), _errors(ideal, reference)
    if not best[0].any() or output.shape[-1:] < (16,):
        return None
    ratio, _, factor = (_ratio(*pair) for pair in zip(kernel, best, strict=True))
    share = _THIRD if ratio > NARROW else _MOST
    rows, columns, factor_rows = (_of_least(*pair, share) for pair in zip(kernel, best, strict=True))
    return Precision(ratio=ratio, factor_ratio=factor, rows=rows, columns=columns, factor_rows=factor_rows)


def _errors(output: Array, reference: Array) -> tuple[Array, Array, Array]:
    """The squares of the errors of rows, of columns, and of the sizes of rows, relative to the rows."""
    size = (reference * reference).sum(-1)
    keep = size > 1e-4 * size.mean() if size.size else np.zeros(size.shape, bool)
    squares = ((output - reference) ** 2)[keep] / size[keep][:, None]
    factor = ((output * reference).sum(-1)[keep] / size[keep] - 1) ** 2
    return squares.sum(-1), squares.mean(0), factor


def _ratio(kernel: Array, best: Array) -> float:
    """Of root mean squares; 1 where the ideal kernel makes no error."""
    exact = float(best.mean()) if best.size else 0.0
    return float(np.sqrt(kernel.mean() / exact)) if exact else 1.0


def _of_least(kernel: Array, best: Array, share: float) -> float:
    """The ratio of those where the kernel errs least beyond the ideal one."""
    kept = np.argsort(kernel - best)[: max(1, int(share * len(kernel)))]
    return _ratio(kernel[kept], best[kept])
