"""Work at a timed size beside the work where values were judged: a kernel that does less there is another program."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nki_hf.sim import LaunchResult
from nki_hf.sim.stream.events import Event, Region
from nki_hf.sim.stream.region_elements import elements_of
from nki_hf.tasks import Task

__all__ = ["Work", "asked_outputs", "cheap", "expected_growth", "missing_work", "seconds_of", "work_of"]

_LEAST = 0.5
"""Share of the elements that a kernel's growth leads one to expect; other blocks or another branch differ by less."""
_NOTHING = 1e-9
_SECONDS, _SECONDS_WITHOUT_PART = 0.6, 2.0
"""CPU time for which values of a timed size are judged although nothing speaks against them; more where a task has no part."""
_PER_INSTRUCTION, _PER_ELEMENT, _PER_INPUT, _PER_OPERATION = 5e-5, 1.5e-9, 1e-7, 1.5e-10
"""Seconds, measured on one core of a server: a replayed instruction, an element that it reads or writes, an element of an input
(drawn, and what row functions do with it in the reference), and an operation of a matmul in the reference and the ideal one."""
_ROUNDING = 0.98
"""Share of the task's operations: a formula may count a little more than what is done."""
_EXACT = 1e-9
"""Where the formula counts what is done at every judged size, it does so at others."""


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


@dataclass
class _Marks:
    """What is touched of a tensor: `flags` by element, `counted` elements at places that only a run with values knows."""

    flags: np.ndarray[Any, Any]
    counted: int = 0
    unknown: bool = False

    @property
    def share(self) -> float:
        """Of its elements, at most 1."""
        return 1.0 if self.unknown else min(1.0, (float(self.flags.sum()) + self.counted) / max(self.flags.size, 1))


def asked_outputs(launched: LaunchResult, task: Task) -> tuple[int, ...]:
    """The buffers of the outputs that the task asks for; what a kernel returns beyond them counts for nothing."""
    return launched.run.returned[: len(task.outputs)]


def work_of(events: Sequence[Event], size: int, flops: int, outputs: Collection[int]) -> Work:
    """The work of one launch; `flops` are the task's at this size, `outputs` the numbers of the returned buffers."""
    read: dict[int, _Marks] = {}
    written: dict[int, _Marks] = {number: _Marks(np.zeros(1, np.bool_)) for number in outputs}  # one that nobody writes
    made, elements = 0, 0
    for event in events:
        if event.opcode == "nc_matmul" and not event.attrs.get("is_transpose") and len(event.reads) > 1:
            stationary, moving = event.reads[0], event.reads[-1]
            made += 2 * stationary.partitions * stationary.free_elements * moving.free_elements
        if event.engine != "dma":
            elements += sum(region.elements for region in event.writes)
        for region in event.reads:
            if region.buffer.role == "input":
                _mark(read, region, counts=False)
        for region in event.writes:
            if region.buffer.number in written:
                _mark(written, region, counts=True)
    return Work(
        size=size,
        useful=made / flops if flops else 0.0,
        elements=elements,
        read=min((marks.share for marks in read.values()), default=0.0),
        written=min((marks.share for marks in written.values()), default=0.0),
    )


def _mark(marks: dict[int, _Marks], region: Region, *, counts: bool) -> None:
    buffer = region.buffer
    found = marks.get(buffer.number)
    if found is None or found.flags.size != buffer.elements:
        found = marks[buffer.number] = _Marks(np.zeros(buffer.elements, np.bool_))
    same = region.dtype.itemsize == buffer.dtype.itemsize
    flags = elements_of(found.flags, region)
    if flags is not None:
        flags[...] = True
    elif region.indirect and same and region.reached is not None:
        found.flags[region.reached] = True
    elif region.indirect and same and counts:
        found.counted += region.elements
    else:
        found.unknown = True  # indices that nobody knows or another type: it counts as all of it


def missing_work(checked: Sequence[Work], timed: Work) -> str:
    """What a timed launch leaves out that the launches whose values were judged do; empty if nothing.

    Args:
      checked: of increasing sizes.
      timed: of a larger one.
    """
    if not checked or timed.size <= checked[-1].size:
        return ""
    last = checked[-1]
    if timed.written < min(1.0, last.written) - _NOTHING:
        return f"writes {min(100 * timed.written, 99.9):.3g}% of an output, and {last.written:.0%} of it at size {last.size:,}"
    if timed.read < min(1.0, last.read) * _ROUNDING:
        return f"reads {timed.read:.0%} of an input, and {last.read:.0%} of it at size {last.size:,}"
    exact = len(checked) > 1 and all(abs(item.useful - 1) < _EXACT for item in checked)
    if all(item.useful >= 1 - _EXACT for item in checked) and timed.useful < (1 - _EXACT if exact else _ROUNDING):
        return f"does {min(100 * timed.useful, 99.9):.3g}% of the operations that the task asks for in its matmuls"
    expected = expected_growth(checked[0].size, checked[0].elements, last.size, last.elements, timed.size)
    if timed.elements < _LEAST * expected:
        return f"computes {timed.elements:,} elements, and the smaller sizes lead to {expected:,.0f}"
    return ""


def cheap(task: Task, asked: Mapping[str, Any], events: Sequence[Event]) -> bool:
    """True if all values of a launch can be judged once in little time.

    Args:
      task: its operations at the size are those of the reference as well.
      asked: size and arrays of the launch.
      events: what it does.
    """
    drawn = sum(math.prod(shape) for _, shape, _ in asked["arrays"])
    shapes = {name: shape for name, shape, _ in asked["arrays"]}
    operations = task.flops(asked["size"])
    if {"q", "k"} <= set(shapes) == set(task.arrays(asked["size"])):  # a reference makes all scores, hidden ones too
        operations = max(operations, 6 * math.prod(shapes["q"]) * max(shapes["k"]))
    return seconds_of(events, drawn, operations) < (_SECONDS_WITHOUT_PART if task.part is None else _SECONDS)


def seconds_of(events: Sequence[Event], drawn: int, operations: float) -> float:
    """About how long it takes to judge values once: to run `events`, to draw so many elements of inputs, and to compute a
    reference with so many operations.
    """
    moved = sum(region.elements for event in events for region in (*event.reads, *event.writes))
    made = len(events) * _PER_INSTRUCTION + moved * _PER_ELEMENT + drawn * _PER_INPUT
    return made + operations * _PER_OPERATION


def expected_growth(first: int, smaller: int, last: int, larger: int, size: int) -> float:
    """Elements at a size by the growth between `smaller` at the first and `larger` at the last size that was judged."""
    if not larger:
        return 0.0
    grows = 1.0
    if first < last and smaller:
        grows = math.log(larger / smaller) / math.log(last / first)
    return float(larger * (size / last) ** max(0.0, grows))
