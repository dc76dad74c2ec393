"""Run: one launch of one kernel, what its cores share."""

from __future__ import annotations

from typing import Any

from nki_hf.sim.execution.actions import Action
from nki_hf.sim.execution.loops import Loop
from nki_hf.sim.execution.machine import Machine
from nki_hf.sim.execution.storage import Refill, Storage
from nki_hf.sim.options import SimOptions
from nki_hf.sim.stream.events import Buffer, Event

__all__ = ["Run"]


class Run:
    """One launch of one kernel: what its cores share.

    Attributes:
      options: the options of the launch.
      lnc: number of cores, 1 or 2.
      grid: True if the kernel was launched with a grid, `kernel[lnc](...)`.
      events: the event stream so far, in order of execution over all cores.
      buffers: every allocation of the run, in order.
      cores: the machines.
      order: recorded computations of all cores in order of execution (only if `options.record`).
      talks: True once the cores exchanged data or met at a barrier; then a replay must follow `order`.
      modified: numbers of the input buffers that an instruction wrote.
      cooperation: what switches between the cores of a launch on two (see sim/execution/cores.py), else None.
      closed: name of the loop whose body allocated a buffer, by its number, of loops that have ended.
      named: names and places of loops that have ended, as `SimOptions.trip_counts` may have them.
      short: loops that ran less than two turns, whose memory the events do not show.
      returned: numbers of the buffers that the kernel returned, in order.
      loops: loops that have ended, of those in no other.
      loaded: registers into which instructions load elements of tensors, one for each instruction, in program order.
      templates: number of events that were recorded in bodies of loops.
      homes: the loop of each of them, by its index (below 0).
      memory: which memory a buffer has, by its number; buffers that are alive one after the other may share it (recorded runs).
      refills: what a replay fills again, by the buffer's number (recorded runs).
      replayable: False once an instruction's computation depended on run-time values in a way that a replay would miss
        (data-dependent control flow); `why_not_replayable` says which.
    """

    def __init__(self, options: SimOptions, lnc: int = 1, *, grid: bool = False) -> None:
        self.options = options
        self.lnc = lnc
        self.grid = grid
        self.events: list[Event] = []
        self.buffers: list[Buffer] = []
        self.replayable = True
        self.why_not_replayable = ""
        self.shared: list[Storage] = []
        self.order: list[Action] = []
        self.talks = False
        self.modified: set[int] = set()
        self.cooperation: Any = None
        self.closed: dict[int, str] = {}
        self.named: set[str] = set()
        self.short: list[Loop] = []
        self.returned: tuple[int, ...] = ()
        self.loops: list[Loop] = []
        self.loaded: list[Any] = []
        self.templates = 0
        self.homes: dict[int, Loop] = {}
        self.memory: dict[int, int] = {}
        self.refills: dict[int, Refill] = {}
        self.cores = [Machine(self, core) for core in range(lnc)]

    def turns(self) -> dict[str, int]:
        """Turns of each outermost loop of run time in the last execution, by its name, over all cores."""
        found: dict[str, int] = {}
        for loop in self.loops:
            found[loop.name] = found.get(loop.name, 0) + loop.turn
        return found

    def note_load(self, register: Any) -> int:
        """Note that an instruction loads a register; the instruction's number among those."""
        self.loaded.append(register)
        register.follows(frozenset([len(self.loaded) - 1]))
        return len(self.loaded) - 1

    def not_replayable(self, why: str) -> None:
        """Note that the recorded actions of this run do not stand for another run with other values."""
        if self.replayable:
            self.replayable, self.why_not_replayable = False, why
