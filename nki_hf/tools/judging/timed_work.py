"""Work at a timed size beside the work where values were judged: a kernel that does less there is another program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nki_hf.sim.stream.events import Event, Region

__all__ = ["Work", "expected_growth", "missing_work", "work_of"]

_LEAST = 0.5
"""Share of the elements that a kernel's growth leads one to expect; other blocks or another branch differ by less."""
_ROUNDING = 0.98
"""Share of the task's operations: a formula may count a little more than what is done."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a launch does, from its events.

    Attributes:
      size: of the task.
      useful: the task's floating-point operations over those of the launch's matmuls (transposes count nothing); 0 = none.
      elements: written by instructions of the engines.
      read: smallest share of an input's elements that is read.
      written: smallest share of a returned output's elements that is written.
    """

    size: int
    useful: float
    elements: int
    read: float
    written: float


def work_of(events: Sequence[Event], size: int, flops: int) -> Work:
    """The work of one launch; `flops` are the task's at this size."""
    read: dict[int, np.ndarray[Any, Any] | None] = {}
    written: dict[int, np.ndarray[Any, Any] | None] = {}
    made, elements = 0, 0
    for event in events:
        if event.opcode == "nc_matmul" and not event.attrs.get("is_transpose") and len(event.reads) > 1:
            stationary, moving = event.reads[0], event.reads[-1]
            made += 2 * stationary.partitions * stationary.free_elements * moving.free_elements
        if event.engine != "dma":
            elements += sum(region.elements for region in event.writes)
        for regions, role, marks in ((event.reads, "input", read), (event.writes, "output", written)):
            for region in regions:
                if region.buffer.role == role:
                    _mark(marks, region)
    shares = [[1.0 if flags is None else float(flags.mean()) for flags in marks.values()] for marks in (read, written)]
    return Work(
        size=size,
        useful=made / flops if flops else 0.0,
        elements=elements,
        read=min(shares[0], default=0.0),
        written=min(shares[1], default=0.0),
    )


def _mark(marks: dict[int, np.ndarray[Any, Any] | None], region: Region) -> None:
    buffer = region.buffer
    flags = marks.setdefault(buffer.number, np.zeros(buffer.elements, np.bool_))
    if flags is None:
        return
    same = region.dtype.itemsize == buffer.dtype.itemsize
    if region.indirect and same and region.reached is not None:
        flags[region.reached] = True
        return
    if region.indirect or not same:
        marks[buffer.number] = None  # indices that nobody knows or another type: it counts as all of it
        return
    np.ndarray(region.shape, np.bool_, buffer=flags, offset=region.offset, strides=region.strides)[...] = True


def missing_work(checked: Sequence[Work], timed: Work) -> str:
    """What a timed launch leaves out that the launches whose values were judged do; empty if nothing.

    Args:
      checked: of increasing sizes.
      timed: of a larger one.
    """
    if not checked or timed.size <= checked[-1].size:
        return ""
    last = checked[-1]
    if timed.written < min(1.0, last.written) * _ROUNDING:
        return f"writes {timed.written:.0%} of an output, and {last.written:.0%} of it at size {last.size:,}"
    if timed.read < min(1.0, last.read) * _ROUNDING:
        return f"reads {timed.read:.0%} of an input, and {last.read:.0%} of it at size {last.size:,}"
    if all(item.useful >= 1 for item in checked) and timed.useful < _ROUNDING:
        return f"does {timed.useful:.0%} of the operations that the task asks for in its matmuls"
    expected = expected_growth(checked[0].size, checked[0].elements, last.size, last.elements, timed.size)
    if timed.elements < _LEAST * expected:
        return f"computes {timed.elements:,} elements, and the smaller sizes lead to {expected:,.0f}"
    return ""


def expected_growth(first: int, smaller: int, last: int, larger: int, size: int) -> float:
    """Elements at a size by the growth between `smaller` at the first and `larger` at the last size that was judged."""
    if not larger:
        return 0.0
    grows = 1.0
    if first < last and smaller:
        grows = math.log(larger / smaller) / math.log(last / first)
    return float(larger * (size / last) ** max(0.0, grows))
