"""Numbers of a mistake that follow from the output: the factor, addend or count that leaves the least error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

__all__ = ["count", "number"]

Error = Callable[[float], float]

_PROMISING = 0.8
"""Share of the error up to which a first guess is made better."""
_STEPS = 20
_DIGITS = 5
_AS_GOOD = 1.02


def number(error: Error, guesses: Iterable[float], whole: float) -> float | None:
    """The number with the least error, from the best of the guesses on; None if no guess leaves less than most of `whole`.

    Between half and twice the best guess it is narrowed down (golden section), so that 0.044715 is found from 0.05; of numbers
    that leave no more error 0 is taken, or the one with the fewest digits.
    """
    first = list(dict.fromkeys(guesses))
    least, best = min(((error(guess), guess) for guess in first), default=(math.inf, 0.0))
    if not least < _PROMISING * whole:
        return None
    if not best or least < 1e-6 * whole:
        return 0.0 if 0.0 in first and error(0.0) < 1e-6 * whole else best
    share = (5**0.5 - 1) / 2
    low, high = -1.0, 1.0
    left, right = high - share * (high - low), low + share * (high - low)
    off = {at: error(best * 2.0**at) for at in (left, right)}
    for _ in range(_STEPS):
        if off[left] < off[right]:
            high, right = right, left
            left = high - share * (high - low)
            off[left] = error(best * 2.0**left)
        else:
            low, left = left, right
            right = low + share * (high - low)
            off[right] = error(best * 2.0**right)
    at = min(off, key=lambda item: off[item])
    if 0.0 in first and error(0.0) <= _AS_GOOD * min(off[at], least):
        return 0.0
    if off[at] >= least:
        return best
    found = best * 2.0**at
    for digits in range(1, _DIGITS + 1):  # what somebody wrote is a short number
        if error(short := float(f"{found:.{digits}g}")) <= _AS_GOOD * off[at]:
            return short
    return found


def count(error: Error, most: int, whole: float, *, signed: bool = False) -> int | None:
    """The number from 1 to `most` (or its negative) with the least error: powers of two first, then ever smaller steps."""
    powers = [2**i for i in range(most.bit_length()) if 2**i <= most]
    guesses = [*powers, *(-item for item in powers)] if signed else powers
    known = {guess: error(guess) for guess in guesses}
    if not known:
        return None
    best = min(known, key=lambda item: known[item])
    step = max(abs(best) // 2, 1)
    while step and known[best]:
        for other in (best - step, best + step):
            if other and abs(other) <= most and (signed or other > 0) and other not in known:
                known[other] = error(other)
        nearer = min(known, key=lambda item: known[item])
        if nearer == best:
            step //= 2
        best = nearer
    return best if known[best] < _PROMISING * whole else None
