"""Our own kernels as the tuner runs them: their plan constants are what is tuned, their binding makes the tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nki_hf.chips import Chip
from nki_hf.errors import UnsupportedProblem
from nki_hf.kernels.plan import Plan, Target, Tuned
from nki_hf.kernels.registry import binding, bindings
from nki_hf.problem import Problem
from nki_hf.sim.stream.events import Event
from nki_hf.tools.subjects import alike, planned_events

__all__ = ["own_constants", "own_launch", "own_plan", "part_of", "tunable", "tuned_of"]

_SHORT = 2048
"""Rows and keys on which the limits of a longer call are checked."""


def tunable() -> tuple[str, ...]:
    """Kernels with plan constants; the other kernels' plans follow from the problem alone."""
    return tuple(item.name for item in bindings() if item.tuned is not None)


def tuned_of(kernel: str) -> Tuned:
    """What may be tuned in a kernel of ours.

    Raises:
      ValueError: it has no plan constants.
    """
    found = binding(kernel).tuned if kernel in tunable() else None
    if found is None:
        raise ValueError(f"kernel={kernel!r} has no plan constants to tune: {', '.join(tunable())} has.")
    return found


def own_constants(kernel: str, problem: Problem, target: Target) -> dict[str, int]:
    """The constants that the kernel's own rule gives a problem: what is tuned against.

    Raises:
      ValueError: the kernel has no plan constants.
      UnsupportedProblem: it does not take the problem.
    """
    tuned = tuned_of(kernel)
    rule = tuned.rule(problem, target)
    if isinstance(rule, tuple):
        raise UnsupportedProblem(rule)
    return {name: getattr(rule, name) for name in tuned.constants}


def own_plan(kernel: str, problem: Problem, target: Target, constants: Mapping[str, Any]) -> Plan:
    """The plan with these constants; the rule gives those that are not among them.

    Raises:
      ValueError: a constant is not one of the kernel's.
      UnsupportedProblem: the kernel does not take the problem, or not with these constants.
    """
    tuned, rule = tuned_of(kernel), own_constants(kernel, problem, target)
    unknown = sorted(set(constants) - set(rule))
    if unknown:
        raise ValueError(f"{kernel} has no plan constant {', '.join(unknown)}: it has {', '.join(rule)}.")
    for name, value in constants.items():
        least = tuned.least.get(name, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name}={value!r} is no plan constant: it is {least} or more.")
    found = tuned.plan(problem, target, tuned.record(**{**rule, **constants}))
    if isinstance(found, tuple):
        raise UnsupportedProblem(found)
    return found


def part_of(problem: Problem, lnc: int, units: int | None) -> tuple[Problem, float]:
    """`units` (batch, kv head) units per core, and how many times as much the whole is; all of it for None, or where cores
    share a unit.
    """
    count = problem.batch * problem.num_heads_kv
    if units is None or count % lnc or units * lnc >= count:
        return problem, 1.0
    part = replace(problem, batch=1, num_heads_kv=units * lnc, num_heads_q=units * lnc * problem.group_size)
    return part, count / (units * lnc)


def own_launch(
    kernel: str, problem: Problem, chip: Chip, lnc: int, constants: Mapping[str, Any], units: int | None
) -> tuple[float, Callable[[bool], Sequence[Event]], int | None]:
    """How many times the traced part stands for; what traces it, with or without the checks of limits; how many cores share
    HBM, where one was traced for two that do the same, else None.

    Args:
      kernel: one of `tunable()`.
      problem: the call.
      chip, lnc: what it is planned for.
      constants: some of its plan constants; the rule gives the others.
      units: how many (batch, kv head) units per core stand for all, which share nothing and are alike; None = all.

    Raises:
      ValueError: a constant is not one of the kernel's.
      UnsupportedProblem: the kernel does not take the problem, or not with these constants.
    """
    item, target = binding(kernel), Target(chip=chip, lnc=lnc)
    given = {**own_constants(kernel, problem, target), **constants}
    traced, factor = part_of(problem, lnc, units)
    plan = own_plan(kernel, traced, target, given)
    short = _shortened(traced)
    alone = short is not None and alike(traced, kernel, lnc)

    def run(checks: bool) -> Sequence[Event]:
        if checks and short is None:
            return planned_events(item, traced, plan, target, checks=True)
        if checks and short is not None:  # limits and PSUM do not depend on the length, SBUF is the plan's
            planned_events(item, short, own_plan(kernel, short, target, given), target, checks=True)
        return planned_events(item, traced, plan, target, checks=False, first_core=alone)

    return factor, run, lnc if alone else None


def _shortened(problem: Problem) -> Problem | None:
    """A call of the same kind with fewer rows and keys; None if it is short, or does not begin with its first key."""
    if problem.seqlen_q != problem.seqlen_kv or problem.seqlen_q <= _SHORT or problem.mask.q_offset:
        return None
    return replace(problem, seqlen_q=_SHORT, seqlen_kv=_SHORT)
