"""What trace, report and bench are asked for on the command line, as one record, and its schedule."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nki_hf.chips import Chip, get_chip
from nki_hf.kernels.registry import binding
from nki_hf.observers.working_set import working_sets
from nki_hf.problem import Problem
from nki_hf.sim.stream.events import Event
from nki_hf.tasks import load_task
from nki_hf.timing.schedule import Schedule, schedule
from nki_hf.tools.error_bands import band_of, task_band
from nki_hf.tools.judging.programs import user_events
from nki_hf.tools.judging.tried_task import try_task
from nki_hf.tools.lengths import attention_instructions, check_length, subject_instructions
from nki_hf.tools.option_values import constant_of
from nki_hf.tools.printable import printable
from nki_hf.tools.shape import LARGEST, problem_of
from nki_hf.tools.subjects import attention_events, events_of, own_kernels, subject

__all__ = [
    "AT_HELP", "FILE_HELP", "KERNEL", "KERNEL_HELP", "LAYOUT_HELP", "TASK_HELP", "ModelRequest", "asked_for", "model",
    "scheduled_within", "stream", "visible_flops", "window_of",
]  # fmt: skip

KERNEL = own_kernels()[0]
"""The kernel that is modelled if none is named."""
KERNEL_HELP = f"{', '.join(own_kernels())}, or a rung of the ladder such as v7."
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
      task: what a kernel file computes; then `kernel` is `FILE.py` or `FILE.py:NAME`, and `seqlen` the task's size.
      layout, constants: axes of the file's arrays, and its further arguments (see `nki_hf judge`).
    """

    kernel: str = KERNEL
    seqlen: int = 1024
    shape: str = ""
    chip: str = "trn2"
    lnc: int = 1
    task: str = ""
    layout: str = ""
    constants: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        size = self.shape or (f"sq={self.seqlen},causal" if self.own else self.seqlen)
        return f"{Path(self.kernel).name if self.task else self.kernel} {size}"

    @property
    def own(self) -> bool:
        """True if it is an attention kernel of ours, which takes a problem."""
        return not self.task and self.kernel in own_kernels()

    @property
    def band(self) -> str:
        """The error band of its times."""
        return task_band(load_task(self.task), self.chip) if self.task else band_of(self.kernel, self.chip)

    @property
    def problem(self) -> Problem:
        """The problem of an attention kernel."""
        return problem_of(self.shape or f"sq={self.seqlen},causal")

    @property
    def useful_flops(self) -> int:
        """Operations that attention asks for: those on visible keys (a task or a subject that is a matmul: all of its own)."""
        if self.task:
            return load_task(self.task).flops(self.seqlen)
        if not self.own:
            return subject(self.kernel).flops(self.seqlen)
        return visible_flops(self.problem, backward=binding(self.kernel).kind == "backward")


FILE_HELP = "A kernel of yours, FILE.py or FILE.py:NAME, with --task."
TASK_HELP = "What the kernel file computes: a task's name or file, see nki_hf judge --tasks."
LAYOUT_HELP = "Axes as the kernel file takes them, e.g. q=ds,k=ds,v=ds; default: the task's."
AT_HELP = "Size of the task; default: the one at which it is timed."


def asked_for(
    file: str, task: str, layout: str, at: int, const: Sequence[str], *, kernel: str, seqlen: int, shape: str, chip: str
) -> ModelRequest:
    """The request of a command that takes one of our kernels by name, or a kernel file with a task.

    Raises:
      ValueError: a file without a task, a task without a file, or options of the other kind; the task itself is at fault.
    """
    file = file or (kernel if kernel.partition(":")[0].endswith(".py") else "")
    if not file and not task:
        if layout or at or const:
            raise ValueError("layout, at and const describe a kernel file: give FILE.py --task NAME with them.")
        return ModelRequest(kernel=kernel, seqlen=seqlen, shape=shape, chip=chip)
    if not file or not task:
        raise ValueError("a kernel file and a task go together: FILE.py --task NAME (nki_hf judge --tasks lists the names).")
    if shape:
        raise ValueError(f"shape={shape!r} describes {' or '.join(own_kernels())}: a kernel file takes --at SIZE.")
    try_task(task, at=(at,) if at else ())
    size = at or load_task(task).at[0]
    return ModelRequest(
        kernel=file, seqlen=size, chip=chip, task=task, layout=layout, constants=tuple(constant_of(text) for text in const)
    )


def stream(asked: ModelRequest) -> Sequence[Event]:
    """The event stream of what was asked for, before any spill; of a long one a line on standard error says how long it is.

    Raises:
      ValueError: a name or a shape is not known, or so many instructions are not modelled (see tools/lengths.py).
      UnsupportedProblem: the kernel does not take the problem.
      KernelFailed: the kernel of a file fails.
    """
    chip = get_chip(asked.chip)
    if asked.task:
        return user_events(
            asked.kernel,
            asked.task,
            asked.seqlen,
            chip.name,
            lnc=asked.lnc,
            layout=asked.layout,
            constants=dict(asked.constants),
        )
    if asked.shape and not asked.own:
        ours = " or ".join(own_kernels())
        raise ValueError(f"shape={asked.shape!r} describes {ours}: kernel={asked.kernel} takes --seqlen instead.")
    if asked.seqlen > LARGEST:
        raise ValueError(f"seqlen={asked.seqlen} is not a size: it is at most {LARGEST:,}.")
    if asked.own:
        count = attention_instructions(asked.problem, chip, asked.kernel)
    else:
        count = subject_instructions(asked.kernel, asked.seqlen, chip)
    check_length(count, str(asked), f"give a smaller {'shape' if asked.shape else 'seqlen'}{_BENCH if asked.own else ''}")
    if count >= _LONG:
        print(printable(f"{asked}: about {count:,} instructions to trace and to schedule"), file=sys.stderr, flush=True)
    if asked.own:
        return attention_events(asked.problem, chip, asked.lnc, kernel=asked.kernel)
    return events_of(asked.kernel, asked.seqlen, chip)


def scheduled_within(events: Sequence[Event], chip: Chip, *, window: int | None, overflow: str = "spill") -> Schedule:
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
    """The schedule of what was asked for; raises as `stream` and `scheduled_within` do."""
    return scheduled_within(stream(asked), get_chip(asked.chip), window=window, overflow=overflow)


def visible_flops(problem: Problem, *, backward: bool = False) -> int:
    """Operations on visible keys: two matmuls over head_dim and head_dim_v; backward five: scores, dq, dk and dprobs, dv."""
    mask, keys = problem.mask, problem.seqlen_kv
    visible = sum(max(0, hi - lo) for lo, hi in (mask.interval(row, keys) for row in range(problem.seqlen_q)))
    width, width_v = problem.head_dim, problem.head_dim_v
    per_key = 3 * width + 2 * width_v if backward else width + width_v
    return 2 * problem.batch * problem.num_heads_q * visible * per_key


def window_of(order: str) -> int | None:
    """None for `program`, else the window as a number."""
    if order == "program":
        return None
    if not (order.isascii() and order.isdigit() and len(order) < 10) or int(order) < 1:
        raise ValueError(f"order={order!r} is not known: it is program or a window of 1 to 999,999,999 instructions, e.g. 64.")
    return int(order)
