"""What is less exact than an ideal kernel, in words: narrow sums where most rows are, and else a place."""

from __future__ import annotations

from nki_hf.tools.judging.precision import NARROW
from nki_hf.tools.judging.values import Outcome

__all__ = ["imprecision", "narrow_sums"]


def imprecision(outcome: Outcome, limit: float) -> str:
    """What the error ratios say, empty if they are as they should be."""
    found = outcome.precisions[outcome.least_exact] if outcome.precisions else None
    if found is None or not found.exceeds(limit):
        return ""
    if words := narrow_sums(outcome, limit):
        return words
    row = list(outcome.judgements[outcome.least_exact].worst_row)
    ratio, of = (found.ratio, "") if found.ratio > limit else (found.factor_ratio, "of the size of rows ")
    few = f"most of it in few rows or columns (row {row} has the largest)"
    return f"the error {of}is {ratio:.1f} times that of exact arithmetic in this type, {few}"


def narrow_sums(outcome: Outcome, limit: float) -> str:
    """The likely cause where most rows and columns are less exact than they should be; empty where a place is wrong."""
    found = outcome.precisions[outcome.least_exact] if outcome.precisions else None
    if found is None or not found.is_spread(limit):
        return ""
    if found.ratio > NARROW:
        return (
            f"the error is {found.ratio:.1f} times that of exact arithmetic in this type: values or probabilities in an 8-bit "
            "type, or sums over many blocks in a 16-bit type"
        )
    if found.factor_ratio > 2 * limit:
        return (
            f"rows as a whole are off by {found.factor_ratio:.1f} times what exact sums would leave (the error of elements is "
            f"{found.ratio:.1f} times that of exact arithmetic): row sums or divisors in a 16-bit type"
        )
    return (
        f"the error is {found.ratio:.1f} times that of exact arithmetic in this type: sums or accumulators in a 16-bit type, "
        "or values rounded on the way"
    )
