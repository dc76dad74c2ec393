"""What one instruction costs on one chip: a pure function of its Event and the Chip. Rules: docs/timing.md, "Costs".

Compute engines. An instruction streams N elements per partition (N = the largest free size of its operands). Its engine
is busy for `busy_ns` = fixed overhead + stream time + what it does besides (an accumulator read-out); its result can be
used `done_ns` after its start = stream time + the engine's latency. Scalar reads its accumulator with an instruction of its
own, which follows in the queue: the output is usable after `output_ns`, the sum after `done_ns`.

DMA. A transfer is triggered by a queue (`busy_ns` of the queue), leaves `lead_ns` later, occupies its DMA engines for
`payload_ns` and is visible `tail_ns` after its last byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nki_hf.chips import Chip
from nki_hf.sim.stream.events import Event, Region

__all__ = ["Cost", "cost_of"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Times of one instruction, in ns.

    Attributes:
      busy_ns: from its start to the earliest start of the next instruction of its engine (DMA: of its queue).
      done_ns: from its start to all of its results being usable (compute engines).
      output_ns: from its start to its first destination being usable, where that is before `done_ns`; else 0.
      table: activation table that the Scalar engine must hold; empty if any will do.
      psum_ns: how long it holds the PSUM port that Vector and Scalar may have to share; 0 if it does not.
      sbuf_ns: how long it holds the SBUF port that Vector and GpSimd may have to share; 0 if it does not.
      weight_ns: time to load the stationary operand, seen only where the Tensor engine had nothing to hide it behind.
      lead_ns, payload_ns, tail_ns: the parts of a DMA transfer.
      software_ns: time that GpSimd spends writing the descriptors of a transfer with run-time indices.
      first_engine, engines: the DMA engines that carry it.
      nbytes: bytes moved by a DMA: those it reads or those it writes, whichever are more (they differ where it casts).
      hbm_bytes: bytes of a DMA read from or written to HBM; a copy within HBM counts both.
      flops: multiply-adds times two, of the Tensor engine's useful matmuls (transposes count 0).
      paced: a matmul that a chip's sustained rate applies to (see `Resources`).
    """

    busy_ns: float
    done_ns: float = 0.0
    output_ns: float = 0.0
    table: str = ""
    psum_ns: float = 0.0
    sbuf_ns: float = 0.0
    weight_ns: float = 0.0
    lead_ns: float = 0.0
    payload_ns: float = 0.0
    tail_ns: float = 0.0
    software_ns: float = 0.0
    first_engine: int = 0
    engines: int = 0
    nbytes: int = 0
    hbm_bytes: int = 0
    flops: int = 0
    paced: bool = False


def cost_of(event: Event, chip: Chip, cores: int = 1) -> Cost:
    """The cost of `event` on `chip` in a launch of `cores` cores, which share the HBM of one logical core.

    Raises:
      ValueError: nothing is known about the instruction on that engine; the message names the rule's place.
    """
    rule = _ENGINES.get(event.engine)
    if rule is None:
        raise ValueError(f"engine={event.engine!r} has no cost rule: add one to timing/costs.py.")
    return rule(event, chip, cores) if event.engine == "dma" else rule(event, chip)


# ---- Tensor engine --------------------------------------------------------------------------------------------------


def _tensor(event: Event, chip: Chip) -> Cost:
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


# ---- Vector engine --------------------------------------------------------------------------------------------------


def _vector(event: Event, chip: Chip) -> Cost:
    opcode, regions = event.opcode, (*event.writes, *event.reads)
    elements = _free(regions)
    fast = False
    cycles_per_element = 1.0
    if opcode in ("tensor_copy", "tensor_scalar", "activation") or opcode == "cast":
        cycles_per_element, fast = _copy_cycles(event, chip)
    elif opcode == "tensor_tensor":
        cycles_per_element, fast = _two_tensors_cycles(event, chip)
    elif opcode in ("scalar_tensor_tensor", "tensor_copy_predicated", "select_reduce"):
        cycles_per_element = 1.0 if _any_psum(event.reads) else _both_in_sbuf_cycles(chip)
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
        raise ValueError(f"vector instruction {opcode!r} has no cost rule: add one to timing/costs.py.")
    stream = _dynamic(event, chip, elements * cycles_per_element * _port_factor(regions, chip))
    readout = chip.vector_reduce_readout_cycles if _reads_out(event) else 0
    overhead = chip.vector_psum_overhead_cycles if _any_psum(regions) else chip.vector_overhead_cycles
    busy = max(stream + overhead + readout, chip.min_issue_cycles) / chip.vector_ghz
    latency = chip.vector_memset_latency_ns if opcode == "memset" else chip.vector_latency_ns
    return Cost(
        busy_ns=busy,
        done_ns=(max(stream, chip.min_issue_cycles) + readout) / chip.vector_ghz + latency,
        psum_ns=busy if _any_psum(regions) else 0.0,
        sbuf_ns=busy if fast or (chip.sbuf_exclusive and _any_sbuf(regions)) else 0.0,
    )


