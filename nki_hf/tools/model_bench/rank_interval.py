"""How much faster one set of times is than another: the ratio with an interval that assumes no distribution.

The estimate is that of Hodges and Lehmann on logarithms: the median of all ratios new / old. Its interval holds the ratios that
the exact Mann-Whitney test does not reject.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

__all__ = ["CONFIDENCE", "Ratio", "critical_u", "ratio_of"]

CONFIDENCE = 0.95
_EXACT = 2500
"""Product of the sample sizes up to which the test is exact; beyond, U is taken as normal."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """New over old.

    Attributes:
      value: the median of all ratios of a new time over an old one.
      low, high: the interval of at least `CONFIDENCE`; None if there are too few times for any.
    """

    value: float
    low: float | None
    high: float | None

    @property
    def verdict(self) -> str:
        """`faster`, `slower`, `no difference`, or `too few calls to tell`."""
        if self.low is None or self.high is None:
            return "too few calls to tell"
        return "faster" if self.high < 1 else "slower" if self.low > 1 else "no difference"


def ratio_of(old: Sequence[float], new: Sequence[float]) -> Ratio:
    """The ratio of two samples of positive times; from 4 of each on there is an interval."""
    ratios = sorted(b / a for a in old for b in new)
    rank = critical_u(len(old), len(new))
    value = math.exp(statistics.median(map(math.log, ratios)))
    if rank is None:
        return Ratio(value=value, low=None, high=None)
    return Ratio(value=value, low=ratios[rank], high=ratios[-1 - rank])


def critical_u(m: int, n: int) -> int | None:
    """The largest U that a two-sided Mann-Whitney test of samples of `m` and `n` rejects; None if it rejects none."""
    if m * n > _EXACT:
        spread = math.sqrt(m * n * (m + n + 1) / 12)
        return math.floor(m * n / 2 + spread * statistics.NormalDist().inv_cdf((1 - CONFIDENCE) / 2))
    counts = _counts(m, n)
    allowed, seen = (1 - CONFIDENCE) / 2 * sum(counts), 0
    for u, count in enumerate(counts):
        seen += count
        if seen > allowed:
            return u - 1 if u else None
    return None


@cache
def _counts(m: int, n: int) -> tuple[int, ...]:
    """How many orders of the samples have U = 0, 1, ..., m n: coefficients of the Gaussian binomial, by division of
    polynomials, (1 - x^(n+1)) ... (1 - x^(n+m)) over (1 - x) ... (1 - x^m).
    """
    size = m * n + 1
    found = [1] + [0] * (size - 1)
    for i in range(1, m + 1):
        for power in range(size - 1, n + i - 1, -1):
            found[power] -= found[power - n - i]
        for power in range(i, size):
            found[power] += found[power - i]
    return tuple(found)
