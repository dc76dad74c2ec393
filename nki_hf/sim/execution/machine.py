"""Machine: one simulated core while a kernel runs on it. Every instruction passes through `issue`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nki_hf.sim.dtypes import DType, as_dtype, widen
from nki_hf.sim.execution.actions import Access, Action, access_of
from nki_hf.sim.execution.loop_rules import leaves
from nki_hf.sim.execution.loops import Loop
from nki_hf.sim.execution.storage import BytePool, Refill, Storage, fill_sentinel
from nki_hf.sim.faults import fault, kernel_position
from nki_hf.sim.stream.events import Buffer, Event, Region

if TYPE_CHECKING:
    from nki_hf.sim.execution.run import Run

__all__ = ["Machine"]


class Machine:
    """One core of a run: its memory pool, its recorded actions and its engine state.

    Attributes:
      run: the launch this core belongs to.
      core: program id, 0 or 1.
      actions: recorded computations in program order (only if `options.record`); `accesses`: what each touches, None = unknown.
      state: engine state that lives between instructions (reduce registers, random state), by name.
      in_order: True inside `nl.no_reorder()`.
      loops: the loops of run time whose bodies are being recorded, outermost first.
      after_loop: the event that later instructions of this core wait for, a loop's last barrier.
      since_loop: events of this core since then.
      pending: exchanges with the other core that it has not come to yet (see sim/execution/cores.py).
    """

    def __init__(self, run: Run, core: int) -> None:
        self.run = run
        self.core = core
        self.options = run.options
        self.chip = run.options.chip
        self.actions: list[Action] = []
        self.accesses: list[Access | None] = []
        self.state: dict[str, Any] = {}
        self.pool = BytePool()
        if self.options.record:
            self.pool.keep_small()
        self.shared_count = 0
        self.in_order = False
        self.pending: list[Any] = []
        self.loops: list[Loop] = []
        self.after_loop: tuple[int, ...] = ()
        self.since_loop: list[int] = []

    def allocate(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        space: str,
        *,
        name: str = "",
        role: str = "scratch",
        address: tuple[int, int] | None = None,
        data: np.ndarray[Any, Any] | None = None,
        position: tuple[str, int] | None = None,
    ) -> Storage:
        """New memory of `shape` in `space`, sentinel-filled unless `data` (raw `uint8` bytes) is given; `position` is the
        kernel's file and line, if they are known.

        The n-th shared_hbm allocation of every core is the same memory; one of a loop's body is a fault, unless it is a
        constant. Capacity is judged from the event stream when the run ends (see sim/stream/memory.py), because only then is
        each tile's last reader known.
        """
        shared = space == "shared_hbm" and role != "input"
        if shared and self.loops and role != "constant":
            fault(
                "unsupported",
                "ndarray",
                f"shared_hbm in the body of the loop {self.loops[-1].name}",
                limit="what a body makes lives for one turn",
                advice="Allocate it before the loop",
            )
        if shared:
            turn, self.shared_count = self.shared_count, self.shared_count + 1
            if turn < len(self.run.shared):
                return self._again(self.run.shared[turn], shape, dtype)
        file, line = position or kernel_position(2)  # this, and what allocates
        number = len(self.run.buffers)
        buffer = Buffer(
            number=number,
            space=space,
            name=name or f"{space}{number}",
            shape=shape,
            dtype=dtype,
            core=None if shared or role == "input" else self.core,
            role=role,
            address=address,
            file=file,
            line=line,
        )
        self.run.buffers.append(buffer)
        if self.loops and role != "constant":  # a constant is there before the launch
            self.loops[-1].buffers.append(buffer)
        known = data is not None
        pool = None
        if data is None and self.options.values:
            nbytes = buffer.elements * dtype.dtype.itemsize
            pool = self.pool if buffer.on_chip else None
            data = pool.take(nbytes) if pool is not None else np.empty(nbytes, np.uint8)
        tracked = not known and (space == "psum" or self.options.uninitialized == "error")
        storage = Storage(buffer, data, tracked=tracked, pool=pool)
        if self.options.record:
            self.run.memory[number] = id(data)
            if data is not None and not known and not self.loops:
                storage.refill = Refill(buffer, data, len(self.actions), len(self.run.order))
        if not known:
            storage.fill_sentinel()
            if self.loops and data is not None:
                self.action(lambda: fill_sentinel(data, dtype))  # each turn has memory of its own
        if shared:
            self.run.shared.append(storage)
        return storage

    def allocate_again(self, like: Buffer) -> Storage:
        """The same on shapes alone for a tile without a name, outside of loops: another of what `allocate` made for `like`."""
        number, space = len(self.run.buffers), like.space
        buffer = Buffer(
            number, space, f"{space}{number}", like.shape, like.dtype, like.core, like.role, like.address, like.file, like.line
        )
        self.run.buffers.append(buffer)
        return Storage(buffer, None, tracked=space == "psum")

    def issue(
        self,
        opcode: str,
        *,
        engine: str,
        reads: tuple[Region, ...],
        writes: tuple[Region, ...],
        action: Action | None,
        queue: str = "",
        attrs: Mapping[str, Any] | None = None,
        position: tuple[str, int] | None = None,
        taken: tuple[Storage, ...] | None = None,
        free: bool = False,
    ) -> Event | None:
        """Record and execute one instruction whose operands have been checked.

        Args:
          opcode: public name of the instruction.
          engine: one of `events.ENGINES`.
          reads, writes: the regions touched, in operand order.
          action: the computation, closed over arrays that alias the operands' memory; None if it only has a record.
          queue: triggering queue of a DMA; default is the engine.
          attrs: see `Event.attrs`.
          position: file and line of the kernel, if it is not the one that runs now.
          taken: whose values the computation reads, if not those of `reads`.
          free: True if an operand is a run-time scalar.
        """
        run = self.run
        event, buffers, closed = None, run.buffers, run.closed
        count = len(buffers)
        for region in (*reads, *writes):
            buffer = region.buffer
            number = buffer.number
            if number >= count or buffers[number] is not buffer:
                fault(
                    "argument",
                    opcode,
                    f"{buffer.name} was allocated in another launch",
                    limit="operands belong to the launch that uses them",
                    advice="Pass its values as an argument of this launch",
                )
            if closed and number in closed:
                leaves(opcode, buffer.name, closed[number])
        for region in writes:
            if region.buffer.role == "input":
                run.modified.add(region.buffer.number)
        if self.options.events:
            file, line = position or kernel_position(3)  # this, begin.issue, the instruction
            if self.in_order:
                attrs = {**(attrs or {}), "no_reorder": True}
            events = run.events
            if self.loops:
                run.templates += 1
                index = -run.templates
                run.homes[index] = self.loops[-1]
                events = self.loops[-1].nodes  # type: ignore[assignment]  # of one turn, and loops within it
            else:
                index = len(events)
                self.since_loop.append(index)
                if self.after_loop:
                    attrs = {**(attrs or {}), "depends_on": ((attrs or {}).get("depends_on", ()) + self.after_loop)}
            event = Event(index, self.core, engine, queue or engine, opcode, reads, writes, file, line, attrs or {})
            events.append(event)
        if action is not None:
            access = None
            if self.options.record and not self.loops:
                sources = [item.buffer for item in taken] if taken is not None else [region.buffer for region in reads]
                targets = [region.buffer for region in writes]
                access = access_of(opcode, engine, sources, targets, attrs or {}, free=free)
            self.action(action, access)
        return event

    def element(self, dtype: Any) -> DType:
        """The element type that this run stores for `dtype`: low-precision types widened unless `options.precise`."""
        found = as_dtype(dtype)
        return found if self.options.precise else widen(found)

    def action(self, action: Action, access: Access | None = None) -> None:
        """Execute a computation now and, in a recorded run, at this place of every replay; no event is issued.

        `access` says what it touches; None: nobody knows.
        """
        if self.options.values and self.loops:
            self.loops[-1].actions.append(action)
        elif self.options.values:
            action()
            if self.options.record:
                self.actions.append(action)
                self.accesses.append(access)
                self.run.order.append(action)

    def first_action(self, action: Action) -> None:
        """Execute a computation before everything that is being recorded: the first value of an engine's state."""
        loops, self.loops = self.loops, []
        try:
            self.action(action)
        finally:
            self.loops = loops

    def _again(self, storage: Storage, shape: tuple[int, ...], dtype: DType) -> Storage:
        if storage.buffer.shape != shape or storage.buffer.dtype != dtype:
            fault(
                "output",
                "ndarray",
                f"shared_hbm tensor {storage.buffer.name} is {list(storage.buffer.shape)} {storage.buffer.dtype} on core 0 "
                f"and {list(shape)} {dtype} on core {self.core}",
                limit="both cores must allocate the same shared_hbm tensors in the same order",
            )
        return storage
