"""Tape: one launch written down as plain data, so that another process can run it without the kernel's Python.

On the tape is what the kernel did to the machine: allocations, instructions with their operands, loops of run time, ordering.
Operands are written as tape_operands.py says, and places of the kernel once, named by a number. instrumentation.py lets a
process write tapes. Nothing on a tape is code: sim/run/play.py calls the simulator's own functions, which check and compute
everything again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nki_hf.sim.execution.current_machine import running_machine
from nki_hf.sim.execution.machine import Machine
from nki_hf.sim.faults import kernel_position
from nki_hf.sim.isa.instruction import NkiInstruction
from nki_hf.sim.run.alike import PURE
from nki_hf.sim.run.tape_operands import Operands
from nki_hf.sim.tensors.registers import RunTimeValue

__all__ = ["Recorder", "active", "recording"]

_ALLOCATED = ("name", "role", "address")
_NAMED = (RunTimeValue, NkiInstruction)
"""Types of results that later entries may name."""


class Recorder:
    """Writes the tape of one launch.

    Attributes:
      cores: by core, its entries `(kind, name, operands, number of the place, in_order, number of the result)`; loops are
        entries whose operands hold the entries of the body. Operands are written values, or `("f", form, *tensors)`.
      places: file and line, each once.
      operands: what operands are written as, the forms of calls and every tensor.
    """

    def __init__(self) -> None:
        self.cores: dict[int, list[Any]] = {}
        self.places: list[tuple[str, int]] = []
        self.operands = Operands()
        self._allocations: dict[Any, Any] = {}
        self._placed: dict[tuple[str, int], int] = {}
        self._open: dict[int, list[Any]] = {}
        self._inside: dict[int, int] = {}
        self._executed: set[tuple[Any, ...]] = set()

    def tape(self, outputs: dict[int, Any]) -> dict[str, Any]:
        """The whole tape, plain data; `outputs` is what each core returned."""
        returned = {str(core): self.operands.write(value) for core, value in outputs.items()}
        return {
            "cores": {str(core): entries for core, entries in self.cores.items()},
            "forms": self.operands.forms,
            "places": self.places,
            "returned": returned,
            "tensors": self.operands.tensors,
        }

    def free(self, machine: Machine) -> bool:
        """True if what happens now is the kernel's own doing, not part of an instruction."""
        return not self._inside.get(machine.core)

    def call(self, machine: Machine, kind: str, name: str, args: Any, kwargs: Any, function: Callable[..., Any]) -> Any:
        """Write an entry and execute it; on shapes alone an instruction that is like one before need not be executed."""
        core = machine.core
        operands = self.operands.of_call(args, kwargs)
        entry: list[Any] = [kind, name, operands, self._place(kernel_position(2)), machine.in_order, -1]
        entries = self._open.get(core)
        (self.entries(core) if entries is None else entries).append(entry)
        key = self._likeness(machine, name, operands) if kind == "isa" else None
        if key is not None and key in self._executed:
            result: Any = NkiInstruction(None)
        else:
            tiles = () if key is None else [self.operands.storages[number] for number in operands[2:]]
            psum = [storage for storage in tiles if storage.in_psum]
            before = [storage.version for storage in psum]
            self._inside[core] = self._inside.get(core, 0) + 1
            try:
                result = function(*args, **kwargs)
            finally:
                self._inside[core] -= 1
            if key is not None and type(result) is NkiInstruction and before == [storage.version for storage in psum]:
                self._executed.add(key)
        if isinstance(result, _NAMED):
            entry[5] = self.operands.number(result)
        return result

    def _likeness(self, machine: Machine, name: str, operands: Any) -> tuple[Any, ...] | None:
        """What instructions have in common of which one must be executed to know that all raise nothing; None if that cannot be
        told, or executing them has an effect (values, events).
        """
        options, run = machine.options, machine.run
        if options.values or options.checks or options.events or machine.loops or run.closed or run.lnc > 1:
            return None
        if name not in PURE or operands[0] != "f":
            return None
        views = [self.operands.views[number] for number in operands[2:]]
        return None if min(views, default=0) < 0 else (name, operands[1], *views)

    def allocated(self, machine: Machine, place: tuple[str, int], given: tuple[Any, ...]) -> None:
        """Write the entry of an allocation without values; `given` are all of its arguments, in order."""
        operands = self._allocations.get(given)
        if operands is None:
            operands = self._allocations[given] = self.operands.of_call(
                given[:3], dict(zip(_ALLOCATED, given[3:], strict=True))
            )
        self.entries(machine.core).append(["allocate", "", operands, self._place(place), machine.in_order, -1])

    @contextmanager
    def body(self, machine: Machine, name: str, operands: Any, place: tuple[str, int]) -> Iterator[list[Any]]:
        """The entry of a loop at a place of the kernel, into which goes what is written until the block ends."""
        inner: list[Any] = []
        entry: list[Any] = [
            "loop",
            name,
            self.operands.write(operands),
            self._place(place),
            machine.in_order,
            -1,
            inner,
            None,
            "",
        ]
        before = self.entries(machine.core)
        before.append(entry)
        self._open[machine.core] = inner
        try:
            yield entry
        finally:
            self._open[machine.core] = before

    def entries(self, core: int) -> list[Any]:
        """Where the core's next entry goes."""
        if core not in self._open:
            self._open[core] = self.cores[core] = []
        return self._open[core]

    def _place(self, place: tuple[str, int]) -> int:
        number = self._placed.get(place)
        if number is None:
            number = self._placed[place] = len(self.places)
            self.places.append(place)
        return number


_current: list[Recorder] = []


@contextmanager
def recording() -> Iterator[Recorder]:
    """Block whose launch writes a tape; `instrumentation.install` must have been called in this process."""
    recorder = Recorder()
    try:
        _current.append(recorder)
        yield recorder
    finally:
        _current[:] = [each for each in _current if each is not recorder]


def active() -> tuple[Recorder, Machine] | None:
    """The recorder and the machine of what the kernel does now; None if nothing is recorded, or an instruction is under way."""
    machine = running_machine()
    if not _current or machine is None or not _current[-1].free(machine):
        return None
    return _current[-1], machine