_VECTOR_ONE_PER_CYCLE = frozenset(
    "tensor_reduce tensor_scalar_reduce range_select tensor_scalar_cumulative max8 nc_find_index8 nc_match_replace8 "
    "nc_stream_shuffle bn_stats dropout rng rand2 rand_get_state rand_set_state set_rng_seed activation_reduce iota "
    "affine_select".split()
)
_READS_OUT = frozenset(("tensor_scalar_reduce", "activation_reduce"))
_MAY_REDUCE = frozenset(("range_select", "select_reduce", "exponential", "activation", "activate2", "tensor_scalar_reduce"))


def _reads_out(event: Event) -> bool:
    """True if the instruction also writes an accumulator out (a second destination)."""
    return event.opcode in _READS_OUT or (event.opcode in _MAY_REDUCE and len(event.writes) > 1)


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
        if not (_dense(source) and _dense(target)):
            cycles = max(cycles, chip.vector_tensor_tensor_16bit_cycles)  # 16-bit but not contiguous: the 2x class
    return cycles, cycles < 1


def _two_tensors_cycles(event: Event, chip: Chip) -> tuple[float, bool]:
    if _any_psum(event.reads):
        return 1.0, False
    if all(r.dtype.itemsize <= 2 for r in (*event.reads, *event.writes)) and _any_sbuf(event.writes):
        cycles = chip.vector_tensor_tensor_16bit_cycles
        return cycles, cycles < 1
    return _both_in_sbuf_cycles(chip), False


def _both_in_sbuf_cycles(chip: Chip) -> float:
    return chip.vector_tensor_tensor_cycles


# ---- Scalar engine --------------------------------------------------------------------------------------------------

_ANY_TABLE = frozenset("copy identity abs square add multiply subtract relu prelu maximum minimum bypass".split())
_AS_SLOW_AS_A_TABLE = frozenset(("square",))  # measured with the table functions, though every table has it


def _scalar(event: Event, chip: Chip) -> Cost:
    regions = (*event.writes, *event.reads)
    table = _table(event)
    elements = float(_free(regions))
    from_psum = event.reads[0].buffer.space == "psum" and event.writes[0].dtype.itemsize <= 2
    if table in ("silu", "silu_dx"):
        elements *= chip.scalar_silu_cycles
    elif table and from_psum:
        elements *= chip.scalar_table_psum_cycles
    elif not table and all(r.dtype.itemsize <= 2 for r in (event.writes[0], event.reads[0])):
        elements *= chip.scalar_copy_16bit_cycles
    cycles = _dynamic(event, chip, elements * _port_factor(regions, chip))
    stream = max(cycles, chip.min_issue_cycles) / chip.scalar_ghz
    psum = _any_psum(regions)
    if table or _function(event) in _AS_SLOW_AS_A_TABLE:
        latency = chip.scalar_table_psum_latency_ns if from_psum else chip.scalar_table_latency_ns
    else:
        latency = chip.scalar_copy_psum_latency_ns if psum else chip.scalar_copy_sbuf_latency_ns
        if event.opcode == "activation" and len(event.reads) > 1:
            latency += chip.scalar_operand_latency_ns
    busy = max(cycles + chip.scalar_overhead_cycles, chip.min_issue_cycles) / chip.scalar_ghz
    psum_ns = busy if psum else 0.0  # the read-out takes the engine's registers, not PSUM
    if not _reads_out(event):
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


# ---- GpSimd and Sync ------------------------------------------------------------------------------------------------


def _gpsimd(event: Event, chip: Chip) -> Cost:
    regions = (*event.writes, *event.reads)
    if event.opcode in _CONTROL:
        return _sync(event, chip)
    elements = float(_free(regions))
    if event.opcode in ("tensor_tensor", "scalar_tensor_tensor"):
        elements *= chip.gpsimd_tensor_tensor_cycles
    elif event.opcode == "memset":
        elements *= chip.gpsimd_memset_cycles
    elif event.opcode == "tensor_partition_reduce":
        elements *= event.reads[0].partitions
    elif event.opcode == "topk":
        elements = chip.gpsimd_topk_cycles * _free(event.reads) + _free(event.writes)
    stream = max(elements * _port_factor(regions, chip), chip.min_issue_cycles)
    busy = (chip.gpsimd_start_cycles + stream) / chip.gpsimd_ghz
    return Cost(busy_ns=busy, done_ns=busy + chip.gpsimd_latency_ns, sbuf_ns=busy)


_CONTROL = frozenset(
    "loop_entry loop_turn core_barrier register_alloc register_move register_load register_store scalar_load "
    "scalar_store".split()
)


def _sync(event: Event, chip: Chip) -> Cost:
    if event.opcode == "loop_turn":
        ns = chip.loop_turn_ns
    else:
        ns = chip.semaphore_instruction_ns if event.opcode == "core_barrier" else chip.register_move_ns
    return Cost(busy_ns=ns, done_ns=ns)


