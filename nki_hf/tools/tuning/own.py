"""Our own kernels as the tuner runs them: their plan constants are what is tuned, their binding makes the tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.chips import Chip
from nki_hf.errors import Reason, UnsupportedProblem
from nki_hf.kernels.flash_const_max.kernel import flash_const_max
from nki_hf.kernels.flash_const_max.plan import ConstMaxPlan, const_max_reasons, plan_const_max
from nki_hf.kernels.flash_const_max.tuning import Tuning, tuning_of
from nki_hf.kernels.spans import TILE
from nki_hf.problem import Problem
from nki_hf.sim import SimOptions, launch
from nki_hf.sim.stream.events import Event
from nki_hf.tools.subjects import alike

__all__ = ["TUNED", "own_constants", "own_launch", "part_of"]

_SHORT = 2048
"""Rows and keys on which the limits of a longer call are checked."""
TUNED: Mapping[str, tuple[str, ...]] = {"flash_const_max": tuple(item.name for item in fields(Tuning))}
"""Plan constants by kernel; the other kernels' plans follow from the problem alone."""


def own_constants(kernel: str, problem: Problem, chip: Chip) -> dict[str, Any]:
    """The constants that the kernel's own rule gives a problem: what is tuned against.

    Raises:
      ValueError: the kernel has no plan constants.
      UnsupportedProblem: it does not take the problem.
    """
    if kernel not in TUNED:
        raise ValueError(f"kernel={kernel!r} has no plan constants to tune: {', '.join(TUNED)} has.")
    reasons = const_max_reasons(problem, chip)
    if reasons:
        raise UnsupportedProblem(reasons)
    rule = tuning_of(problem, chip)
    return {name: getattr(rule, name) for name in TUNED[kernel]}


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
      kernel: one of `TUNED`.
      problem: the call.
      chip, lnc: what it is planned for.
      constants: some of its plan constants; the rule gives the others.
      units: how many (batch, kv head) units per core stand for all, which share nothing and are alike; None = all.

    Raises:
      ValueError: a constant is not one of the kernel's.
      UnsupportedProblem: the kernel does not take the problem, or not with these constants.
    """
    rule = own_constants(kernel, problem, chip)
    unknown = sorted(set(constants) - set(rule))
    if unknown:
        raise ValueError(f"{kernel} has no plan constant {', '.join(unknown)}: it has {', '.join(rule)}.")
    traced, factor = part_of(problem, lnc, units)
    for name, value in constants.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < (name != "copied"):
            raise ValueError(f"{name}={value!r} is no plan constant: it is 1 or more (copied: 0 or more).")
    tuned = Tuning(**{**rule, **constants})
    if tuned.block_tiles > 4 or tuned.chunk % TILE:
        value, allowed = f"{tuned.block_tiles}, {tuned.chunk}", f"must be at most 4, and a multiple of {TILE}"
        raise UnsupportedProblem([Reason(kernel=kernel, field="block_tiles, chunk", value=value, limit=allowed)])
    plan = plan_const_max(traced, chip, lnc, tuned)
    limit = int(chip.sbuf_partition_bytes - chip.sbuf_reserved_bytes)
    if plan.sbuf_bytes > limit:
        value, allowed = f"{plan.sbuf_bytes:,}", f"must be at most {limit:,} per partition on {chip.name}"
        raise UnsupportedProblem([Reason(kernel=kernel, field="sbuf_bytes", value=value, limit=allowed)])
    short = _shortened(traced)
    alone = short is not None and alike(traced, kernel, lnc)

    def run(checks: bool) -> Sequence[Event]:
        if checks:  # limits and PSUM do not depend on the length, SBUF is the plan's
            judged = traced if short is None else short
            events = _events(judged, plan_const_max(judged, chip, lnc, tuned), chip, lnc, checks=True)
            if judged is traced:
                return events
        return _events(traced, plan, chip, lnc, first_core=alone)

    return factor, run, lnc if alone else None


def _shortened(problem: Problem) -> Problem | None:
    """A call of the same kind with fewer rows and keys; None if it is short, or does not begin with its first key."""
    if problem.seqlen_q != problem.seqlen_kv or problem.seqlen_q <= _SHORT or problem.mask.q_offset:
        return None
    return replace(problem, seqlen_q=_SHORT, seqlen_kv=_SHORT)


def _events(
    problem: Problem, plan: ConstMaxPlan, chip: Chip, lnc: int, *, checks: bool = False, first_core: bool = False
) -> Sequence[Event]:
    heads, keys = (problem.batch, problem.num_heads_kv), problem.seqlen_kv
    tensors: dict[str, Any] = {
        "q": _bfloat16((problem.batch, problem.num_heads_q, problem.head_dim, problem.seqlen_q)),
        "k": _bfloat16((*heads, problem.head_dim, keys)),
        "v": _bfloat16((*heads, keys, problem.head_dim_v)),
    }
    options = SimOptions(chip=chip, values=False, checks=checks)
    given = {**tensors, **plan.constants()}
    return launch(flash_const_max, (), given, options=options, lnc=lnc, first_core=first_core).events


def _bfloat16(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.broadcast_to(np.zeros((), ml_dtypes.bfloat16), shape)
