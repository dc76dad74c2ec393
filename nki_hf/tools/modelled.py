"""What trace, report and bench are asked for on the command line, as one record, and its schedule."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from nki_hf.chips import Chip, get_chip
from nki_hf.observers.working_set import working_sets
from nki_hf.problem import Problem
from nki_hf.sim.stream.events import Event
from nki_hf.timing.schedule import Schedule, schedule
from nki_hf.tools.lengths import attention_instructions, check_length, subject_instructions
from nki_hf.tools.shape import LARGEST, problem_of
from nki_hf.tools.subjects import attention_events, attention_kernels, events_of, subject

__all__ = ["KERNEL", "KERNEL_HELP", "ModelRequest", "model", "planned", "stream", "visible_flops", "window_of"]

KERNEL = attention_kernels()[0]
"""The kernel that is modelled if none is named."""
KERNEL_HELP = f"{', '.join(attention_kernels())}, or a rung of the ladder such as v7."
_LONG = 50_000
"""Instructions from which a run takes so long that it says what it is about."""
_BENCH = "; nki_hf bench schedules some (batch, kv head) units and repeats them"


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """One kernel at one size on one chip.

    Attributes:
      kernel: one of our attention kernels, or a subject of tools/subjects.py.
      seqlen: size of a subject.
      shape: problem of an attention kernel (see `shape.problem_of`); empty = causal, one head, `seqlen` keys, head_dim 128.
      chip: trn1, trn2 or trn3.
      lnc: cores that an attention kernel runs on.
    """

    kernel: str = KERNEL
    seqlen: int = 1024
    shape: str = ""
    chip: str = "trn2"
    lnc: int = 1

    def __str__(self) -> str:
        return f"{self.kernel} {self.shape or self.seqlen}"

    @property
    def own(self) -> bool:
        """True if it is an attention kernel of ours, which takes a problem."""
        return self.kernel in attention_kernels()

    @property
    def problem(self) -> Problem:
        """The problem of an attention kernel."""
        return problem_of(self.shape or f"sq={self.seqlen},causal")

    @property
    def useful_flops(self) -> int:
        """Operations that attention asks for: those on visible keys (a subject that is a matmul: all of its own)."""
        return visible_flops(self.problem) if self.own else subject(self.kernel).flops(self.seqlen)


def stream(asked: ModelRequest) -> Sequence[Event]:
    """The event stream of what was asked for, before any spill; of a long one a line on standard error says how long it is.

    Raises:
      ValueError: a name or a shape is not known, or so many instructions are not modelled (see tools/lengths.py).
      UnsupportedProblem: the kernel does not take the problem.
    """
    chip = get_chip(asked.chip)
    if asked.shape and not asked.own:
        ours = " or ".join(attention_kernels())
        raise ValueError(f"shape={asked.shape!r} describes {ours}: kernel={asked.kernel} takes --seqlen instead.")
    if asked.seqlen > LARGEST:
        raise ValueError(f"seqlen={asked.seqlen} is not a size: it is at most {LARGEST:,}.")
    if asked.own:
        count = attention_instructions(asked.problem, chip, asked.kernel)
    else:
        count = subject_instructions(asked.kernel, asked.seqlen, chip)
    check_length(count, str(asked), f"give a smaller {'shape' if asked.shape else 'seqlen'}{_BENCH if asked.own else ''}")
    if count >= _LONG:
        print(f"{asked}: about {count:,} instructions to trace and to schedule", file=sys.stderr, flush=True)
    if asked.own:
        return attention_events(asked.problem, chip, asked.lnc, kernel=asked.kernel)
    return events_of(asked.kernel, asked.seqlen, chip)


def planned(events: Sequence[Event], chip: Chip, *, window: int | None, overflow: str = "spill") -> Schedule:
    """The schedule of a stream on `chip`.

    Raises:
      ValueError: the options are not known.
      MemoryError: the tiles do not fit and may not, or cannot, be spilled; the message holds the working set.
    """
    try:
        return schedule(events, chip, window=window, overflow=overflow)
    except MemoryError as error:
        sets = "; ".join(str(item) for item in working_sets(events, chip) if item.high_water > item.capacity)
        raise MemoryError(f"{error} Working set: {sets}." if sets else str(error)) from None


def model(asked: ModelRequest, *, window: int | None, overflow: str = "spill") -> Schedule:
    """The schedule of what was asked for; raises as `stream` and `planned` do."""
    return planned(stream(asked), get_chip(asked.chip), window=window, overflow=overflow)


def visible_flops(problem: Problem) -> int:
    """Operations on visible keys: two matmuls over head_dim and head_dim_v."""
    mask, keys = problem.mask, problem.seqlen_kv
    visible = sum(max(0, hi - lo) for lo, hi in (mask.interval(row, keys) for row in range(problem.seqlen_q)))
    return 2 * problem.batch * problem.num_heads_q * visible * (problem.head_dim + problem.head_dim_v)


def window_of(order: str) -> int | None:
    """None for `program`, else the window as a number."""
    if order == "program":
        return None
    if not (order.isascii() and order.isdigit() and len(order) < 10) or int(order) < 1:
        raise ValueError(f"order={order!r} is not known: it is program or a window of 1 to 999,999,999 instructions, e.g. 64.")
    return int(order)
