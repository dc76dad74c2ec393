"""What a kernel may return, and what it writes there more than once."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from nki_hf.errors import FaultRecord, KernelFault
from nki_hf.sim.faults import SecondWriteWarning, SimulatorWarning
from nki_hf.sim.stream.events import Event, Region
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["check_outputs", "warn_second_writes"]

Flags = np.ndarray[Any, np.dtype[np.bool_]]

_LIMIT = "outputs must be in shared_hbm"
_ADVICE = "Copy it with dma_copy into nl.ndarray(..., buffer=nl.shared_hbm)"


def check_outputs(outputs: Iterable[NkiTensor], *, third_party: bool) -> None:
    """Fault on an output that the caller cannot see: on chip, or in memory private to a core.

    Inputs may be returned: a kernel may write them in place. Kernels written elsewhere get a warning for private HBM,
    because older documentation returns it. Source: release notes of NKI 0.3 (outputs must be shared_hbm).
    """
    for item in outputs:
        buffer = item.storage.buffer
        if buffer.on_chip or (buffer.space != "shared_hbm" and buffer.role != "input" and not third_party):
            raise KernelFault(_record(item))
        if buffer.space != "shared_hbm" and buffer.role != "input":
            warnings.warn(str(KernelFault(_record(item))), SimulatorWarning, stacklevel=2)


def _record(item: NkiTensor) -> FaultRecord:
    """The kernel has returned: the line is that of the tensor's allocation."""
    buffer = item.storage.buffer
    return FaultRecord(
        kind="output",
        instruction="return",
        message=f"the kernel returns {item!r}",
        limit=_LIMIT,
        advice=_ADVICE,
        operands=(repr(item),),
        file=buffer.file,
        line=buffer.line,
        details={"space": buffer.space},
    )


def warn_second_writes(outputs: Iterable[NkiTensor], events: Sequence[Event]) -> None:
    """Warn about each output, or input written in place, of which one launch writes an element more than once.

    It has the value of the last write in program order, which no document promises between queues or cores; a kernel that
    adds in steps writes twice on purpose. Writes through run-time indices are not compared: which elements they reach is
    not known from the stream.
    """
    wanted = {item.storage.buffer.number for item in outputs}
    writes: dict[int, list[tuple[Event, Region]]] = defaultdict(list)
    for event in events:
        for region in event.writes:
            buffer = region.buffer
            if (buffer.number in wanted or buffer.role == "input") and not region.indirect:
                writes[buffer.number].append((event, region))
    for found in writes.values():
        record = _second_write(found)
        if record is not None:
            warnings.warn(str(KernelFault(record)), SecondWriteWarning, stacklevel=3)


def _second_write(writes: list[tuple[Event, Region]]) -> FaultRecord | None:
    buffer = writes[0][1].buffer
    if len(writes) < 2:
        return None
    unit = min(region.dtype.itemsize for _, region in writes)
    written = np.zeros(buffer.elements * buffer.dtype.itemsize // unit, np.bool_)
    for position, (event, region) in enumerate(writes):
        flags = _flags(region, written, unit)
        if flags.any():
            first = next(other for other, earlier in writes[:position] if _overlap(earlier, region, written.size, unit))
            count = int(flags.sum()) * unit // region.dtype.itemsize
            return FaultRecord(
                kind="output",
                instruction=event.opcode,
                message=f"{count:,} elements of {buffer.name} {list(buffer.shape)} were written before, by {first.opcode} "
                f"({first.file}:{first.line})",
                limit="an output element that one launch writes twice depends on an order that no document promises",
                advice="Add up in SBUF or PSUM and write once, or keep the order with a dependency",
                operands=(f"{buffer.name} {list(buffer.shape)}",),
                file=event.file,
                line=event.line,
            )
        flags[...] = True
    return None


def _overlap(first: Region, second: Region, size: int, unit: int) -> bool:
    flags = np.zeros(size, np.bool_)
    _flags(first, flags, unit)[...] = True
    return bool(_flags(second, flags, unit).any())


def _flags(region: Region, flags: Flags, unit: int) -> Flags:
    """The flags of the region's elements, `[*shape, units per element]`."""
    parts = region.dtype.itemsize // unit
    return np.ndarray(
        (*region.shape, parts),
        np.bool_,
        buffer=flags,
        offset=region.offset * parts,
        strides=[*(step * parts for step in region.strides), 1],
    )
