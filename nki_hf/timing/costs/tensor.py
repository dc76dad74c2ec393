"""Costs of the Tensor engine."""

from __future__ import annotations

from nki_hf.chips import Chip
from nki_hf.sim.stream.events import Event
from nki_hf.timing.costs.cost import Cost

__all__ = ["tensor_cost"]


def tensor_cost(event: Event, chip: Chip) -> Cost:
    """The cost of a matmul or a transpose."""
    moves_data = event.opcode == "nc_transpose" or bool(event.attrs.get("is_transpose"))
    stationary, moving = event.reads[0], event.reads[min(1, len(event.reads) - 1)]
    if event.opcode == "nc_transpose":  # the data is the stationary operand, an identity moves: one column per data row
        columns, wide = stationary.partitions, stationary
    else:
        columns, wide = moving.free_elements, moving
    float32 = wide.dtype.itemsize == 4 and wide.dtype.name == "float32"
    if event.attrs.get("perf_mode") == "double_row":
        columns = int(columns / chip.tensor_double_row_speedup)
    cycles = float(max(columns, chip.tensor_min_cycles))
    if float32 and moves_data and chip.generation > 2:
        cycles *= chip.tensor_fp32_transpose_cycles
    elif float32:
        one_pass = bool(event.attrs.get("onezero"))
        pairs = 1 if one_pass and not moves_data else 2
        cycles = cycles * chip.tensor_fp32_cycles * pairs / 2 + pairs * (
            chip.tensor_fp32_weight_load_cycles + chip.tensor_fp32_pass_overhead_cycles
        )
    rows = 2 if event.attrs.get("perf_mode") == "double_row" else 1  # both operands hold two rows: one of them counts once
    flops = 0 if moves_data else 2 * stationary.elements * moving.free_elements // rows
    stream = cycles / chip.tensor_ghz
    return Cost(
        busy_ns=stream,
        done_ns=stream + chip.tensor_latency_ns,
        weight_ns=chip.tensor_weight_load_cycles / chip.tensor_ghz,
        flops=flops,
        paced=bool(flops) and moving.dtype.itemsize <= 2,
    )
