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
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nki_hf.errors import FaultRecord, KernelFault
from nki_hf.sim.execution.meetings import Meeting, Rendezvous, side_by_side
from nki_hf.sim.faults import fault, kernel_position
from nki_hf.sim.stream.dependencies import MEETINGS
from nki_hf.sim.stream.events import Buffer, Event

if TYPE_CHECKING:
    from nki_hf.sim.execution.machine import Action, Machine, Run

__all__ = [
    "ENTRY",
    "TURN",
    "Loop",
    "begin_loop",
    "check_closed",
    "check_edges",
    "check_trip_counts",
    "check_turns",
    "end_loop",
    "leaves",
    "persisting",
    "turns_of",
]

ENTRY, TURN = "loop_entry", "loop_turn"
"""Events of a loop: its counter is set, and every engine has ended a turn."""


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
            for _ in _written(machine, loop, {}, constant=count is not None):
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
        events = [_written(one.machine, one.loop, {}, constant=one.constant) for one in parts]
        side_by_side(events, lambda _: cooperation.number())


def _staged(meeting: Meeting) -> int:
    meeting.stage()
    return meeting.number


def check_turns(loop: Loop, count: int, most: int) -> None:
    """A fault if a loop has more turns than the options allow: most likely it would never end."""
    if count > most:
        fault(
            "argument",
            loop.what,
            f"the loop {loop.name} has {count:,} turns or more",
            limit=f"a loop of more than {most:,} turns counts as one that never ends",
            advice="Check its bounds, or what its body writes to the register that it goes by; if that many turns are meant, "
            "pass SimOptions(most_turns=N)",
        )


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


# ---- the stream of events -------------------------------------------------------------------------------------------


def _written(machine: Machine, loop: Loop, numbers: dict[int, int], *, constant: bool) -> Generator[Rendezvous, int, None]:
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
                yield from _written(machine, node, numbers, constant=constant)
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


# ---- what loops forbid ----------------------------------------------------------------------------------------------


def persisting(machine: Machine, buffer: Buffer) -> list[Loop]:
    """The loops, outermost first, in whose turns the allocation is the same one: those that do not allocate it."""
    for depth, loop in enumerate(machine.loops):
        if any(item is buffer for item in loop.buffers):
            return machine.loops[depth + 1 :]
    return list(machine.loops)


def check_closed(run: Run) -> None:
    """A fault if the kernel left a loop by break or return: its body would run in the compiler's loop nonetheless."""
    for machine in run.cores:
        for loop in machine.loops:
            raise KernelFault(
                FaultRecord(
                    kind="unsupported",
                    instruction=loop.what,
                    message=f"the loop {loop.name} was left by break or return",
                    limit="the body of a loop of run time runs to its end",
                    advice="Loop with nl.while_loop",
                    file=loop.file,
                    line=loop.line,
                )
            )


def check_trip_counts(run: Run) -> None:
    """A fault if the options count turns of a loop that the launch does not have: a misspelt name would count for nothing."""
    counts = run.options.trip_counts
    unknown = [] if counts is None or isinstance(counts, int) else sorted(set(counts) - run.named)
    if unknown:
        raise ValueError(
            f"trip_counts={counts!r}: {', '.join(unknown)} is no loop of this launch, which has "
            f"{', '.join(sorted(run.named)) or 'none'}: name a loop by its body function or by file.py:line."
        )


def check_edges(machine: Machine, consumer: int, producers: Sequence[int]) -> None:
    """A fault if a dependency leads out of a loop's body or into another one, or to an instruction that is issued later."""
    homes, loops = machine.run.homes, machine.loops
    home = homes.get(consumer)
    if home is not None and home not in loops:
        leaves("depends_on", "the instruction that waits", home.name)
    around = loops[: loops.index(home) + 1] if home is not None else []
    for producer in producers:
        other = homes.get(producer)
        if other is not None and other not in loops:
            leaves("depends_on", "the instruction that is waited for", other.name)
        if other is not None and other not in around:
            fault(
                "unsupported",
                "depends_on",
                f"an instruction outside of the loop {other.name} waits for one in its body",
                limit="no dependency leads out of the body of a loop",
                advice="Drop it: what follows a loop waits for the whole loop",
            )
        if producer >= 0 and machine.run.events[producer].opcode in MEETINGS and producer != consumer:
            continue  # its event is recorded when the other core has come, behind what was issued meanwhile
        if abs(producer) >= abs(consumer) and (producer < 0) == (consumer < 0):
            what = "waits for itself" if producer == consumer else "waits for one that is issued after it"
            fault(
                "unsupported",
                "depends_on",
                f"an instruction {what}",
                limit="instructions run as they are issued, so that a producer comes before its consumer",
                advice="Issue the producer first",
            )


def leaves(opcode: str, what: str, loop: str) -> Any:
    """The fault of something that was made in a loop's body and is used behind it."""
    fault(
        "unsupported",
        opcode,
        f"{what} was made in the body of the loop {loop}, which has ended",
        limit="what a body makes lives for one turn",
        advice="Make it before the loop, or use it inside",
    )
