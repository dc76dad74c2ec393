"""Simulated latency of one attention call: our kernel, and the eager-like rung of the ladder beside it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from nki_hf.chips import Chip
from nki_hf.observers.schedule import DEFAULT_WINDOW, Schedule, schedule
from nki_hf.problem import Problem
from nki_hf.tools.subjects import events_of, flash_prefill_events

__all__ = ["EAGER_NOTE", "Latency", "eager_like_us", "flash_prefill_us"]

_EAGER = "v3"
_EAGER_STEP, _EAGER_SIZE = 512, 2048

EAGER_NOTE = (
    "eager-like: the ladder's v3, every intermediate through HBM in float32, one head after another at head_dim 128, as a "
    "square of sq x skv scores, its side rounded up to a multiple of 512 and at least 512; beyond 2,048 x 2,048 scaled with "
    "sq x skv, without the further spills that longer rows need"
)


@dataclass(frozen=True, kw_only=True)
class Latency:
    """A simulated latency.

    Attributes:
      us: simulated microseconds of the whole call.
      extrapolated: from how many to how many (batch, kv head) units, or None if every unit was scheduled.
      instructions: how many instructions were scheduled to know it.
    """

    us: float
    extrapolated: tuple[int, int] | None
    instructions: int


_BUDGET = 300_000
"""Instructions per core up to which every (batch, kv head) unit is scheduled."""
_LONG = 10_000
"""Instructions from which one unit is so long that what happens at its ends hardly counts."""


def flash_prefill_us(
    problem: Problem, chip: Chip, lnc: int = 1, *, window: int | None = DEFAULT_WINDOW, budget: int | None = _BUDGET
) -> Latency:
    """The latency of `flash_prefill` on `lnc` cores.

    (batch, kv head) units are independent and alike. If all of them would be more than `budget` instructions a core, a few
    (one or two per core) and as many as the budget allows, at least twice as many, are scheduled, and their difference per
    unit is repeated for the rest. In program order that is exact; a window's schedule is not quite periodic, hence the large
    default budget. `budget=None` schedules every unit.

    Raises:
      UnsupportedProblem: the kernel does not take the problem.
    """
    units = problem.batch * problem.num_heads_kv
    if budget is None or units <= 2 * lnc or units % lnc:
        return _whole(problem, chip, lnc, window)
    start = flash_prefill_events(_units(problem, lnc), chip, lnc)
    few = lnc if len(start) > _LONG * lnc else 2 * lnc
    known = max(2 * few if few == lnc else 4 * few, budget * lnc // len(start) * lnc)
    if known >= units:
        return _whole(problem, chip, lnc, window)
    short = schedule(start, chip, window=window) if few == lnc else _plan(_units(problem, few), chip, lnc, window)
    long = _plan(_units(problem, known), chip, lnc, window)
    step = (long.total_ns - short.total_ns) / (known - few)
    return Latency(us=(long.total_ns + step * (units - known)) / 1e3, extrapolated=(known, units),
                   instructions=len(short.events) + len(long.events))  # fmt: skip


def _whole(problem: Problem, chip: Chip, lnc: int, window: int | None) -> Latency:
    plan = _plan(problem, chip, lnc, window)
    return Latency(us=plan.total_ns / 1e3, extrapolated=None, instructions=len(plan.events))


def eager_like_us(problem: Problem, chip: Chip, lnc: int = 1) -> float:
    """The latency of the eager-like rung on as many scores as the call has; see `EAGER_NOTE`."""
    scores = problem.seqlen_q * problem.seqlen_kv
    heads = -(-problem.batch * problem.num_heads_q // lnc)
    side = math.isqrt(scores - 1) + 1  # of a square of at least as many scores
    size = max(_EAGER_STEP, min(_EAGER_SIZE, -(-side // _EAGER_STEP) * _EAGER_STEP))
    per_head = _eager_head_us(size, chip) * max(1.0, scores / size**2)
    return heads * per_head + chip.kernel_fixed_ns / 1e3


@functools.lru_cache(maxsize=32)
def _eager_head_us(size: int, chip: Chip) -> float:
    return (schedule(events_of(_EAGER, size, chip), chip).total_ns - chip.kernel_fixed_ns) / 1e3


def _plan(problem: Problem, chip: Chip, lnc: int, window: int | None) -> Schedule:
    return schedule(flash_prefill_events(problem, chip, lnc), chip, window=window)


def _units(problem: Problem, count: int) -> Problem:
    return replace(problem, batch=1, num_heads_kv=count, num_heads_q=count * problem.group_size)
