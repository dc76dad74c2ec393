"""CPU time of a diagnosis: kinds of mistakes are tried one after the other, each up to its end; what is cut is said."""

from __future__ import annotations

import time

__all__ = ["INPUTS", "OPERATIONS", "RESULTS", "TASK", "Budget"]

TASK = "mistakes of the task"
INPUTS = "inputs that are read wrongly"
OPERATIONS = "operations of the reference done otherwise"
RESULTS = "results of the reference that are rounded or clamped"

_ENDS = {TASK: 1.2, INPUTS: 1.7, OPERATIONS: 2.4, RESULTS: 4.0}
"""Seconds of the thread's CPU time, from the beginning of the diagnosis, at which each kind ends: what one does not use
serves those behind it. Reading and running a kernel at the task's sizes takes 1 to 2 s beside them."""


class Budget:
    """What a diagnosis may still use."""

    def __init__(self) -> None:
        """The time runs from now on."""
        self._begin = time.thread_time()
        self._cut: list[str] = []

    def over(self, kind: str) -> bool:
        """True if the time of a kind has ended; it is noted then that not all of it was tried."""
        if time.thread_time() - self._begin < _ENDS[kind]:
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
            f"diagnosis: its {_ENDS[RESULTS]:g} s of CPU time did not reach for everything: not all "
            f"{', '.join(self._cut)} were tried (judge at smaller sizes to try more)"
        )
