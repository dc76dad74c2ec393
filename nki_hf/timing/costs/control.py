"""Costs of control instructions: loops, barriers between cores, registers."""

from __future__ import annotations

from nki_hf.chips import Chip
from nki_hf.sim.stream.events import Event
from nki_hf.timing.costs.cost import Cost

__all__ = ["CONTROL", "sync_cost"]

CONTROL = frozenset(
    "loop_entry loop_turn core_barrier register_alloc register_move register_load register_store scalar_load "
    "scalar_store".split()
)
"""Instructions that steer, on whichever engine they are."""


def sync_cost(event: Event, chip: Chip) -> Cost:
    """The cost of an instruction that only steers."""
    if event.opcode == "loop_turn":
        ns = chip.loop_turn_ns
    else:
        ns = chip.semaphore_instruction_ns if event.opcode == "core_barrier" else chip.register_move_ns
    return Cost(busy_ns=ns, done_ns=ns)
