"""Machine: one simulated core while a kernel runs on it. Every instruction passes through `issue`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nki_hf.sim.dtypes import DType, as_dtype, widen
from nki_hf.sim.execution.loops import Loop, leaves
from nki_hf.sim.execution.numerics import engine_numerics
from nki_hf.sim.execution.storage import BytePool, Storage, fill_sentinel
from nki_hf.sim.faults import fault, kernel_position
from nki_hf.sim.options import SimOptions
from nki_hf.sim.stream.events import Buffer, Event, Region

__all__ = ["Access", "Machine", "Refill", "Run", "current_machine", "running_machine"]

Action = Callable[[], object]
"""One instruction's computation, bound to its operands' memory."""

_thread = threading.local()

_PURE = frozenset(
    "iota memset affine_select tensor_copy tensor_tensor tensor_scalar scalar_tensor_tensor tensor_reduce activation "
    "nc_transpose nc_matmul dma_copy".split()
)
"""Instructions that compute the same again from the same operands, unless an operand is a run-time scalar or an accumulator."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a recorded computation touches.

    Attributes:
      reads, writes: numbers of the buffers whose values it takes and changes.
      free: True if it may give something else from the same values (registers, random numbers): it always counts as new.
      takes, changes: names of what it takes and changes that no buffer holds: the accumulators of an engine. (What draws random
        numbers is in no recording that leaves anything out.)
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    free: bool
    takes: frozenset[str] = frozenset()
    changes: frozenset[str] = frozenset()


_NOTHING: frozenset[str] = frozenset()


def _state_of(engine: str, attrs: Mapping[str, Any], results: int) -> tuple[frozenset[str], frozenset[str]]:
    """Which accumulators an instruction with so many results takes, and which it changes."""
    command = attrs.get("reduce_cmd")
    if command is None:
        return _NOTHING, _NOTHING
    registers = frozenset([f"{engine}.registers"])
    if command == "idle":  # the second result is what they hold
        return registers if results > 1 else _NOTHING, _NOTHING
    return registers if command == "reduce" else _NOTHING, registers


class Refill(NamedTuple):
    """An allocation of which another replay may write more or less (see sim/run/refills.py).

    Attributes:
      buffer, data: what it is, and its bytes.
      place, place_in_order: how many actions its core, and all cores, had when it was made.
    """

    buffer: Buffer
    data: np.ndarray[Any, Any]
    place: int
    place_in_order: int


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
                access = Access(
                    tuple([buffer.number for buffer in sources]),
                    tuple([region.buffer.number for region in writes]),
                    free or opcode not in _PURE or bool((attrs or {}).get("reduce")) or not writes,
                    *_state_of(engine, attrs or {}, len(writes)),
                )
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


def running_machine() -> Machine | None:
    """The machine whose kernel runs in this thread, or None."""
    return getattr(_thread, "machine", None)


def current_machine(what: str = "this operation") -> Machine:
    """The machine whose kernel runs in this thread; a RuntimeError names `what` was tried outside of one."""
    machine = running_machine()
    if machine is None:
        raise RuntimeError(f"{what} was called outside a running kernel: call it from a function launched with nki.jit.")
    return machine


class entered:  # noqa: N801  (a context manager used like a function)
    """Make `machine` the current one of this thread for a block of code, even if it raises.

    NumPy behaves as sim/execution/numerics.py says inside.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._numerics = engine_numerics()

    def __enter__(self) -> Machine:
        self._numerics.__enter__()
        self._previous = running_machine()
        _thread.machine = self._machine
        return self._machine

    def __exit__(self, *exc: object) -> None:
        _thread.machine = self._previous
        self._numerics.__exit__(None, None, None)
