"""Plan: how a kernel runs one problem, what it was planned for, what it costs, and what a tuner may choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from nki_hf.chips import Chip
from nki_hf.errors import Reason
from nki_hf.problem import Problem

__all__ = ["Cost", "Plan", "Target", "Tuned"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a kernel is planned for.

    Attributes:
      chip: the chip.
      lnc: logical-core degree of the launch.
      features: what the front end has beyond straight-line code: `loops` = loops at run time.
    """

    chip: Chip
    lnc: int = 1
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a kernel runs one problem; equal plans run the same program.

    Attributes:
      constants: compile-time arguments by parameter name, in the kernel's order: None, bool, int, float, str, or tuples.
      sizes: sizes of axes that differ from the problem's (a padded length) or that it does not have.
      passed: names of the optional arguments that the kernel gets, and of the optional outputs that it returns.
      tiles: what `nki_hf explain` shows.
      entry: the function of the kernel's module; empty = the kernel's name.
      instructions: about how many instructions the launch has; decides how many launches one call is.
      trip_counts: turns of the kernel's loops of run time that its times are told for, where values decide: none are known
        then (see `SimOptions.trip_counts`); None = it has no such loop.
      most_turns: of each loop of run time that repeats what values demand, by its name, the most turns of a launch.
      detail: the kernel's own record, for its tests and tools.
    """

    constants: Mapping[str, Any]
    sizes: Mapping[str, int] = field(default_factory=dict)
    passed: frozenset[str] = frozenset()
    tiles: Mapping[str, Any] = field(default_factory=dict)
    entry: str = ""
    instructions: int = 0
    trip_counts: int | None = None
    most_turns: Mapping[str, int] = field(default_factory=dict)
    detail: Any = None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a kernel costs on a problem: of several that take it, the cheapest runs.

    Attributes:
      us: microseconds, by a formula or a table; only the order counts.
      why: where the number comes from, a few words for `nki_hf explain`.
    """

    us: float
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Plan constants of a kernel that a tuner may choose.

    Attributes:
      record: a frozen dataclass of them, each a whole number with its default.
      rule: `(problem, target) -> record` that is used where nobody chooses, or why the kernel cannot take the problem.
      plan: `(problem, target, record) -> Plan`, or why these constants are not possible.
      least: the least value of a constant that may be less than 1.
      cases: shapes by kind for which a table of them is made, on one core.
      spaces: what is tried, by kind.
    """

    record: type
    rule: Callable[[Problem, Target], Any]
    plan: Callable[[Problem, Target, Any], Plan | tuple[Reason, ...]]
    least: Mapping[str, int] = field(default_factory=dict)
    cases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    spaces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def constants(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(item.name for item in fields(self.record))
