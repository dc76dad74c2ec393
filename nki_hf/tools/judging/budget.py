"""CPU time of a diagnosis: kinds of mistakes are tried one after the other, each up to its end; what is cut is said.

A slow processor has more of it, so that the same mistakes are named everywhere.
"""

from __future__ import annotations

import functools
import time

__all__ = ["INPUTS", "OPERATIONS", "RESULTS", "TASK", "Budget"]

TASK = "mistakes of the task"
INPUTS = "inputs that are read wrongly"
OPERATIONS = "operations of the reference done otherwise"
RESULTS = "results of the reference that are rounded or clamped"

_ENDS = {TASK: 1.2, INPUTS: 1.7, OPERATIONS: 2.4, RESULTS: 4.0}
"""Seconds of the thread's CPU time on a fast processor, from the beginning of the diagnosis, at which each kind ends: what one
does not use serves those behind it. Reading and running a kernel at the task's sizes takes 1 to 2 s beside them."""
_TURNS, _FAST_SECONDS = 10_000, 0.5e-3
"""Turns of a loop of Python, and what they take on a fast processor: half of what they take on the slowest that we have seen
(AMD EPYC at 2.4 GHz, Python 3.11: 1.0 ms)."""
_MOST_SLOW = 4.0


@functools.cache
def slowness() -> float:
    """How many times as long as a fast processor this one takes, 1 to 4; asked once, in about 3 ms."""
    return min(max(min(_loop() for _ in range(3)) / _FAST_SECONDS, 1.0), _MOST_SLOW)


def _loop() -> float:
    began, total = time.thread_time(), 0
    for turn in range(_TURNS):
        total += turn * turn & 7
    return time.thread_time() - began


class Budget:
    """What a diagnosis may still use."""

    def __init__(self) -> None:
        """The time runs from now on."""
        self._begin = time.thread_time()
        self._cut: list[str] = []

    def over(self, kind: str) -> bool:
        """True if the time of a kind has ended; it is noted then that not all of it was tried."""
        if time.thread_time() - self._begin < _ENDS[kind] * slowness():
            return False
        if kind not in self._cut:
            self._cut.append(kind)
        return True

    @property
    def untried(self) -> str:
        """One sentence about what was not tried; empty if everything was."""
        if not self._cut:
            return ""
        return (
            f"diagnosis: its {_ENDS[RESULTS] * slowness():.2g} s of CPU time did not reach for everything: not all "
            f"{', '.join(self._cut)} were tried (judge at smaller sizes to try more)"
        )
