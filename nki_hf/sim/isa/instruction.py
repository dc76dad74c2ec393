"""The one way an instruction reaches the machine: constraints first, then the event, then the values."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np

from nki_hf.sim.constraints import check, check_written
from nki_hf.sim.execution.actions import Action
from nki_hf.sim.execution.current_machine import current_machine
from nki_hf.sim.execution.loop_rules import check_edges
from nki_hf.sim.execution.machine import Machine
from nki_hf.sim.execution.storage import Storage
from nki_hf.sim.faults import fault, kernel_position
from nki_hf.sim.isa.enums import engine as Engine
from nki_hf.sim.objects import NKIObject
from nki_hf.sim.stream.events import Event, Region
from nki_hf.sim.tensors.chosen_elements import chosen
from nki_hf.sim.tensors.offsets import index_tensors
from nki_hf.sim.tensors.origins import forget_origins
from nki_hf.sim.tensors.registers import RunTimeValue
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import mark_written, note_writer

__all__ = ["NkiInstruction", "begin", "resolve_engine", "tensors"]


class NkiInstruction(NKIObject):
    """Handle of an issued instruction; `depends_on` adds scheduling edges and has no numeric effect."""

    __slots__ = ("event",)

    def __init__(self, handle: Event | None) -> None:
        self.event = handle

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Run this instruction after every producer; returns itself.

        Both stand at the same nesting of loops of run time, or the producer around it: the wait is one of the hardware,
        compiled in, so that it would fire without its producer or never (NKI's page on NkiInstruction).
        """
        machine = current_machine("depends_on")
        for item in producers:
            if not isinstance(item, NkiInstruction):
                fault(
                    "argument",
                    "depends_on",
                    f"a producer is {item!r}",
                    limit="producers are instructions",
                    advice="Pass what nisa functions return: c.depends_on(a, b)",
                )
        if machine.pending:  # an exchange under way has no event yet
            machine.run.cooperation.await_all(machine)
        if self.event is not None:
            edges = tuple(item.event.index for item in producers if item.event is not None)
            check_edges(machine, self.event.index, edges)
            attrs = self.event.attrs
            attrs["depends_on"] = attrs.get("depends_on", ()) + edges  # type: ignore[index]
        return self


