"""Plan constants of `flash_const_max`, per chip, and the rule for shapes that the table does not name."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nki_hf.chips import Chip
from nki_hf.problem import Problem

__all__ = ["Tuning", "tuning_of"]


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What may be chosen freely: see `plan.ConstMaxPlan` for the words."""

    block_tiles: int = 4
    group: int = 2
    lag: int = 3
    late: int = 1
    prefetch: int = 16
    chunk: int = 2048


def tuning_of(problem: Problem, chip: Chip) -> Tuning:
    """The constants of one problem on one chip."""
    del chip
    base = Tuning()
    if problem.head_dim_v + 1 > 512:
        return replace(base, block_tiles=2)
    return base
