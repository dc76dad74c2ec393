"""Simulated latency of one attention call: our kernel, and the eager-like rung of the ladder beside it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from nki_hf.chips import Chip
from nki_hf.kernels.registry import binding
from nki_hf.problem import Problem
from nki_hf.timing.schedule import DEFAULT_WINDOW, Schedule, schedule
from nki_hf.tools.lengths import attention_instructions
from nki_hf.tools.subjects import attention_candidate, events_of, telling_events
from nki_hf.tools.unit_ends import unit_ends

__all__ = ["EAGER_NOTE", "Latency", "attention_us", "eager_like_us", "independent_units", "one_unit"]

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
      extrapolated: from how many to how many independent units, or None if every unit was scheduled.
      instructions: how many instructions were scheduled to know it, attempts that had not settled included; those of a core
        that does the same as one that was scheduled count too.
    """

    us: float
    extrapolated: tuple[int, int] | None
    instructions: int


_BUDGET = 300_000
"""Instructions per core that may be scheduled to know one latency, where units are short."""
_LONG = 10_000
"""Instructions per core from which one unit is long: what happens where units meet hardly counts, and three of them show it."""
_LONG_UNITS = 3
_SETTLED = 64_000
"""Instructions per core below which a schedule of short units is not extrapolated. What differs from one number of units to the
next (how far the last loads and stores lag behind) is tens of microseconds, and 64,000 instructions take 6 ms. Kernels also do
some work for hundreds of short units together: from 16,000 instructions 9,000 heads of 256 keys came out 3.5 % too fast, from
64,000 2.1 %, because the kernel has 8 percent more instructions a head with 9,000 heads than with 1,454."""
_DOUBT = 0.02
"""Most that two estimates of the latency may differ in, relative to it, for one of them to be taken."""


def attention_us(
    problem: Problem,
    chip: Chip,
    lnc: int = 1,
    *,
    window: int | None = DEFAULT_WINDOW,
    budget: int | None = _BUDGET,
    kernel: str | None = None,
) -> Latency:
    """The latency of one of our kernels on `lnc` cores; None = the one that dispatch picks.

    Units (entries of the axes that its binding divides: a batch entry and a kv head) are independent and alike. If they are
    long, or all of them are more than `budget` instructions a core, some are scheduled, in one schedule, and the time from the
    end of one unit to that of the next is repeated for the rest. It is taken where units have others before and behind them:
    of `_LONG_UNITS` long ones from the first to the second, of many short ones over the quarter before the half and over the
    one behind it (a schedule settles slowly, as units overlap, and is periodic over many units or not at all). Where the time
    per unit behind that one would lead to a latency that differs by more than `_DOUBT`, twice as many are scheduled, and so
    on. The first number of short units is what `_SETTLED` instructions allow, in a window a third of the budget if that is
    more. That ends, with every unit scheduled, where it would be no less work. `budget=None` schedules every unit.

    Raises:
      UnsupportedProblem: the kernel does not take the problem.
    """
    if kernel is None:
        kernel = attention_candidate(problem, chip, lnc).binding.name
    units = _count(problem, kernel)
    if budget is None or not independent_units(problem, lnc, kernel):
        return _whole(problem, chip, lnc, window, kernel)
    asked = units // lnc  # per core, as are all numbers of units below
    length = _length(problem, chip, lnc, kernel)
    long = length > _LONG
    if asked * length <= budget and not (long and asked > _LONG_UNITS):
        return _whole(problem, chip, lnc, window, kernel)
    instructions = 0
    least = _LONG_UNITS if long else max((_SETTLED if window is None else max(budget // 3, _SETTLED)) // length, 4)
    for known in _doubling(least, asked):
        if instructions + known * length >= asked * length:
            break
        part = one_unit(problem, kernel, known * lnc)
        scheduled = _scheduled(part, chip, lnc, window, kernel)
        instructions += len(scheduled.events) // _cores(scheduled)
        ends = unit_ends(scheduled, part, kernel, lnc)
        if ends is None:
            break
        step, doubt = _step(ends)
        rest = asked - known
        found = scheduled.total_ns + step * rest
        if doubt * rest <= _DOUBT * found:
            return Latency(us=found / 1e3, extrapolated=(known * lnc, units), instructions=instructions * lnc)
    whole = _whole(problem, chip, lnc, window, kernel)
    return replace(whole, instructions=whole.instructions + instructions * lnc)


def _length(problem: Problem, chip: Chip, lnc: int, kernel: str) -> int:
    """Instructions per core of one unit: estimated if it is certainly long, since tracing it would be a third of the work."""
    unit = one_unit(problem, kernel, lnc)
    estimated = attention_instructions(unit, chip, kernel) // lnc
    if estimated > 4 * _LONG:
        return estimated
    events, _ = telling_events(unit, chip, lnc, kernel=kernel)
    return len(events) // len({event.core for event in events})


def _step(ends: list[float]) -> tuple[float, float]:
    """Time per unit, in ns, and how much it differs from what the units before or behind give."""
    count = len(ends)
    if count <= _LONG_UNITS:  # the last one has nothing behind it that runs at the same time
        first, last = ends[1] - ends[0], ends[-1] - ends[-2]
        return first, abs(last - first)
    quarter = max(count // 4, 1)
    marks = [ends[n * quarter - 1] for n in (1, 2, 3)]
    before, behind = ((later - earlier) / quarter for earlier, later in pairwise(marks))
    return (before + behind) / 2, abs(behind - before)


def independent_units(problem: Problem, lnc: int, kernel: str) -> bool:
    """True if there are enough independent units, the same number on each core, for some to stand for all."""
    units = _count(problem, kernel)
    return units > 2 * lnc and not units % lnc


def one_unit(problem: Problem, kernel: str, count: int = 1) -> Problem:
    """The problem with `count` units along the innermost axis that the kernel's binding divides, one along the others."""
    axes = binding(kernel).division.axes
    sizes = {axis: count if axis == axes[-1] else 1 for axis in axes}
    if "num_heads_kv" in sizes:
        sizes["num_heads_q"] = sizes["num_heads_kv"] * problem.group_size
    return replace(problem, **sizes)  # type: ignore[arg-type]


def _count(problem: Problem, kernel: str) -> int:
    return math.prod(int(getattr(problem, axis)) for axis in binding(kernel).division.axes)


def _doubling(known: int, asked: int) -> Iterator[int]:
    """Numbers of units to try."""
    while known < asked:
        yield known
        known *= 2


def _whole(problem: Problem, chip: Chip, lnc: int, window: int | None, kernel: str) -> Latency:
    scheduled = _scheduled(problem, chip, lnc, window, kernel)
    return Latency(
        us=scheduled.total_ns / 1e3, extrapolated=None, instructions=len(scheduled.events) * lnc // _cores(scheduled)
    )


def _scheduled(problem: Problem, chip: Chip, lnc: int, window: int | None, kernel: str) -> Schedule:
    events, cores = telling_events(problem, chip, lnc, kernel=kernel)
    return schedule(events, chip, window=window, cores=cores)


def _cores(scheduled: Schedule) -> int:
    """Cores whose events were scheduled."""
    return len({queue.core for queue in scheduled.work.queues})


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
