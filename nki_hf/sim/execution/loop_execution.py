"""A loop of run time that has been recorded is executed: its turns, by one core or beside those of the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nki_hf.sim.execution.loop_events import written
from nki_hf.sim.execution.loop_rules import check_turns
from nki_hf.sim.execution.loops import Loop
from nki_hf.sim.execution.meetings import Meeting, Rendezvous, side_by_side
from nki_hf.sim.faults import fault

if TYPE_CHECKING:
    from nki_hf.sim.execution.machine import Machine

__all__ = ["end_loop"]


def end_loop(machine: Machine, loop: Loop, turns: Callable[[], Iterator[None]], known: int | None) -> None:
    """The body ends here: execute the loop, or let the loop around it do so.

    Args:
      turns: yields once per turn, having set the index.
      known: the trip count if it follows from the kernel's constants; used on shapes alone.
    """
    if machine.loops[-1] is not loop:
        fault(
            "unsupported",
            loop.what,
            f"the loop {loop.name} ends inside the loop {machine.loops[-1].name}",
            limit="loops of run time are nested",
            advice="Do not leave a loop by break or return",
        )
    for end in loop.ends:
        end()
    machine.loops.pop()
    machine.run.named |= {loop.name, loop.place}
    machine.run.closed.update((buffer.number, loop.name) for buffer in loop.buffers)
    count = None
    if not machine.options.values:
        count = _given(machine, loop) if known is None else known
        check_turns(loop, count, machine.options.most_turns)
        loop.trips = [count]
    execution = _Turns(loop, turns, machine.options.most_turns)
    if machine.loops:
        machine.action(execution)
        machine.loops[-1].nodes.append(loop)
        return
    if loop.meets:
        _together(machine, _Part(machine, loop, execution, count is not None))
    else:
        if machine.options.values:
            machine.action(execution)
        if machine.options.events:
            for _ in written(machine, loop, {}, constant=count is not None):
                pass
    machine.pool.release()
    machine.run.loops.append(loop)
    _forget(loop)


@dataclass(frozen=True)
class _Turns:
    """The action that stands for a loop: its turns, by one core or beside those of the other."""

    loop: Loop
    turns: Callable[[], Iterator[None]]
    most: int

    def __call__(self) -> None:
        loop, actions, most = self.loop, self.loop.actions, self.most
        loop.turn = 0
        for _ in self.turns():
            if loop.turn == most:
                check_turns(loop, loop.turn + 1, most)
            for action in actions:
                action()
            loop.turn += 1
        self._count()

    def by_meetings(self) -> Generator[Rendezvous, int, None]:
        """The same, with a stop at each meeting."""
        loop = self.loop
        loop.turn = 0
        for _ in self.turns():
            if loop.turn == self.most:
                check_turns(loop, loop.turn + 1, self.most)
            for action in loop.actions:
                if isinstance(action, Rendezvous):
                    yield action
                elif isinstance(action, _Turns) and action.loop.meets:
                    yield from action.by_meetings()
                else:
                    action()
            loop.turn += 1
        self._count()

    def _count(self) -> None:
        self.loop.turned += self.loop.turn
        if self.loop.trips is not None:
            self.loop.trips.append(self.loop.turn)
            for done in self.loop.done:
                done()


@dataclass(frozen=True)
class _Part:
    """What one core brings to a pair of loops in which the cores meet."""

    machine: Machine
    loop: Loop
    execution: _Turns
    constant: bool


def _together(machine: Machine, part: _Part) -> None:
    """Run this loop beside the one that the other core comes to; the core that comes last does it for both."""
    cooperation = machine.run.cooperation
    meeting, where = cooperation.arrive(machine, part.loop.what, "loop in which cores meet", None, "")
    meeting.parts[machine.core] = part
    if not meeting.completed:
        cooperation.wait(machine.core, meeting, where)
        return
    parts = [meeting.parts[core] for core in sorted(meeting.parts)]
    for one in parts:
        for judge in one.loop.unjudged:
            judge()
    if machine.options.values:
        machine.action(lambda: side_by_side([one.execution.by_meetings() for one in parts], _staged))
    if machine.options.events:
        events = [written(one.machine, one.loop, {}, constant=one.constant) for one in parts]
        side_by_side(events, lambda _: cooperation.number())


def _staged(meeting: Meeting) -> int:
    meeting.stage()
    return meeting.number


def _given(machine: Machine, loop: Loop) -> int:
    counts = machine.options.trip_counts
    for name in (loop.name, loop.place):
        count = counts if isinstance(counts, int) else (counts or {}).get(name)
        if count is not None:
            return count
    fault(
        "unsupported",
        loop.what,
        f"the trip count of the loop {loop.name} ({loop.place}) is not known",
        limit="a run on shapes alone must be given the trip counts of loops whose bounds are values",
        advice=f"Pass SimOptions(values=False, trip_counts={{{loop.name!r}: N}}), or one int for all loops",
    )


def _forget(loop: Loop) -> None:
    """Replays count no turns."""
    loop.trips = None
    for node in loop.nodes:
        if isinstance(node, Loop):
            _forget(node)
