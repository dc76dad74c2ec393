"""Memory faults of a finished run: more tiles alive than fit, addresses that cannot be, tiles overwritten (overwritten.py)."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence

from nki_hf.chips import Chip
from nki_hf.errors import FaultRecord, KernelFault
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.sim.options import SimOptions
from nki_hf.sim.run.overwritten import overwritten
from nki_hf.sim.stream.events import Buffer, Event
from nki_hf.sim.stream.live_ranges import least_bytes
from nki_hf.sim.stream.memory import Lifetime, Occupancy, lifetimes, occupancies

__all__ = ["check_memory"]

_LARGEST = 4
"""Holders named in an overflow."""


def check_memory(events: Sequence[Event], options: SimOptions) -> None:
    """Raise the first memory fault of a finished run, if there is one.

    Kinds: `shape` (a tile of more partitions than there are), `capacity` (live tiles or an address beyond the documented
    size, or a tile that fits nowhere between addressed ones), `placement` (a PSUM address inside a bank) and `overlap` (a tile
    read where another tile wrote last). For kernels written elsewhere the doubtful ones are warnings, among them tiles that do
    not fit from first to last use while their live values do (sim/stream/live_ranges.py). Source of the rules:
    sim/stream/memory.py.
    """
    lives = lifetimes(events, options.chip)
    for life in lives:
        _check_partitions(life.buffer, options.chip)
    addressed = [life for life in lives if life.buffer.address is not None]
    for life in addressed:
        _check_address(life, options)
    for item in occupancies(events, options.chip, lives):
        if item.high_water > item.capacity:
            _raise_or_warn(
                _overflow(item, events, options.chip), options.third_party and _may_fit(item, events, addressed, options.chip)
            )
    for record in _unplaceable(lives, addressed, options.chip):
        _raise_or_warn(record, options.third_party)
    for record, sure in overwritten(events, addressed):
        _raise_or_warn(record, options.third_party and not sure)


def _raise_or_warn(record: FaultRecord, doubtful: bool) -> None:
    if not doubtful:
        raise KernelFault(record)
    warnings.warn(str(KernelFault(record)), SimulatorWarning, stacklevel=3)


def _may_fit(item: Occupancy, events: Sequence[Event], addressed: Sequence[Lifetime], chip: Chip) -> bool:
    """True if the values that are live at once fit, though the tiles from first to last use do not."""
    fixed = any((life.buffer.core or 0, life.buffer.space) == (item.core, item.space) for life in addressed)
    return not fixed and least_bytes(events, chip)[item.core, item.space] <= item.capacity


def _unplaceable(lives: list[Lifetime], addressed: list[Lifetime], chip: Chip) -> Iterator[FaultRecord]:
    """One record per tile without an address that is larger than every gap between the addressed tiles of its lifetime.

    No placement of the other tiles can help it. (Whether tiles without an address leave each other gaps that are large
    enough is the compiler's matter: only their sum is judged.)
    """
    fixed: dict[tuple[int, str], list[Lifetime]] = defaultdict(list)
    for life in addressed:
        fixed[life.buffer.core or 0, life.buffer.space].append(life)
    for life in lives if fixed else ():
        buffer = life.buffer
        if buffer.address is not None:
            continue
        capacity = int(chip.sbuf_partition_bytes if buffer.space == "sbuf" else chip.psum_partition_bytes)
        together = [f for f in fixed[buffer.core or 0, buffer.space] if f.first <= life.last and f.last >= life.first]
        largest = end = 0
        for start, stop in sorted((f.buffer.address[1], f.buffer.address[1] + f.nbytes) for f in together if f.buffer.address):
            largest, end = max(largest, start - end), max(end, stop)
        largest = max(largest, capacity - end)
        if life.nbytes > largest:
            yield FaultRecord(
                kind="capacity",
                instruction="ndarray",
                message=f"{buffer.name} {list(buffer.shape)} {buffer.dtype} takes {life.nbytes:,} B per partition, and the "
                f"{len(together)} tiles with an address that live at the same time leave gaps of {largest:,} B at most",
                limit=f"a tile lies in one piece of the {capacity:,} B of {buffer.space}",
                advice="Move the addressed tiles together, or give this one an address",
                operands=(_show(buffer), *(_show(f.buffer) for f in together)),
                file=buffer.file,
                line=buffer.line,
                details={"space": buffer.space, "core": buffer.core or 0, "bytes": life.nbytes, "largest_gap": largest},
            )


def _show(buffer: Buffer) -> str:
    return f"{buffer.name} {list(buffer.shape)} {buffer.dtype}"


def _overflow(item: Occupancy, events: Sequence[Event], chip: Chip) -> FaultRecord:
    """The newest tile alive at the high-water mark is the one that does not fit."""
    newest = max(item.holders, key=lambda life: life.first).buffer
    named = [
        f"{life.buffer.name} {life.nbytes:,} B ({life.buffer.file}:{life.buffer.line})" for life in item.holders[:_LARGEST]
    ]
    unit = f" ({item.high_water // int(chip.psum_bank_bytes)} banks)" if item.space == "psum" else ""
    return FaultRecord(
        kind="capacity",
        instruction=events[item.at].opcode,
        message=f"{item.space.upper()} overflow: {item.high_water:,} B{unit} per partition are alive with {newest.name}; "
        f"largest of {len(item.holders)}: {', '.join(named)}",
        limit=f"{chip.name} has {item.capacity:,} B per partition",
        advice="Use smaller tiles or fewer buffers at once, or end a tile's use earlier",
        operands=tuple(f"{life.buffer.name} {list(life.buffer.shape)} {life.buffer.dtype}" for life in item.holders),
        file=newest.file,
        line=newest.line,
        details={
            "space": item.space,
            "core": item.core,
            "bytes": item.high_water,
            "capacity": item.capacity,
            "holders": [
                {"name": life.buffer.name, "bytes": life.nbytes, "file": life.buffer.file, "line": life.buffer.line}
                for life in item.holders
            ],
        },
    )


def _check_partitions(buffer: Buffer, chip: Chip) -> None:
    if buffer.shape and buffer.shape[0] > chip.partitions:
        raise KernelFault(
            FaultRecord(
                kind="shape",
                instruction="ndarray",
                message=f"{buffer.name} {list(buffer.shape)} {buffer.dtype} has {buffer.shape[0]:,} partitions",
                limit=f"{buffer.space} of {chip.name} has {chip.partitions}",
                advice="Split the partition axis into several tiles, or move it to a free axis",
                operands=(_show(buffer),),
                file=buffer.file,
                line=buffer.line,
            )
        )


def _check_address(life: Lifetime, options: SimOptions) -> None:
    buffer, chip = life.buffer, options.chip
    partition, start = buffer.address or (0, 0)
    capacity = int(chip.sbuf_partition_bytes if buffer.space == "sbuf" else chip.psum_partition_bytes)
    rows, stop = buffer.shape[0] if buffer.shape else 1, start + buffer.bytes_per_partition
    if partition < 0 or start < 0 or partition + rows > chip.partitions or stop > capacity:
        raise KernelFault(
            FaultRecord(
                kind="capacity",
                instruction="ndarray",
                message=f"{buffer.name} {list(buffer.shape)} {buffer.dtype} at address=({partition}, {start:,}) ends at "
                f"partition {partition + rows} and byte {stop:,}",
                limit=f"{buffer.space} of {chip.name} has {chip.partitions} partitions of {capacity:,} B",
                operands=(_show(buffer),),
                file=buffer.file,
                line=buffer.line,
            )
        )
    if buffer.space == "psum" and start % int(chip.psum_bank_bytes):
        fault = KernelFault(
            FaultRecord(
                kind="placement",
                instruction="ndarray",
                message=f"{buffer.name} is at byte {start:,} of PSUM",
                limit=f"a PSUM tensor must start at a bank, a multiple of {chip.psum_bank_bytes:,} B",
                operands=(_show(buffer),),
                file=buffer.file,
                line=buffer.line,
            )
        )
        if not options.third_party:
            raise fault
        warnings.warn(str(fault), SimulatorWarning, stacklevel=2)
