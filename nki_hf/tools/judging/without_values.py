"""Faults that a program shows without values: cores that race, and an input that is written (limits: as it runs)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nki_hf.observers.races import races
from nki_hf.sim.stream.events import Event
from nki_hf.tasks import Task
from nki_hf.tools.judging.findings import Failed, finding, of_fault

__all__ = ["check_without_values", "input_written"]


def check_without_values(
    events: Sequence[Event], task: Task, names: Mapping[str, str], size: int, *, may_race: bool = False
) -> None:
    """Fail as a judgement does at the stages races and values, of what a launch on shapes alone shows.

    Args:
      events: of the launch.
      task, names: what is computed, and the task's name of each parameter.
      size: is said.
      may_race: both cores may write the same bytes (`--same-writes`), which no launch without values shows.

    Raises:
      Failed: the cores race, where no run-time indices choose the elements (without values nobody knows which); or an input is
        written.
    """
    told = [] if may_race else races(events)
    found = [race for race in told if not (race.first_region.indirect or race.second_region.indirect)]
    said = f"at size {size:,}: "
    if found:
        faults = [of_fault("races", race.record()) for race in found[:5]]
        raise Failed("races", *({**fault, "message": said + fault["message"]} for fault in faults))
    written = input_written(events, task, names)
    if written is not None:
        raise Failed("values", {**written, "message": said + written["message"]})


def input_written(events: Iterable[Event], task: Task, names: Mapping[str, str]) -> dict[str, Any] | None:
    """The finding about an input that is written and also read; None if there is none.

    A task's inputs are the caller's: a kernel that writes what it reads gives another result when it is called again.

    Args:
      events, task, names: see `check_without_values`.
    """
    listed = list(events)
    read = {region.buffer.number for event in listed for region in event.reads if region.buffer.role == "input"}
    for event in listed:
        for region in event.writes:
            name = region.buffer.name
            if region.buffer.role == "input" and region.buffer.number in read and names.get(name) not in task.in_place:
                fault = {
                    "kind": "input written",
                    "message": f"{event.opcode} writes the input {name}, which is also read: an output is a tensor of its own",
                    "advice": "Allocate it with nl.ndarray(..., buffer=nl.shared_hbm).",
                    "file": event.file,
                    "line": event.line,
                }
                return finding("values", fault)
    return None