# ---- DMA ------------------------------------------------------------------------------------------------------------


def _dma(event: Event, chip: Chip, cores: int = 1) -> Cost:
    if event.opcode in _CONTROL:
        return _sync(event, chip)
    moved = max((r.elements for r in (event.writes or event.reads)), default=0)
    reads = [r for r in event.reads if r.elements == moved]  # not the indices of a gather or scatter
    sides = (*reads, *event.writes)
    nbytes = max(sum(r.bytes for r in reads), sum(r.bytes for r in event.writes))
    first, count, share = _carriers(sides, chip)
    packet = max(min(r.contiguous_bytes // r.dtype.itemsize for r in sides) * max(r.dtype.itemsize for r in sides), 1)
    hbm_bytes = sum(r.bytes for r in sides if not r.buffer.on_chip)
    rate = chip.dma_engine_bytes_per_ns
    if hbm_bytes and cores > 1:
        rate = min(rate, chip.hbm_bytes_per_ns / cores / chip.dma_engines)
    if event.opcode == "dma_transpose":
        hbm = any(not r.buffer.on_chip for r in event.reads)
        payload = nbytes * share / rate / (chip.dma_transpose_hbm_fraction if hbm else chip.dma_transpose_sbuf_fraction)
    else:
        row = packet / rate
        if packet < chip.dma_full_packet_bytes:  # slower, but never longer than a row that is
            row = min(row / chip.dma_medium_packet_fraction, chip.dma_full_packet_bytes / rate)
        if packet < chip.dma_small_packet_bytes:
            row = min(
                packet / rate / chip.dma_small_packet_fraction,
                chip.dma_small_packet_bytes / rate / chip.dma_medium_packet_fraction,
            )
        payload = nbytes * share / packet * max(row, chip.dma_descriptor_ns)
    store = any(not r.buffer.on_chip for r in event.writes)
    return Cost(
        busy_ns=chip.dma_issue_ns,
        lead_ns=chip.dma_store_start_ns if store else chip.dma_start_ns,
        payload_ns=payload,
        tail_ns=chip.dma_store_end_ns if store else chip.dma_end_ns,
        first_engine=first,
        engines=count,
        nbytes=nbytes,
        hbm_bytes=hbm_bytes,
        software_ns=_indices(event) * chip.dma_software_descriptor_ns,
    )


def _indices(event: Event) -> int:
    """Run-time indices that a gather or scatter takes from SBUF; 0 for other transfers."""
    moved = max((r.elements for r in (*event.writes, *event.reads)), default=0)
    if not any(r.indirect for r in (*event.reads, *event.writes)):
        return 0
    return max((r.elements for r in event.reads if r.elements < moved and r.buffer.on_chip), default=0)


def _carriers(sides: Sequence[Region], chip: Chip) -> tuple[int, int, float]:
    """The first DMA engine of a transfer, how many carry it, and the busiest one's share of its bytes."""
    count = int(chip.dma_engines)
    on_chip = [r for r in sides if r.buffer.on_chip]
    if not on_chip:
        return 0, count, 1 / count
    wide = max(on_chip, key=lambda r: r.partitions)
    start, rows, each = wide.partition_start, wide.partitions, int(chip.partitions // chip.dma_engines)
    first, last = min(start // each, count - 1), min((start + rows - 1) // each, count - 1)
    busiest = max(min(start + rows, each * (k + 1)) - max(start, each * k) for k in range(first, last + 1))
    return first, last - first + 1, busiest / rows


# ---- regions --------------------------------------------------------------------------------------------------------


def _free(regions: tuple[Region, ...]) -> int:
    return max((r.free_elements for r in regions), default=1)


def _any_psum(regions: tuple[Region, ...]) -> bool:
    return any(r.buffer.space == "psum" for r in regions)


def _any_sbuf(regions: tuple[Region, ...]) -> bool:
    return any(r.buffer.space == "sbuf" for r in regions)


def _dense(region: Region) -> bool:
    return region.contiguous_bytes == region.free_elements * region.dtype.itemsize


def _port_factor(regions: tuple[Region, ...], chip: Chip) -> float:
    """2 if an operand's innermost free stride is above the port's limit, else 1."""
    for region in regions:
        for size, stride in zip(reversed(region.shape[1:]), reversed(region.strides[1:]), strict=True):
            if size > 1:
                if abs(stride) * region.dtype.itemsize > chip.port_stride_bytes:
                    return 2.0
                break
    return 1.0


def _dynamic(event: Event, chip: Chip, cycles: float) -> float:
    indirect = any(r.indirect for r in (*event.reads, *event.writes))
    return max(cycles, chip.dynamic_address_cycles) if indirect else cycles


_ENGINES: dict[str, Callable[..., Cost]] = {
    "tensor": _tensor,
    "vector": _vector,
    "scalar": _scalar,
    "gpsimd": _gpsimd,
    "sync": _sync,
    "dma": _dma,
}
