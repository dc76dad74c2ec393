"""Two cores of one launch: they take turns, meet at barriers and exchanges, and a deadlock is reported at once.

An exchange is a transfer on a pipe of its own and blocks nothing but what needs it: a core that comes first goes on until an
instruction touches what it will receive, or writes what it sends, and to the kernel's end at most. So two cores may use
their pipes in opposite orders (source: sendrecv's docstring). A barrier blocks.

Core 0 runs in the caller's thread until it must wait for core 1 or ends; only then core 1 starts, in a thread of its own
if core 0 waits. At any moment one core runs. Which one follows from the program alone, so every run of a launch executes
the same instructions in the same order, and there is nothing to time out.

In the bodies of loops of run time nobody waits while they are recorded. The two outermost loops then run together, turn by
turn: each goes on to its next meeting, which must be the same one (sim/execution/loop_execution.py).
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from nki_hf.sim.execution.current_machine import entered
from nki_hf.sim.execution.machine import Machine
from nki_hf.sim.execution.meetings import Meeting, Rendezvous
from nki_hf.sim.execution.run import Run
from nki_hf.sim.faults import fault, kernel_position
from nki_hf.sim.stream.events import Region
from nki_hf.sim.stream.footprint import footprint_of, overlap

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Alone", "Cooperation", "CoresMeet", "exchange", "meet"]


class CoresMeet(Exception):
    """A core that was to run without the other one comes to where they meet."""


class _AbandonedRun(BaseException):
    """Unwinds a core whose partner failed; never leaves this module."""


@dataclass(frozen=True)
class _Pending:
    """An exchange in which this core waits for the other one: what it touches, and how its instruction is issued then."""

    meeting: Meeting
    where: str
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    issue: Callable[[], None]


def meet(machine: Machine, what: str, key: object) -> Meeting:
    """Wait until the other core arrives at the meeting of the same key; the n-th of one core pairs with the n-th of the other.

    Args:
      machine: the core that arrives, of a launch on two.
      what: name of the instruction and its key for messages, e.g. `core_barrier`.
      key: what pairs the two arrivals.

    Raises:
      KernelFault: no core can go on any more (kind `deadlock`, with both positions).
    """
    cooperation: Cooperation = machine.run.cooperation
    meeting, where = cooperation.arrive(machine, what, key, None, "")
    if meeting.inside:
        return meeting
    if not meeting.completed:
        cooperation.wait(machine.core, meeting, where)
    cooperation.settle(machine, before=meeting.completed)
    return meeting


def exchange(
    machine: Machine,
    what: str,
    key: object,
    offer: Callable[[], np.ndarray[Any, Any]] | None,
    form: str,
    reads: tuple[Region, ...],
    writes: tuple[Region, ...],
    issue: Callable[[Meeting], None],
) -> None:
    """Bring what this core gives to the meeting of the same key, and `issue` the instruction once the other core came too.

    Args:
      machine: the core that arrives, of a launch on two.
      what: name of the instruction and its key for messages, e.g. `sendrecv (pipe_id 3)`.
      key: what pairs the two arrivals, e.g. `("sendrecv", pipe_id)`.
      offer: closure that reads the values this core gives; copied when the last core arrives, as a recorded action.
      form: what both cores must agree on: the shape and dtype of what they exchange.
      reads, writes: what the instruction touches; later instructions that conflict with it wait for the meeting.
      issue: called with the meeting when both have arrived, at the latest before this core needs the result.

    Raises:
      KernelFault: no core can go on any more (kind `deadlock`, with both positions), or the forms differ (kind `shape`,
        with both positions).
    """
    cooperation: Cooperation = machine.run.cooperation
    meeting, where = cooperation.arrive(machine, what, key, offer, form)
    if meeting.inside:
        issue(meeting)
        return
    if meeting.completed:
        cooperation.settle(machine, before=meeting.completed)
        issue(meeting)
        return
    machine.pending.append(_Pending(meeting, where, reads, writes, lambda: issue(meeting)))
    if machine.in_order:
        cooperation.await_all(machine)


class Alone:
    """In place of a `Cooperation` where the first core of a launch runs and the other does not."""

    def arrive(self, machine: Machine, what: str, *rest: object) -> NoReturn:
        """Raises `CoresMeet`."""
        file, line = kernel_position()
        raise CoresMeet(f"core {machine.core} meets the other one: {what} at {file}:{line}.")

    def await_all(self, machine: Machine) -> None:
        """Nothing: there are no exchanges under way."""


class Cooperation:
    """Switches between the two cores of a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._change = threading.Condition()
        self._turn = 0
        self._waiting: dict[int, tuple[Meeting, str]] = {}
        self._done: set[int] = set()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._open: dict[object, Meeting] = {}  # by key and number of the arrival
        self._arrivals: dict[tuple[int, object], int] = {}
        self._meetings = self._completed = 0
        self._returned: list[Any] = [None] * run.lnc
        self._body: Callable[[], Any] = lambda: None

    def execute(self, body: Callable[[], Any]) -> list[Any]:
        """Run `body` once on each core; its return values, by core. A core's exception ends both and is raised."""
        self._body = body
        try:
            with entered(self._run.cores[0]):
                self._returned[0] = body()
                self.await_all(self._run.cores[0])
        except _AbandonedRun:
            pass
        except BaseException as error:  # an interrupt too: the other core must not wait for this one
            self._fail(error)
            raise
        finally:
            self._finish(0)
        if self._error is None and self._thread is None:
            with entered(self._run.cores[1]):
                self._returned[1] = body()
                self.await_all(self._run.cores[1])
        elif self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._returned

    def arrive(
        self, machine: Machine, what: str, key: object, offer: Callable[[], np.ndarray[Any, Any]] | None, form: str
    ) -> tuple[Meeting, str]:
        """The meeting of this arrival, complete if the other core was there before, and where it is, for messages."""
        self._run.talks = True
        number = self._arrivals[machine.core, key] = self._arrivals.get((machine.core, key), 0) + 1
        meeting = self._open.pop((key, number), None)
        file, line = kernel_position()
        if meeting is None:
            meeting = self._open[key, number] = Meeting(self._meetings)
            self._meetings += 1
            meeting._offers[machine.core] = offer
            meeting.form, meeting.where, meeting.inside = form, f"{file}:{line}", bool(machine.loops)
        else:
            if meeting.form != form:
                fault(
                    "shape",
                    what.split(" ")[0],
                    f"core {machine.core} brings {form} at {file}:{line} and core {1 - machine.core} {meeting.form} at "
                    f"{meeting.where}",
                    limit="what two cores exchange must agree in dtype and shape",
                )
            if meeting.inside != bool(machine.loops):
                fault(
                    "deadlock",
                    what.split(" ")[0],
                    f"core {machine.core} comes to it at {file}:{line} and core {1 - machine.core} at {meeting.where}, one of "
                    "them in the body of a loop of run time",
                    limit="both cores meet outside of such loops, or both inside",
                )
            meeting._offers[machine.core] = offer
            if not meeting.inside:
                machine.action(meeting.stage)
                self._completed += 1
                meeting.completed = self._completed
        if meeting.inside:
            for loop in machine.loops:
                loop.meets = True
            here = machine.loops[-1].meetings[meeting.number] = Rendezvous(meeting, f"{what} at {file}:{line}")
            machine.loops[-1].actions.append(here)
        return meeting, f"{what} at {file}:{line}"

    def number(self) -> int:
        """A running number for one more meeting."""
        self._meetings += 1
        return self._meetings - 1

    def settle(self, machine: Machine, *, before: int | None = None) -> None:
        """Issue this core's exchanges that were completed (before the meeting completed as number `before`), in that order."""
        ready = [p for p in machine.pending if p.meeting.completed and (before is None or p.meeting.completed < before)]
        for item in sorted(ready, key=lambda p: p.meeting.completed):
            machine.pending.remove(item)
            item.issue()

    def await_conflicts(self, machine: Machine, reads: tuple[Region, ...], writes: tuple[Region, ...]) -> None:
        """Before an instruction that touches these regions: wait for the exchanges that it must not overtake."""
        for item in list(machine.pending):
            touched = _meet_any(item.writes, (*reads, *writes)) or _meet_any(item.reads, writes)
            if touched and item in machine.pending:
                self._await(machine, item)

    def await_all(self, machine: Machine) -> None:
        """Wait for every exchange of this core."""
        while machine.pending:
            self._await(machine, machine.pending[0])

    def _await(self, machine: Machine, item: _Pending) -> None:
        if not item.meeting.completed:
            self.wait(machine.core, item.meeting, item.where)
        self.settle(machine)

    def wait(self, core: int, meeting: Meeting, where: str) -> None:
        """Let the other core run until the meeting is complete."""
        other = 1 - core
        self._waiting[core] = (meeting, where)
        stuck = other in self._waiting and not self._waiting[other][0].completed
        if other in self._done or stuck:
            there = "has returned" if other in self._done else f"waits in {self._waiting[other][1]}"
            fault(
                "deadlock",
                where.split(" ")[0],
                f"core {core} waits in {where} and core {other} {there}",
                limit="each core must meet the other at the same instructions, in the same order",
            )
        with self._change:
            self._turn = other
            if other == 1 and self._thread is None:
                context = contextvars.copy_context()
                self._thread = threading.Thread(target=context.run, args=(self._second,), name="core 1", daemon=True)
                self._thread.start()
            self._change.notify_all()
            self._change.wait_for(lambda: self._turn == core or self._error is not None)
        if self._error is not None:
            raise _AbandonedRun
        if not meeting.completed:  # the other core ended without coming
            fault(
                "deadlock",
                where.split(" ")[0],
                f"core {core} waits in {where} and core {other} has returned",
                limit="each core must meet the other at the same instructions, in the same order",
            )
        del self._waiting[core]

    def _second(self) -> None:
        try:
            with entered(self._run.cores[1]):
                self._returned[1] = self._body()
                self.await_all(self._run.cores[1])
        except _AbandonedRun:
            pass
        except BaseException as error:  # every kind of exception belongs to the caller's thread
            self._fail(error)
        finally:
            self._finish(1)

    def _fail(self, error: BaseException) -> None:
        with self._change:
            if self._error is None:
                self._error = error
            self._change.notify_all()

    def _finish(self, core: int) -> None:
        with self._change:
            self._done.add(core)
            self._turn = 1 - core
            self._change.notify_all()


def _meet_any(first: tuple[Region, ...], second: tuple[Region, ...]) -> bool:
    return any(_share_bytes(a, b) for a in first for b in second)


def _share_bytes(a: Region, b: Region) -> bool:
    """True if both touch a byte: of one buffer, or of two that the kernel put at the same address."""
    if a.buffer is b.buffer:
        return overlap(footprint_of(a), footprint_of(b))
    if a.buffer.address is None or b.buffer.address is None or a.buffer.space != b.buffer.space:
        return False
    return overlap(footprint_of(a).moved(*a.buffer.address), footprint_of(b).moved(*b.buffer.address))