class begin:  # noqa: N801  (used like a function: `begin("nc_matmul", dst=..., ...)`)
    """An instruction under way: its constraints are checked on creation, `issue` records and executes it.

    Every isa function calls `begin(opcode, **arguments)` with all of its arguments by their public names, then
    `.issue(engine=..., reads=..., writes=..., action=..., **attrs)`. The rules of sim/constraints/ see the same names.
    """

    __slots__ = ("free", "machine", "opcode")

    def __init__(self, opcode: str, **arguments: Any) -> None:
        self.opcode = opcode
        self.machine: Machine = current_machine(f"nisa.{opcode}")
        self.free = self.machine.options.record and any(map(_at_run_time, arguments.values()))
        if self.machine.options.checks:
            check(self.machine, opcode, arguments)

    def issue(
        self,
        *,
        engine: str,
        writes: tuple[NkiTensor, ...],
        reads: tuple[NkiTensor, ...],
        action: Action | None,
        queue: str = "",
        marked: tuple[NkiTensor, ...] | None = None,
        position: tuple[str, int] | None = None,
        taken: tuple[Storage, ...] | None = None,
        parts: tuple[Any, ...] = (),
        **attrs: Any,
    ) -> NkiInstruction:
        """Record and execute the instruction (see `Machine.issue`); `reads` may contain only tensors.

        The index tensors of indirect operands are added to the reads.

        Args:
          marked: those of `writes` whose elements all count as written from now on; default: all of them. An instruction
            that keeps some elements of the others notes itself which it wrote (`mark_written`); what it keeps is not
            judged here but where it is read.
          position, taken: see `Machine.issue`.
          parts: for each of the first `reads`, which of its elements the instruction looks at (see `check_written`).
          attrs: see `Event.attrs`; `keeps` names the positions in `writes` of operands whose old bytes may show through.
        """
        if self.machine.pending and position is None:
            self.await_exchanges(reads, writes)
        if self.machine.options.uninitialized == "error":
            noted = () if marked is None else [item for item in writes if not any(item is other for other in marked)]
            looked = zip_longest(reads, parts)
            self._check_written([pair for pair in looked if not any(pair[0] is other for other in noted)])
        for tensor in writes if marked is None else marked:
            if tensor.storage.tracked:
                mark_written(tensor)
        if self.machine.options.record:
            self._note_refills(reads, writes, () if attrs.get("keeps_own") else attrs.get("keeps", ()))
        for tensor in (*writes, *reads):
            if tensor.indirection is not None and isinstance(tensor.indirection.index, RunTimeValue):
                tensor.indirection.index.check_home(self.opcode)
        for tensor in writes:
            forget_origins(tensor)
            storage = tensor.storage
            storage.untouched = False
            if storage.in_psum and (engine != "tensor" or storage.foreign is not None):
                note_writer(tensor, engine)
            if tensor.indirection is not None:
                reads = (*reads, *index_tensors((tensor,)))
        for tensor in reads:
            if tensor.indirection is not None:
                reads = (*reads, *index_tensors((tensor,)))
        event = self.machine.issue(
            self.opcode,
            engine=engine,
            reads=self._regions(reads),
            writes=self._regions(writes, written=True),
            action=action,
            queue=queue,
            attrs=attrs,
            position=position,
            taken=taken,
            free=self.free,
        )
        return NkiInstruction(event)

    def _check_written(self, reads: list[tuple[NkiTensor, Any]]) -> None:
        loops = self.machine.loops
        if loops and loops[0].meets:  # what both cores see, the other one may write in a body that is not recorded yet
            later = [pair for pair in reads if pair[0].storage.buffer.core is None]
            reads = [pair for pair in reads if pair[0].storage.buffer.core is not None]
            loops[0].unjudged.append(functools.partial(check_written, self.opcode, later, kernel_position(3)))
        check_written(self.opcode, reads)

    def _note_refills(self, reads: tuple[NkiTensor, ...], writes: tuple[NkiTensor, ...], keeps: Sequence[int]) -> None:
        """Note the allocations that a replay has to fill again (see sim/run/refills.py), before they count as touched."""
        noted = self.machine.run.refills
        for tensor in reads:
            storage = tensor.storage
            if storage.untouched and storage.refill is not None:
                noted[storage.buffer.number] = storage.refill
        for place, tensor in enumerate(writes):
            storage = tensor.storage
            if storage.refill is None:
                continue
            if self.machine.loops or place in keeps or tensor.indirection is not None:
                noted[storage.buffer.number] = storage.refill
            elif storage.untouched and tensor.size == storage.buffer.elements:
                storage.refill = None

    def _regions(self, operands: tuple[NkiTensor, ...], *, written: bool = False) -> tuple[Region, ...]:
        regions = [tensor.region() for tensor in operands]
        if self.machine.options.events and self.values and (written or self.machine.run.lnc > 1):
            for number, (tensor, region) in enumerate(zip(operands, regions, strict=True)):
                if region.indirect and not region.buffer.on_chip:
                    regions[number] = replace(region)  # the tensor's own is that of all instructions that use it
                    self._note_reached(tensor, regions[number])
        return tuple(regions)

    def _note_reached(self, tensor: NkiTensor, region: Region) -> None:
        """Note which elements run-time indices choose: now, or in every turn of the loops around until they have been run."""
        if not self.machine.loops:
            region.reached = np.unique(chosen(tensor))
            return
        loop = self.machine.loops[0]
        region.reached = np.zeros(0, np.int64)  # as long as there is no turn
        flags = np.zeros(region.buffer.elements * region.buffer.dtype.itemsize // region.dtype.itemsize, np.bool_)

        def note() -> None:
            if loop.trips is None:  # a replay computes values alone
                return
            now = chosen(tensor)
            region.twice = region.twice or bool(flags[now].any())
            flags[now] = True

        def done() -> None:
            region.reached = np.flatnonzero(flags)

        self.machine.action(note)
        loop.done.append(done)

    def await_exchanges(self, reads: tuple[NkiTensor, ...], writes: tuple[NkiTensor, ...]) -> None:
        """Wait for the exchanges with the other core that an instruction with these operands must not overtake."""
        reads = (*reads, *index_tensors((*reads, *writes)))
        self.machine.run.cooperation.await_conflicts(
            self.machine, tuple(tensor.region() for tensor in reads), tuple(tensor.region() for tensor in writes)
        )

    @property
    def values(self) -> bool:
        """False on runs that have shapes only; then build no action."""
        return self.machine.options.values


def _at_run_time(value: Any) -> bool:
    """True for a run-time scalar, and for a view that one moves."""
    if isinstance(value, NkiTensor):
        return value.indirection is not None and not hasattr(value.indirection.index, "storage")
    return isinstance(value, RunTimeValue)


def tensors(*operands: Any) -> tuple[NkiTensor, ...]:
    """Those operands that are tensors, in order: what an instruction with optional or immediate operands reads."""
    return tuple(operand for operand in operands if isinstance(operand, NkiTensor))


def resolve_engine(asked: Engine, default: str) -> str:
    """Name of the engine that executes: the one asked for, or the instruction's default for `engine.unknown`."""
    return default if asked is Engine.unknown else asked.name
