"""What loops of run time forbid: the faults of a kernel that leaves one, or takes out of one what lives for a turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nki_hf.errors import FaultRecord, KernelFault
from nki_hf.sim.faults import fault
from nki_hf.sim.stream.dependencies import MEETINGS

if TYPE_CHECKING:
    from nki_hf.sim.execution.loops import Loop
    from nki_hf.sim.execution.machine import Machine
    from nki_hf.sim.execution.run import Run

__all__ = ["check_closed", "check_edges", "check_trip_counts", "check_turns", "leaves"]


def check_turns(loop: Loop, count: int, most: int) -> None:
    """A fault if a loop has more turns than the options allow: most likely it would never end."""
    if count > most:
        fault(
            "argument",
            loop.what,
            f"the loop {loop.name} has {count:,} turns or more",
            limit=f"a loop of more than {most:,} turns counts as one that never ends",
            advice="Check its bounds, or what its body writes to the register that it goes by; if that many turns are meant, "
            "pass SimOptions(most_turns=N)",
        )


def check_closed(run: Run) -> None:
    """A fault if the kernel left a loop by break or return: its body would run in the compiler's loop nonetheless."""
    for machine in run.cores:
        for loop in machine.loops:
            raise KernelFault(
                FaultRecord(
                    kind="unsupported",
                    instruction=loop.what,
                    message=f"the loop {loop.name} was left by break or return",
                    limit="the body of a loop of run time runs to its end",
                    advice="Loop with nl.while_loop",
                    file=loop.file,
                    line=loop.line,
                )
            )


def check_trip_counts(run: Run) -> None:
    """A fault if the options count turns of a loop that the launch does not have: a misspelt name would count for nothing."""
    counts = run.options.trip_counts
    unknown = [] if counts is None or isinstance(counts, int) else sorted(set(counts) - run.named)
    if unknown:
        raise ValueError(
            f"trip_counts={counts!r}: {', '.join(unknown)} is no loop of this launch, which has "
            f"{', '.join(sorted(run.named)) or 'none'}: name a loop by its body function or by file.py:line."
        )


def check_edges(machine: Machine, consumer: int, producers: Sequence[int]) -> None:
    """A fault if a dependency leads out of a loop's body or into another one, or to an instruction that is issued later."""
    homes, loops = machine.run.homes, machine.loops
    home = homes.get(consumer)
    if home is not None and home not in loops:
        leaves("depends_on", "the instruction that waits", home.name)
    around = loops[: loops.index(home) + 1] if home is not None else []
    for producer in producers:
        other = homes.get(producer)
        if other is not None and other not in loops:
            leaves("depends_on", "the instruction that is waited for", other.name)
        if other is not None and other not in around:
            fault(
                "unsupported",
                "depends_on",
                f"an instruction outside of the loop {other.name} waits for one in its body",
                limit="no dependency leads out of the body of a loop",
                advice="Drop it: what follows a loop waits for the whole loop",
            )
        if producer >= 0 and machine.run.events[producer].opcode in MEETINGS and producer != consumer:
            continue  # its event is recorded when the other core has come, behind what was issued meanwhile
        if abs(producer) >= abs(consumer) and (producer < 0) == (consumer < 0):
            what = "waits for itself" if producer == consumer else "waits for one that is issued after it"
            fault(
                "unsupported",
                "depends_on",
                f"an instruction {what}",
                limit="instructions run as they are issued, so that a producer comes before its consumer",
                advice="Issue the producer first",
            )


def leaves(opcode: str, what: str, loop: str) -> Any:
    """The fault of something that was made in a loop's body and is used behind it."""
    fault(
        "unsupported",
        opcode,
        f"{what} was made in the body of the loop {loop}, which has ended",
        limit="what a body makes lives for one turn",
        advice="Make it before the loop, or use it inside",
    )
