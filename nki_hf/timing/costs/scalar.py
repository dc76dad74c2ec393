"""Costs of the Scalar engine: activation tables, and accumulators that it reads with an instruction of its own."""

from __future__ import annotations

from nki_hf.chips import Chip
from nki_hf.sim.stream.events import Event
from nki_hf.timing.costs.cost import Cost
from nki_hf.timing.costs.operands import any_psum, dynamic_cycles, free_elements, port_factor, reads_out

__all__ = ["scalar_cost"]

_ANY_TABLE = frozenset("copy identity abs square add multiply subtract relu prelu maximum minimum bypass".split())
_AS_SLOW_AS_A_TABLE = frozenset(("square",))  # measured with the table functions, though every table has it


def scalar_cost(event: Event, chip: Chip) -> Cost:
    """The cost of an instruction of the Scalar engine."""
    regions = (*event.writes, *event.reads)
    table = _table(event)
    elements = float(free_elements(regions))
    from_psum = event.reads[0].buffer.space == "psum" and event.writes[0].dtype.itemsize <= 2
    if table in ("silu", "silu_dx"):
        elements *= chip.scalar_silu_cycles
    elif table and from_psum:
        elements *= chip.scalar_table_psum_cycles
    elif not table and all(r.dtype.itemsize <= 2 for r in (event.writes[0], event.reads[0])):
        elements *= chip.scalar_copy_16bit_cycles
    cycles = dynamic_cycles(event, chip, elements * port_factor(regions, chip))
    stream = max(cycles, chip.min_issue_cycles) / chip.scalar_ghz
    psum = any_psum(regions)
    if table or _function(event) in _AS_SLOW_AS_A_TABLE:
        latency = chip.scalar_table_psum_latency_ns if from_psum else chip.scalar_table_latency_ns
    else:
        latency = chip.scalar_copy_psum_latency_ns if psum else chip.scalar_copy_sbuf_latency_ns
        if event.opcode == "activation" and len(event.reads) > 1:
            latency += chip.scalar_operand_latency_ns
    busy = max(cycles + chip.scalar_overhead_cycles, chip.min_issue_cycles) / chip.scalar_ghz
    psum_ns = busy if psum else 0.0  # the read-out takes the engine's registers, not PSUM
    if not reads_out(event):
        return Cost(busy_ns=busy, done_ns=stream + latency, table=table, psum_ns=psum_ns)
    read_at = stream + chip.scalar_reduce_start_ns
    return Cost(
        busy_ns=read_at + chip.scalar_reduce_readout_ns,
        done_ns=read_at + chip.scalar_reduce_latency_ns,
        output_ns=stream + latency,
        table=table,
        psum_ns=psum_ns,
    )


def _table(event: Event) -> str:
    """The activation table of a Scalar instruction; functions of `_ANY_TABLE` are in every table (assumed)."""
    name = _function(event)
    return "" if name in _ANY_TABLE else name


def _function(event: Event) -> str:
    """The function that an activation computes; empty for other instructions."""
    activates = event.opcode in ("activation", "activation_reduce", "activate2")
    return str(event.attrs.get("op", "")).rsplit(".", 1)[-1] if activates else ""
