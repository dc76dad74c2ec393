"""Costs of GpSimd."""

from __future__ import annotations

from nki_hf.chips import Chip
from nki_hf.sim.stream.events import Event
from nki_hf.timing.costs.control import CONTROL, sync_cost
from nki_hf.timing.costs.cost import Cost
from nki_hf.timing.costs.operands import free_elements, port_factor

__all__ = ["gpsimd_cost"]


def gpsimd_cost(event: Event, chip: Chip) -> Cost:
    """The cost of an instruction of GpSimd."""
    regions = (*event.writes, *event.reads)
    if event.opcode in CONTROL:
        return sync_cost(event, chip)
    elements = float(free_elements(regions))
    if event.opcode in ("tensor_tensor", "scalar_tensor_tensor"):
        elements *= chip.gpsimd_tensor_tensor_cycles
    elif event.opcode == "memset":
        elements *= chip.gpsimd_memset_cycles
    elif event.opcode == "tensor_partition_reduce":
        elements *= event.reads[0].partitions
    elif event.opcode == "topk":
        elements = chip.gpsimd_topk_cycles * free_elements(event.reads) + free_elements(event.writes)
    stream = max(elements * port_factor(regions, chip), chip.min_issue_cycles)
    busy = (chip.gpsimd_start_cycles + stream) / chip.gpsimd_ghz
    return Cost(busy_ns=busy, done_ns=busy + chip.gpsimd_latency_ns, sbuf_ns=busy)
