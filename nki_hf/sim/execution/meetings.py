"""Where the two cores of a launch meet, and how their loops of run time go on side by side."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nki_hf.sim.faults import fault

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Meeting", "Rendezvous", "side_by_side"]


class Meeting:
    """One occasion at which the cores waited for each other.

    Attributes:
      number: running number of the run; both cores' events carry it, so that observers can join them.
      completed: place among the completed meetings of the run, counted from 1; 0 until every core arrived.
      inside: whether it is in the bodies of loops of run time: one meeting a turn.
      parts: what the cores bring to a pair of loops that run side by side.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.completed = 0
        self.inside = False
        self.form: object = None
        self.where = ""
        self._offers: dict[int, Callable[[], np.ndarray[Any, Any]] | None] = {}
        self._staged: dict[int, Any] = {}
        self.parts: dict[int, Any] = {}

    def received(self, core: int) -> Callable[[], Any]:
        """Closure that gives the values that `core` offered, as they were when the cores met."""
        return lambda: self._staged[core]

    def stage(self) -> None:
        """Copy what the cores offer."""
        # all offers are copied before any core goes on: a destination may overlap what the other one sends
        for core, read in self._offers.items():
            self._staged[core] = None if read is None else read().copy()


@dataclass(frozen=True)
class Rendezvous:
    """Among the actions of a loop's body: here this core meets the other one.

    Attributes:
      meeting: what both cores come to.
      where: instruction and place, for messages.
    """

    meeting: Meeting
    where: str

    def __call__(self) -> None:
        """Never: loops that hold one are run side by side."""
        raise RuntimeError(f"{self.where} was executed by one core alone.")


def side_by_side(cores: Sequence[Generator[Rendezvous, int, None]], numbers: Callable[[Meeting], int]) -> None:
    """Run the loops of both cores together: each up to its next meeting, then `numbers` of it is sent to both.

    Raises:
      KernelFault: the cores come to different meetings, or one ends where the other one waits (kind `deadlock`).
    """
    at = [next(core, None) for core in cores]
    while any(at):
        first, second = at
        if first is None or second is None or first.meeting is not second.meeting:
            there = ["ends its loop" if item is None else f"waits in {item.where}" for item in at]
            fault(
                "deadlock",
                next(item for item in at if item).where.split(" ")[0],
                f"in loops of run time, core 0 {there[0]} and core 1 {there[1]}",
                limit="the loops in which cores meet have as many turns and the same meetings in the same order on both",
            )
        number = numbers(first.meeting)
        at = [_sent(core, number) for core in cores]


def _sent(core: Generator[Rendezvous, int, None], number: int) -> Rendezvous | None:
    try:
        return core.send(number)
    except StopIteration:
        return None
