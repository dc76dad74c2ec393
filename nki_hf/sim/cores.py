"""Two cores of one launch: they take turns, meet at barriers and exchanges, and a deadlock is reported at once.

Core 0 runs in the caller's thread until it must wait for core 1 or ends; only then core 1 starts, in a thread of its own
if core 0 waits. At any moment one core runs. Which one follows from the program alone, so every run of a launch executes
the same instructions in the same order, and there is nothing to time out.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nki_hf.sim.faults import fault, kernel_position
from nki_hf.sim.machine import Machine, Run, entered

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Cooperation", "Meeting", "meet"]


class _AbandonedRun(BaseException):
    """Unwinds a core whose partner failed; never leaves this module."""


class Meeting:
    """One occasion at which the cores waited for each other.

    Attributes:
      number: running number of the run; both cores' events carry it, so that observers can join them.
      complete: True once every core arrived.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.complete = False
        self.form: object = None
        self.where = ""
        self._offers: dict[int, Callable[[], np.ndarray[Any, Any]] | None] = {}
        self._staged: dict[int, Any] = {}

    def received(self, core: int) -> Callable[[], Any]:
        """Closure that gives the values that `core` offered, as they were when the cores met."""
        return lambda: self._staged[core]

    def _stage(self) -> None:
        # all offers are copied before any core goes on: a destination may overlap what the other one sends
        for core, read in self._offers.items():
            self._staged[core] = None if read is None else read().copy()


def meet(
    machine: Machine, what: str, key: object, offer: Callable[[], np.ndarray[Any, Any]] | None = None, form: str = ""
) -> Meeting:
    """Wait until the other core arrives at the meeting of the same key, and exchange values with it.

    The n-th call with a key on one core pairs with the n-th on the other.

    Args:
      machine: the core that arrives.
      what: name of the instruction and its key for messages, e.g. `sendrecv (pipe_id 3)`.
      key: what pairs the two arrivals, e.g. `("sendrecv", pipe_id)`.
      offer: closure that reads the values this core gives; copied when the last core arrives, as a recorded step.
      form: what both cores must agree on, e.g. the shape and dtype of what they exchange.

    Raises:
      KernelFault: the launch has one core, or no core can go on any more (kind `deadlock`, with both positions),
        or the forms differ (kind `shape`, with both positions).
    """
    cooperation: Cooperation | None = machine.run.cooperation
    if cooperation is None:
        fault(
            "argument", what.split(" ")[0], f"launched on {machine.run.lnc} core", limit="needs two cores",
            advice="Launch the kernel with kernel[2]",
        )  # fmt: skip
    return cooperation.meet(machine, what, key, offer, form)


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
        self._open: dict[object, Meeting] = {}
        self._meetings = 0
        self._returned: list[Any] = [None] * run.lnc
        self._body: Callable[[], Any] = lambda: None

    def execute(self, body: Callable[[], Any]) -> list[Any]:
        """Run `body` once on each core; its return values, by core. A core's exception ends both and is raised."""
        self._body = body
        try:
            with entered(self._run.cores[0]):
                self._returned[0] = body()
        except _AbandonedRun:
            pass
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._finish(0)
        if self._error is None and self._thread is None:
            with entered(self._run.cores[1]):
                self._returned[1] = body()
        elif self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._returned

    def meet(
        self, machine: Machine, what: str, key: object, offer: Callable[[], np.ndarray[Any, Any]] | None, form: str
    ) -> Meeting:
        """See the function `meet`."""
        self._run.talks = True
        meeting = self._open.get(key)
        file, line = kernel_position()
        if meeting is None:
            meeting = self._open[key] = Meeting(self._meetings)
            self._meetings += 1
            meeting._offers[machine.core] = offer
            meeting.form, meeting.where = form, f"{file}:{line}"
            self._wait(machine.core, meeting, f"{what} at {file}:{line}")
        else:
            if meeting.form != form:
                fault(
                    "shape", what.split(" ")[0],
                    f"core {machine.core} brings {form} at {file}:{line} and core {1 - machine.core} {meeting.form} at "
                    f"{meeting.where}", limit="what two cores exchange must agree in dtype and shape",
                )  # fmt: skip
            del self._open[key]
            meeting._offers[machine.core] = offer
            machine.step(meeting._stage)
            meeting.complete = True
        return meeting

    def _wait(self, core: int, meeting: Meeting, where: str) -> None:
        other = 1 - core
        self._waiting[core] = (meeting, where)
        stuck = other in self._waiting and not self._waiting[other][0].complete
        if other in self._done or stuck:
            there = "has returned" if other in self._done else f"waits in {self._waiting[other][1]}"
            fault(
                "deadlock", where.split(" ")[0], f"core {core} waits in {where} and core {other} {there}",
                limit="each core must meet the other at the same instructions, in the same order",
            )  # fmt: skip
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
        if not meeting.complete:  # the other core ended without coming
            fault(
                "deadlock", where.split(" ")[0], f"core {core} waits in {where} and core {other} has returned",
                limit="each core must meet the other at the same instructions, in the same order",
            )  # fmt: skip
        del self._waiting[core]

    def _second(self) -> None:
        try:
            with entered(self._run.cores[1]):
                self._returned[1] = self._body()
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
