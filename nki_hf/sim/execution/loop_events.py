"""Events of a loop of run time: those of every turn that ran, in the run's stream."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

from nki_hf.sim.execution.loops import Loop
from nki_hf.sim.execution.meetings import Rendezvous
from nki_hf.sim.stream.events import Event

if TYPE_CHECKING:
    from nki_hf.sim.execution.machine import Machine

__all__ = ["ENTRY", "TURN", "turns_of", "written"]

ENTRY, TURN = "loop_entry", "loop_turn"
"""Events of a loop: its counter is set, and every engine has ended a turn."""


def written(machine: Machine, loop: Loop, numbers: dict[int, int], *, constant: bool) -> Generator[Rendezvous, int, None]:
    """Append the events of one execution of the loop to the run's stream; stops at each meeting and is sent its number.

    Args:
      numbers: index in the stream of each recorded event of the turns that are under way.
      constant: True if every execution has the same trip count.
    """
    trips = loop.trips or [0]
    count = trips[0] if constant else trips.pop(0)
    _control(machine, loop, ENTRY)
    if count < 2:
        machine.run.short.append(loop)
    for _ in range(count):
        for node in loop.nodes:
            if isinstance(node, Loop):
                yield from written(machine, node, numbers, constant=constant)
                continue
            attrs = dict(node.attrs)
            if "meeting" in attrs:
                meeting = loop.meetings[attrs["meeting"]]
                attrs["meeting"] = yield meeting
            index = numbers[node.index] = len(machine.run.events)
            named = attrs.get("depends_on", ())
            attrs["depends_on"] = (*(numbers.get(item, item) for item in named), *machine.after_loop)
            machine.since_loop.append(index)
            machine.run.events.append(replace(node, index=index, attrs=attrs))
        _control(machine, loop, TURN)


def _control(machine: Machine, loop: Loop, opcode: str) -> None:
    """A barrier: it waits for everything of this core since the last one, and everything after waits for it."""
    index = len(machine.run.events)
    attrs = {"depends_on": (*machine.after_loop, *machine.since_loop), "loop": loop.name}
    machine.run.events.append(Event(index, machine.core, "sync", "sync", opcode, (), (), loop.file, loop.line, attrs))
    machine.after_loop = (index,)
    machine.since_loop = []


def turns_of(loop: Loop, count: int) -> list[Event]:
    """The events of so many turns of a loop, with as many turns of each loop in it, numbered from 0."""
    found: list[Event] = []
    for _ in range(count):
        for node in loop.nodes:
            found += turns_of(node, count) if isinstance(node, Loop) else [node]
    return [replace(event, index=index, attrs={**event.attrs, "depends_on": ()}) for index, event in enumerate(found)]
