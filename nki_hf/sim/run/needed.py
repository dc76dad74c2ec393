"""Which computations of a recorded launch a replay needs.

A replay leaves out

* what only fills tiles that nobody reads: moves whose readers read what was moved (sim/tensors/origins.py);
* clearing rows that loads overwrite before anybody reads them;
* what follows from constants and from small integer inputs (bounds, lengths) alone, if those are what they were in the last
  replay: it lies in the program's memory, unless what only the recorded run did has overwritten it there.

All need to know of every computation which allocations it reads and writes. Where that is not so (loops of run time, cores
that meet, computations that belong to no instruction) nothing is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from nki_hf.sim.execution.actions import Access, Action
from nki_hf.sim.execution.moves import Clear, Load, LoadOrClear, LoadOrZero
from nki_hf.sim.execution.run import Run

__all__ = ["needed", "unsettled"]


class Needed(NamedTuple):
    """What every replay of a run needs.

    Attributes:
      pairs: the computations, in order.
      lost: numbers of the buffers that do not hold their last needed value when the recorded run is over: a computation that
        no replay needs wrote to them, or a buffer that was made later, and filled, has their memory.
    """

    pairs: list[tuple[Action, Access]]
    lost: frozenset[int]


def needed(run: Run, outputs: Collection[int]) -> Needed | None:
    """The computations whose results reach the buffers `outputs`, HBM or a register; None if that is not known."""
    (machine,) = run.cores
    known = [access for access in machine.accesses if access is not None]
    if len(known) < len(machine.actions):
        return None
    live = {buffer.number for buffer in run.buffers if not buffer.on_chip} | set(outputs)
    kept, wanted = [], set[str]()
    owners = {memory: number for number, memory in sorted(run.memory.items())}
    lost = {number for number, memory in run.memory.items() if owners[memory] != number}
    for action, access in zip(reversed(machine.actions), reversed(known), strict=True):
        if not access.writes or wanted & access.changes or any(number in live for number in access.writes):
            live.update(access.reads)
            wanted |= access.takes
            kept.append((action, access))
        else:
            lost.update(access.writes)
    return Needed(_cleared(kept[::-1], run), frozenset(lost))


def _cleared(pairs: list[tuple[Action, Access]], run: Run) -> list[tuple[Action, Access]]:
    """The same, with every tile that is cleared and then loaded by rows cleared only where a load moves nothing."""
    kept: list[tuple[Action, Access] | None] = [*pairs]
    for place, (action, access) in enumerate(pairs):
        if not isinstance(action, Clear) or len(access.writes) != 1 or access.writes[0] in access.reads:
            continue
        (number,) = access.writes
        if action.target.ndim != 2 or action.target.size != run.buffers[number].elements or not run.buffers[number].on_chip:
            continue
        loads = _loads(pairs, place, action, access)
        zero = bool(loads) and _stays_zero(pairs, action, access, run, {place, *(later for later, _ in loads)})
        for later, load in loads:
            reads = (*pairs[later][1].reads, *access.reads)
            kept[later] = (_zeroed(load) if zero else load, Access(reads, access.writes, pairs[later][1].free))
            kept[place] = None
    return [pair for pair in kept if pair is not None]


def _stays_zero(pairs: Sequence[tuple[Action, Access]], clear: Clear, access: Access, run: Run, mine: Collection[int]) -> bool:
    """True if the clearing is with a constant 0, and nothing but the computations `mine` writes the memory of its tile."""
    memory = run.memory
    if not all(run.buffers[number].on_chip for number in access.reads):
        return False
    sources, target = {memory[number] for number in access.reads}, memory[access.writes[0]]
    for place, (action, other) in enumerate(pairs):
        written = {memory[number] for number in other.writes}
        if target in written and place not in mine:
            return False
        if sources & written and not (isinstance(action, Clear) and not action.source.ndim and not action.source):
            return False
    return not clear.source.any()


def _zeroed(load: LoadOrClear) -> LoadOrClear | LoadOrZero:
    """The load into rows that are zero where it does not reach, if it goes by rows into a run of memory."""
    target, rows = load.load.target, load.load.rows
    if rows is None or not target.flags.c_contiguous:
        return load
    return LoadOrZero(rows, target.reshape(-1))


def _loads(
    pairs: Sequence[tuple[Action, Access]], place: int, clear: Clear, access: Access
) -> Sequence[tuple[int, LoadOrClear]]:
    """The loads that follow a clearing and together overwrite each row once, before anything else touches the tile."""
    (number,), target = access.writes, clear.target
    found: list[tuple[int, LoadOrClear]] = []
    rows: set[int] = set()
    for later in range(place + 1, len(pairs)):
        action, other = pairs[later]
        if any(source in other.writes for source in access.reads):
            return ()
        if number not in other.reads and number not in other.writes:
            continue
        if not isinstance(action, Load) or number in other.reads or action.target.shape[1:] != target.shape[1:]:
            return ()
        begin, rest = divmod(_address(action.target) - _address(target), target.strides[0])
        mine = set(range(begin, begin + action.target.shape[0]))
        if rest or action.target.strides != target.strides or mine & rows or not mine <= set(range(target.shape[0])):
            return ()
        rows |= mine
        found.append((later, LoadOrClear(action, clear, begin, begin + action.target.shape[0])))
        if len(rows) == target.shape[0]:
            return found
    return ()


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def unsettled(found: Needed, run: Run, settled: Collection[int]) -> list[Action]:
    """The computations that depend on more than constants and the buffers `settled`, or whose results are lost by then."""
    pairs, memory = found.pairs, run.memory
    # Memory, not allocations: tiles that are alive one after the other may share it.
    moving = {memory[buffer.number] for buffer in run.buffers if buffer.role == "input" and buffer.number not in settled}
    moving |= {memory[number] for number in run.refills}
    rows = [(access, [memory[n] for n in access.reads], [memory[n] for n in access.writes]) for _, access in pairs]

    def moves(access: Access, reads: list[int], writes: list[int]) -> bool:
        return access.free or not moving.isdisjoint(reads) or not moving.isdisjoint(writes)

    before = -1
    while len(moving) != before:
        before = len(moving)
        read: set[int] = set()
        wanted = {number for row in rows if moves(*row) for number in row[0].reads} & found.lost
        for row in rows:
            access, reads, writes = row
            if moves(*row):
                moving.update(writes)
                read.update(reads)
            else:
                # Two constants, one after the other, in memory that is read in between: only the later one would be left.
                moving.update(read.intersection(writes))
                moving.update(memory[number] for number in access.writes if number in wanted)
    return [action for (action, _), row in zip(pairs, rows, strict=True) if moves(*row)]
