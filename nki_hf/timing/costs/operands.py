"""What costs ask of the operands of an instruction: sizes, places, strides, accumulators that are read out."""

from __future__ import annotations

from nki_hf.chips import Chip
from nki_hf.sim.stream.events import Event, Region

__all__ = ["any_psum", "any_sbuf", "dense", "dynamic_cycles", "free_elements", "port_factor", "reads_out"]


def free_elements(regions: tuple[Region, ...]) -> int:
    """The largest free size."""
    return max((r.free_elements for r in regions), default=1)


def any_psum(regions: tuple[Region, ...]) -> bool:
    """True if one is in PSUM."""
    return any(r.buffer.space == "psum" for r in regions)


def any_sbuf(regions: tuple[Region, ...]) -> bool:
    """True if one is in SBUF."""
    return any(r.buffer.space == "sbuf" for r in regions)


def dense(region: Region) -> bool:
    """True if a partition's elements are contiguous."""
    return region.contiguous_bytes == region.free_elements * region.dtype.itemsize


def port_factor(regions: tuple[Region, ...], chip: Chip) -> float:
    """2 if an operand's innermost free stride is above the port's limit, else 1."""
    for region in regions:
        for size, stride in zip(reversed(region.shape[1:]), reversed(region.strides[1:]), strict=True):
            if size > 1:
                if abs(stride) * region.dtype.itemsize > chip.port_stride_bytes:
                    return 2.0
                break
    return 1.0


def dynamic_cycles(event: Event, chip: Chip, cycles: float) -> float:
    """`cycles`, or more where a run-time index has to be read."""
    indirect = any(r.indirect for r in (*event.reads, *event.writes))
    return max(cycles, chip.dynamic_address_cycles) if indirect else cycles


_READS_OUT = frozenset(("tensor_scalar_reduce", "activation_reduce"))
_MAY_REDUCE = frozenset(("range_select", "select_reduce", "exponential", "activation", "activate2", "tensor_scalar_reduce"))


def reads_out(event: Event) -> bool:
    """True if the instruction also writes an accumulator out (a second destination)."""
    return event.opcode in _READS_OUT or (event.opcode in _MAY_REDUCE and len(event.writes) > 1)
