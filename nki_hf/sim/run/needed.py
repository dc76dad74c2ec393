"""Which computations of a recorded launch a replay needs.

A replay leaves out

* what only fills tiles that nobody reads: moves whose readers read what was moved (sim/tensors/origins.py);
* what follows from constants and from small integer inputs (bounds, lengths) alone, if those are what they were in the last
  replay: it lies in the program's memory.

Both need to know of every computation which allocations it reads and writes. Where that is not so (loops of run time, cores
that meet, computations that belong to no instruction) nothing is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nki_hf.sim.execution.machine import Access, Run, Step

__all__ = ["needed", "unsettled"]


def needed(run: Run, outputs: Collection[int]) -> list[tuple[Step, Access]] | None:
    """The computations whose results reach the buffers `outputs`, HBM or a register, in order; None if that is not known."""
    (machine,) = run.cores
    known = [access for access in machine.accesses if access is not None]
    if len(known) < len(machine.steps):
        return None
    live = {buffer.number for buffer in run.buffers if not buffer.on_chip} | set(outputs)
    kept = []
    for step, access in zip(reversed(machine.steps), reversed(known), strict=True):
        if not access.writes or any(number in live for number in access.writes):
            live.update(access.reads)
            kept.append((step, access))
    return kept[::-1]


def unsettled(pairs: Sequence[tuple[Step, Access]], run: Run, settled: Collection[int]) -> list[Step]:
    """The computations that depend on more than constants and the buffers `settled`."""
    memory = run.memory
    # Memory, not allocations: tiles that are alive one after the other may share it.
    moving = {memory[buffer.number] for buffer in run.buffers if buffer.role == "input" and buffer.number not in settled}

    def moves(access: Access) -> bool:
        return access.free or any(memory[number] in moving for number in (*access.reads, *access.writes))

    before = -1
    while len(moving) != before:
        before = len(moving)
        for _, access in pairs:
            if moves(access):
                moving.update(memory[number] for number in access.writes)
    return [step for step, access in pairs if moves(access)]
