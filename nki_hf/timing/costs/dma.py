"""Costs of DMA transfers: packets, descriptors, and the DMA engines that carry them."""

from __future__ import annotations

from collections.abc import Sequence

from nki_hf.chips import Chip
from nki_hf.sim.stream.events import Event, Region
from nki_hf.timing.costs.control import CONTROL, sync_cost
from nki_hf.timing.costs.cost import Cost

__all__ = ["dma_cost"]


def dma_cost(event: Event, chip: Chip, cores: int = 1) -> Cost:
    """The cost of a transfer in a launch of `cores` cores, which share the HBM of one logical core."""
    if event.opcode in CONTROL:
        return sync_cost(event, chip)
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
