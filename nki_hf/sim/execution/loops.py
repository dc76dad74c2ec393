"""Loops of run time: the body's Python runs once and is recorded, its instructions run as often as the bounds say.

While a body is recorded its actions go into the loop instead of being executed, and its events into the loop's nodes. When
the body ends, one action stands for the whole loop: it sets the index and executes the body's actions, once per turn. A replay
executes that action again, so that trip counts and indices are what the registers hold then. Where the stream of events is
kept, the outermost loop writes the events of every turn that ran into it: an entry, the body, and a barrier after each turn.
On shapes alone the trip counts come from the options.

Where the two cores of a launch meet in the bodies, their outermost loops are one action that runs both side by side, and
their events are written so: no public source says that cores may not meet in a loop, and public kernels do.

Memory. What a body allocates is allocated once and stays for all turns, and so does what it uses (NKI's page on dynamic
loops, "Register Allocation Implications"): a tile lives from its first access in the first turn to its last in the last one.
Capacity does not depend on the trip count: of loops that run less than twice, two turns of the body are judged.

loop_execution.py executes what is recorded here, loop_events.py writes the events, loop_rules.py has what a loop forbids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nki_hf.sim.faults import kernel_position
from nki_hf.sim.stream.events import Buffer, Event

if TYPE_CHECKING:
    from nki_hf.sim.execution.actions import Action
    from nki_hf.sim.execution.machine import Machine

__all__ = ["Loop", "begin_loop", "persisting"]


@dataclass(eq=False)
class Loop:
    """One loop of run time.

    Attributes:
      what: `fori_loop`, `while_loop` or `dynamic_range`.
      name: what the options call it by: the body function's name, or else its place.
      file, line: where the kernel has it.
      actions: what one turn computes.
      nodes: events of one turn (numbered below 0) and loops within it, in program order.
      buffers: what the body allocates.
      turn: the turn that is being executed, from 0.
      turned: turns of all executions so far.
      trips: turns of each time that it was executed, until the events are written; None afterwards.
      ends: called when the body has been recorded.
      done: called when all turns of a first execution, of an outermost loop, are over.
      loads: numbers of the instructions that load what its turns follow from; empty if constants alone say them.
      meets: whether the cores meet in its body.
      unjudged: looks at what it reads of the other core's once the bodies of both are recorded.
      meetings: those of its own body, loops within it aside, by the number that the recorded events have.
    """

    what: str
    name: str
    file: str
    line: int
    actions: list[Action] = field(default_factory=list)
    nodes: list[Event | Loop] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    turn: int = 0
    turned: int = 0
    trips: list[int] | None = field(default_factory=list)
    ends: list[Callable[[], None]] = field(default_factory=list)
    done: list[Callable[[], None]] = field(default_factory=list)
    loads: frozenset[int] = frozenset()
    meets: bool = False
    unjudged: list[Callable[[], None]] = field(default_factory=list)
    meetings: dict[int, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """File and line without the folder."""
        return f"{self.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{self.line}"


def begin_loop(machine: Machine, what: str, name: str) -> Loop:
    """Record what follows as the body of a loop."""
    if machine.pending:
        machine.run.cooperation.await_all(machine)
    file, line = kernel_position()
    loop = Loop(what, name, file, line)
    loop.name = name or loop.place
    machine.pool.hold()
    machine.loops.append(loop)
    return loop


def persisting(machine: Machine, buffer: Buffer) -> list[Loop]:
    """The loops, outermost first, in whose turns the allocation is the same one: those that do not allocate it."""
    for depth, loop in enumerate(machine.loops):
        if any(item is buffer for item in loop.buffers):
            return machine.loops[depth + 1 :]
    return list(machine.loops)
