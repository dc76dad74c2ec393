"""The schedule of an event stream on a chip: start and end of every instruction, all simulated. Rules: docs/timing.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from nki_hf.chips import Chip
from nki_hf.sim.stream.access_table import AccessTable
from nki_hf.sim.stream.events import Event
from nki_hf.sim.uncollected import uncollected
from nki_hf.timing.banks import best_in_window
from nki_hf.timing.costs import Cost
from nki_hf.timing.excerpt import excerpt
from nki_hf.timing.lookahead import Lookahead
from nki_hf.timing.occupied import occupied
from nki_hf.timing.program_order import run_in_program_order
from nki_hf.timing.spills import NO_SPILLS, Spills, spilled
from nki_hf.timing.tiles import Tiles
from nki_hf.timing.times import REASONS, Floats, Times
from nki_hf.timing.window_order import run_in_window
from nki_hf.timing.workload import Workload, prepare

__all__ = ["DEFAULT_WINDOW", "Schedule", "floor_ns", "of_pieces", "reschedule", "schedule", "schedule_below"]

DEFAULT_WINDOW = 64
"""Instructions a queue may be reordered within unless told otherwise; the evidence is in docs/timing.md."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When everything happens, in simulated ns from the launch of the kernel.

    Attributes:
      chip: the chip.
      window: None for program order, else the window of the modelled compiler.
      work: costs, edges and queues, per event.
      start_ns: an instruction starts; a DMA is triggered.
      moves_ns: the first byte of a DMA leaves; the same as `start_ns` for other instructions.
      free_ns: the engine (the DMA queue) can start its next instruction.
      done_ns: the result can be used.
      reason: why it did not start earlier, a position in `REASONS`.
      cause: the event that it waited for, -1 if none.
      total_ns: launch to completion, with the kernel's fixed cost.
      spills: what the compiler would have added because memory overflowed; its events are part of `events`.
      throttled: 16-bit matmuls were dense enough for the Tensor engine to be clocked down at least once.
      banks: banks of PSUM that the compiler was given, of all that there are; None = all.
      stack: SBUF tiles had addresses before anything was reordered.
    """

    chip: Chip
    window: int | None
    work: Workload
    start_ns: Floats
    moves_ns: Floats
    free_ns: Floats
    done_ns: Floats
    reason: np.ndarray[tuple[int], np.dtype[np.int8]]
    cause: np.ndarray[tuple[int], np.dtype[np.int64]]
    total_ns: float
    spills: Spills
    throttled: bool
    banks: int | None
    stack: bool = False

    @property
    def order(self) -> str:
        """`program` or `window(n)`."""
        return "program" if self.window is None else f"window({self.window})"

    @property
    def events(self) -> Sequence[Event]:
        """The event stream."""
        return self.work.events

    def occupied(self) -> dict[tuple[int, str], list[tuple[float, int]]]:
        """Bytes per partition in use over time, `(simulated ns, bytes)` at each change, by `(core, space)`."""
        return self._occupied

    @cached_property
    def _occupied(self) -> dict[tuple[int, str], list[tuple[float, int]]]:
        dma = np.array([queue.engine == "dma" for queue in self.work.queues], bool)[self.work.queue_of]
        return occupied(self.work, self.start_ns.tolist(), np.where(dma, self.done_ns, self.free_ns).tolist())

    @cached_property
    def high_water_bytes(self) -> dict[tuple[int, str], int]:
        """Most bytes per partition in use at one time, by `(core, space)`."""
        return {key: max((level for _, level in line), default=0) for key, line in self._occupied.items()}

    def reasons(self) -> list[str]:
        """`reason` in words."""
        return [REASONS[code] for code in self.reason]


def schedule(
    events: Sequence[Event],
    chip: Chip,
    *,
    window: int | None = DEFAULT_WINDOW,
    overflow: str = "spill",
    cores: int | None = None,
    stack: bool = False,
) -> Schedule:
    """The schedule of `events` on `chip`.

    Args:
      events: a run's events.
      chip: the chip; it need not be the one the run was checked against.
      window: None runs every queue as written, n lets the compiler reorder within n instructions of each queue.
      overflow: what happens to tiles that do not fit: `spill` (see timing/spills.py) or `error`.
      cores: how many cores of the launch share HBM; default: those that have events.
      stack: the kernel is compiled with NKI's stack allocator: SBUF tiles without an address get one in the order of the
        source, and what takes the bytes of an earlier tile waits for what uses that one (law `stack-allocator`).

    Raises:
      MemoryError: SBUF or PSUM overflows and `overflow` is `error`, or nothing that may be spilled is left.
    """
    if overflow not in ("spill", "error"):
        raise ValueError(f"overflow={overflow!r} is not known: it is spill or error.")
    with uncollected():
        table, spills = AccessTable(events), NO_SPILLS
        tiles = Tiles.of(table, chip)
        if overflow == "spill" and tiles.overflows():
            cores = len({core for core, _, _, _ in table.heads}) if cores is None else cores
            events, spills = spilled(events, chip)
            table = AccessTable(events)
            tiles = Tiles.of(table, chip)
        stack = stack and bool(chip.stack_allocator)
        work = prepare(events, chip, reorder=window is not None, cores=cores, table=table, tiles=tiles, stack=stack)
        times, banks = _run(work, window)
        return replace(_finished(work, times, window, spills, banks), stack=stack)


def schedule_below(
    events: Sequence[Event],
    chip: Chip,
    limit_ns: float,
    *,
    window: int | None = DEFAULT_WINDOW,
    cores: int | None = None,
) -> tuple[float, Schedule | None]:
    """`floor_ns` of the events, and their schedule unless the floor is `limit_ns` or more; errors as of `schedule`."""
    with uncollected():
        work = prepare(events, chip, reorder=window is not None, cores=cores)
        floor = floor_ns(work)
        if floor >= limit_ns:
            return floor, None
        spills = NO_SPILLS
        if work.tiles.overflows():
            events, spills = spilled(work.events, work.chip)
            work = prepare(events, work.chip, reorder=window is not None, cores=work.cores)
        times, banks = _run(work, window)
        return floor, _finished(work, times, window, spills, banks)


def floor_ns(work: Workload) -> float:
    """Simulated ns that no order of these instructions can be below: the fixed cost of a launch, and what the busiest engine
    executes, or the DMA engines move, without a gap.

    The longest instruction of an engine counts nothing: its last result may be there before the engine is free.
    """
    engines = np.array([queue.engine != "dma" for queue in work.queues], bool)
    count = len(work.queues)
    busy = np.bincount(work.queue_of, weights=work.cost("busy_ns"), minlength=count) if len(work.kind) else np.zeros(count)
    longest = np.zeros(count)
    np.maximum.at(longest, work.queue_of, work.cost("busy_ns") if len(work.kind) else 0.0)
    computing = float((busy - longest)[engines].max(initial=0.0))
    cores = np.array([queue.core for queue in work.queues], np.int64)
    moved = work.cost("payload_ns") * work.cost("engines") if len(work.kind) else np.zeros(0)
    moving = np.bincount(cores[work.queue_of], weights=moved) if len(moved) else np.zeros(1)
    return max(computing, float(moving.max(initial=0.0)) / float(work.chip.dma_engines)) + float(work.chip.kernel_fixed_ns)


def reschedule(scheduled: Schedule, cost_of_kind: list[Cost]) -> Schedule:
    """The same events in the same order option with other costs, one per `Workload.kind`.

    PSUM has the banks that `scheduled` was given; where that ends no earlier than `scheduled`, all numbers of banks are tried.
    """
    work = replace(scheduled.work, cost_of_kind=cost_of_kind)
    with uncollected():
        if scheduled.window is not None:
            ahead = Lookahead(work, scheduled.window)
            own = run_in_window(ahead, scheduled.banks)
            again = _finished(work, own, scheduled.window, scheduled.spills, scheduled.banks)
            if again.total_ns < scheduled.total_ns:
                return again
            times, banks = best_in_window(ahead, {scheduled.banks: own})
        else:
            times, banks = _run(work, None)
        return _finished(work, times, scheduled.window, scheduled.spills, banks)


def of_pieces(scheduled: Schedule, pieces: int, share: float) -> Schedule:
    """A window's schedule of evenly spread pieces of a schedule's instructions, in the banks that it was given.

    Args:
      scheduled: the whole's schedule; its window is not None.
      pieces, share: as of `excerpt`.
    """
    if scheduled.window is None:
        raise ValueError("order=program has no window: pieces are taken of a window's schedule.")
    work = excerpt(scheduled.work, pieces, share)
    with uncollected():
        times = run_in_window(Lookahead(work, scheduled.window), scheduled.banks)
        return _finished(work, times, scheduled.window, scheduled.spills, scheduled.banks)


def _finished(work: Workload, times: Times, window: int | None, spills: Spills, banks: int | None) -> Schedule:
    chip = work.chip
    fixed = float(chip.kernel_fixed_ns)
    done = times.done + fixed
    busy = work.cost("busy_ns")
    return Schedule(
        chip=chip,
        window=window,
        work=work,
        start_ns=times.start + fixed,
        moves_ns=times.moves + fixed,
        free_ns=times.free + fixed,
        done_ns=done,
        reason=times.reason,
        cause=times.cause,
        total_ns=float(done.max(initial=fixed)),
        spills=spills,
        throttled=bool(np.any(times.free - times.start > busy * (1 + 1e-9) + 1e-6)),
        banks=banks,
    )


def _run(work: Workload, window: int | None) -> tuple[Times, int | None]:
    """The times in program order, or the best of a window's schedules; and the number of banks if they are fewer than all."""
    if window is None:
        return run_in_program_order(work, _order(work)), None
    return best_in_window(Lookahead(work, window), {})


def _order(work: Workload) -> list[int] | None:
    """The stream's order, with the cores taken in turns so that no meeting waits for an event that comes later."""
    if len({queue.core for queue in work.queues}) < 2:
        return None
    rank = [0] * len(work.kind)
    latest: dict[int, int] = {}
    for i in range(len(work.kind)):
        core = work.events[i].core
        meets = work.events[i].opcode in ("core_barrier", "sendrecv")
        latest[core] = latest.get(core, 0) + meets
        rank[i] = 2 * latest[core] - meets
    return sorted(range(len(rank)), key=lambda i: (rank[i], i))
