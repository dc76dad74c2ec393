"""Costs of the Vector engine: cycles per element, by instruction, element type and memory."""

from __future__ import annotations

from nki_hf.chips import Chip
from nki_hf.sim.stream.events import Event
from nki_hf.timing.costs.cost import Cost
from nki_hf.timing.costs.operands import any_psum, any_sbuf, dense, dynamic_cycles, free_elements, port_factor, reads_out

__all__ = ["vector_cost"]


def vector_cost(event: Event, chip: Chip) -> Cost:
    """The cost of an instruction of the Vector engine.

    Raises:
      ValueError: nothing is known about it.
    """
    opcode, regions = event.opcode, (*event.writes, *event.reads)
    elements = free_elements(regions)
    fast = False
    cycles_per_element = 1.0
    if opcode in ("tensor_copy", "tensor_scalar", "activation") or opcode == "cast":
        cycles_per_element, fast = _copy_cycles(event, chip)
    elif opcode == "tensor_tensor":
        cycles_per_element, fast = _two_tensors_cycles(event, chip)
    elif opcode in ("scalar_tensor_tensor", "tensor_copy_predicated", "select_reduce"):
        cycles_per_element = 1.0 if any_psum(event.reads) else _both_in_sbuf_cycles(chip)
    elif opcode == "tensor_tensor_scan":
        cycles_per_element = chip.vector_scan_cycles
    elif opcode == "reciprocal":
        cycles_per_element = chip.vector_reciprocal_cycles
    elif opcode == "exponential":
        narrow = all(r.dtype.itemsize == 2 for r in (event.writes[0], event.reads[0]))
        cycles_per_element = chip.vector_exponential_cycles if narrow else 1.0
    elif opcode == "memset":
        zero = bool(event.attrs.get("zero")) and event.writes[0].dtype.itemsize == 2
        cycles_per_element = chip.vector_memset_zero_16bit_cycles if zero else chip.vector_memset_cycles
    elif opcode == "bn_aggr":
        cycles_per_element = chip.vector_bn_aggr_cycles
    elif opcode == "quantize_mx":
        cycles_per_element = chip.vector_quantize_cycles
    elif opcode == "nc_transpose":
        cycles_per_element = chip.vector_transpose_cycles
    elif opcode not in _VECTOR_ONE_PER_CYCLE:
        raise ValueError(f"vector instruction {opcode!r} has no cost rule: add one to timing/costs/vector.py.")
    stream = dynamic_cycles(event, chip, elements * cycles_per_element * port_factor(regions, chip))
    readout = chip.vector_reduce_readout_cycles if reads_out(event) else 0
    overhead = chip.vector_psum_overhead_cycles if any_psum(regions) else chip.vector_overhead_cycles
    busy = max(stream + overhead + readout, chip.min_issue_cycles) / chip.vector_ghz
    latency = chip.vector_memset_latency_ns if opcode == "memset" else chip.vector_latency_ns
    return Cost(
        busy_ns=busy,
        done_ns=(max(stream, chip.min_issue_cycles) + readout) / chip.vector_ghz + latency,
        psum_ns=busy if any_psum(regions) else 0.0,
        sbuf_ns=busy if fast or (chip.sbuf_exclusive and any_sbuf(regions)) else 0.0,
    )


_VECTOR_ONE_PER_CYCLE = frozenset(
    "tensor_reduce tensor_scalar_reduce range_select tensor_scalar_cumulative max8 nc_find_index8 nc_match_replace8 "
    "nc_stream_shuffle bn_stats dropout rng rand2 rand_get_state rand_set_state set_rng_seed activation_reduce iota "
    "affine_select".split()
)


def _copy_cycles(event: Event, chip: Chip) -> tuple[float, bool]:
    source, target = event.reads[0], event.writes[0]
    if source.buffer.space != "sbuf" or target.buffer.space != "sbuf":
        return 1.0, False
    wide_in, wide_out = source.dtype.itemsize >= 4, target.dtype.itemsize >= 4
    if wide_in and wide_out:
        cycles = chip.vector_copy_fp32_cycles
    elif wide_in:
        cycles = chip.vector_copy_narrow_cycles
    elif wide_out:
        cycles = chip.vector_copy_widen_cycles
    else:
        cycles = chip.vector_copy_16bit_cycles if event.opcode == "tensor_copy" else chip.vector_scalar_16bit_cycles
        if target.dtype.itemsize == 1:
            cycles = max(cycles, chip.vector_8bit_output_cycles)
        if not (dense(source) and dense(target)):
            cycles = max(cycles, chip.vector_tensor_tensor_16bit_cycles)  # 16-bit but not contiguous: the 2x class
    return cycles, cycles < 1


def _two_tensors_cycles(event: Event, chip: Chip) -> tuple[float, bool]:
    if any_psum(event.reads):
        return 1.0, False
    if all(r.dtype.itemsize <= 2 for r in (*event.reads, *event.writes)) and any_sbuf(event.writes):
        cycles = chip.vector_tensor_tensor_16bit_cycles
        return cycles, cycles < 1
    return _both_in_sbuf_cycles(chip), False


def _both_in_sbuf_cycles(chip: Chip) -> float:
    return chip.vector_tensor_tensor_cycles
