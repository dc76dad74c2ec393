"""Plan constants of `flash_const_max`: a table per chip, made with the timing model, and the rule for shapes of every kind."""

from __future__ import annotations

from dataclasses import dataclass

from nki_hf.chips import Chip
from nki_hf.problem import Problem

__all__ = ["KINDS", "LAWS", "TABLE", "Tuning", "kind_of", "tuning_of"]


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What may be chosen freely: see `plan.ConstMaxPlan` for the words."""

    block_tiles: int = 4
    group: int = 2
    lag: int = 3
    late: int = 1
    prefetch: int = 16
    chunk: int = 2048


KINDS = ("short", "long", "wide", "widest")
"""Up to 2,048 keys; more; head_dim_v of 256 to 511, whose accumulators take a bank each; 512, two of them."""

# begin table
LAWS = "c60d0297a07e5723"
TABLE: dict[str, dict[str, Tuning]] = {
    "trn1": {
        "short": Tuning(block_tiles=4, group=2, lag=3, late=1, prefetch=8, chunk=2048),
        "long": Tuning(block_tiles=4, group=2, lag=4, late=1, prefetch=8, chunk=2048),
        "wide": Tuning(block_tiles=4, group=1, lag=3, late=1, prefetch=16, chunk=2048),
        "widest": Tuning(block_tiles=2, group=1, lag=2, late=1, prefetch=16, chunk=2048),
    },
    "trn2": {
        "short": Tuning(block_tiles=4, group=2, lag=2, late=1, prefetch=16, chunk=2048),
        "long": Tuning(block_tiles=4, group=2, lag=2, late=1, prefetch=8, chunk=2048),
        "wide": Tuning(block_tiles=4, group=1, lag=3, late=1, prefetch=16, chunk=2048),
        "widest": Tuning(block_tiles=2, group=1, lag=2, late=1, prefetch=8, chunk=2048),
    },
    "trn3": {
        "short": Tuning(block_tiles=4, group=2, lag=2, late=1, prefetch=8, chunk=2048),
        "long": Tuning(block_tiles=4, group=2, lag=2, late=1, prefetch=8, chunk=2048),
        "wide": Tuning(block_tiles=4, group=1, lag=3, late=1, prefetch=8, chunk=2048),
        "widest": Tuning(block_tiles=2, group=1, lag=2, late=1, prefetch=8, chunk=2048),
    },
}
# end table


def kind_of(problem: Problem) -> str:
    """Which of `KINDS` a problem is."""
    if problem.head_dim_v + 1 > 512:
        return "widest"
    if problem.head_dim_v + 1 > 256:
        return "wide"
    return "short" if problem.seqlen_kv <= 2048 else "long"


def tuning_of(problem: Problem, chip: Chip) -> Tuning:
    """The constants of one problem on one chip."""
    return TABLE[chip.name][kind_of(problem)]
