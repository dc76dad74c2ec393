"""Tiles with an explicit address that another tile overwrote while they were in use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nki_hf.errors import FaultRecord
from nki_hf.sim.stream.events import Buffer, Event, Region
from nki_hf.sim.stream.footprint import Footprint, footprint_of, overlap
from nki_hf.sim.stream.memory import Lifetime

__all__ = ["overwritten"]


class _Touch(NamedTuple):
    """One access to a tile that shares bytes; `own_only` if it reads only what the tile itself wrote before."""

    event: int
    region: Region
    writes: bool
    own_only: bool = False


def overwritten(events: Sequence[Event], addressed: list[Lifetime]) -> Iterator[tuple[FaultRecord, bool]]:
    """One record per tile with an explicit address that is read where another tile wrote last, and whether that is sure.

    A write that keeps old bytes (`keeps` in the event's attributes: accumulation, elements left alone) reads them. A read
    through run-time indices may read any byte of its tile: it is sure to be wrong only if all of them were overwritten.
    """
    partners = _partners(addressed)
    if not partners:
        return
    touching: dict[int, list[_Touch]] = defaultdict(list)
    for index, event in enumerate(events):
        for region in event.reads:
            if region.buffer.number in partners:
                touching[region.buffer.number].append(_Touch(index, region, False))
        keeps = event.attrs.get("keeps", ()) if event.attrs else ()
        for position, region in enumerate(event.writes):
            if region.buffer.number in partners:
                if position in keeps:
                    touching[region.buffer.number].append(_Touch(index, region, False, bool(event.attrs.get("keeps_own"))))
                touching[region.buffer.number].append(_Touch(index, region, True))
    for number, others in partners.items():
        found = _first_clobbered(number, others, touching, events)
        if found is not None:
            yield found


def _partners(addressed: list[Lifetime]) -> dict[int, set[int]]:
    """Tiles that share bytes with another tile while both are in use, by buffer number."""
    partners: dict[int, set[int]] = defaultdict(set)
    active: dict[tuple[int | None, str], list[Lifetime]] = defaultdict(list)
    for life in addressed:
        key = (life.buffer.core, life.buffer.space)
        active[key] = [other for other in active[key] if other.last >= life.first]
        for other in active[key]:
            if overlap(_whole(life.buffer), _whole(other.buffer)):
                partners[life.buffer.number].add(other.buffer.number)
                partners[other.buffer.number].add(life.buffer.number)
        active[key].append(life)
    return partners


def _whole(buffer: Buffer) -> Footprint:
    partition, start = buffer.address or (0, 0)
    stop = start + buffer.bytes_per_partition
    return Footprint(partition, partition + buffer.shape[0], 1, start, stop, stop - start, (), True)


def _first_clobbered(
    number: int, others: set[int], touching: dict[int, list[_Touch]], events: Sequence[Event]
) -> tuple[FaultRecord, bool] | None:
    foreign = sorted((t.event, t.region) for other in others for t in touching[other] if t.writes) if others else []
    foreign.sort(key=lambda item: item[0])
    own = [(t.event, t.region) for t in touching[number] if t.writes and not t.region.indirect]
    for index, region, writes, own_only in touching[number]:
        if writes:
            continue
        wanted = _placed(region)
        for at, written in foreign:
            if at >= index:
                break
            clobber = _placed(written)
            if not clobber.certain or not overlap(wanted, clobber):
                continue
            later = [_placed(r) for i, r in own if at <= i < index]
            before = [_placed(r) for i, r in own if i < at] if own_only else None
            left = _left_over(wanted, clobber, later, before)
            if left:
                sure = wanted.certain or left == (wanted.p1 - wanted.p0) * (wanted.hi - wanted.lo)
                return _clobber_record(region, written, events[index], events[at]), sure
    return None


def _placed(region: Region) -> Footprint:
    address = region.buffer.address or (0, 0)
    return footprint_of(region).moved(*address)


def _left_over(wanted: Footprint, clobber: Footprint, later: list[Footprint], before: list[Footprint] | None = None) -> int:
    """How many bytes of both are not written again by any of `later`; only those that one of `before` wrote, if it is given."""
    p0, lo = min(wanted.p0, clobber.p0), min(wanted.lo, clobber.lo)
    shape = (max(wanted.p1, clobber.p1) - p0, max(wanted.hi, clobber.hi) - lo)
    left = _mask(wanted, p0, lo, shape) & _mask(clobber, p0, lo, shape)
    for item in later:
        left &= ~_mask(item, p0, lo, shape)
    if before is not None:
        known = np.zeros(shape, np.bool_)
        for item in before:
            known |= _mask(item, p0, lo, shape)
        left &= known
    return int(left.sum())


def _mask(item: Footprint, p0: int, lo: int, shape: tuple[int, int]) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    free = np.zeros(shape[1], np.bool_)
    starts = np.array([item.lo - lo])
    for stride, count in item.dims:
        starts = (starts[:, None] + stride * np.arange(count)).reshape(-1)
    for start in starts:
        free[max(0, start) : max(0, start + item.run)] = True
    mask = np.zeros(shape, np.bool_)
    rows = [p - p0 for p in range(item.p0, item.p1, item.p_step) if 0 <= p - p0 < shape[0]]
    mask[rows] = free
    return mask


def _clobber_record(region: Region, written: Region, reader: Event, writer: Event) -> FaultRecord:
    mine, other = region.buffer, written.buffer
    return FaultRecord(
        kind="overlap",
        instruction=reader.opcode,
        message=f"{mine.name} at address={mine.address} is read, but {other.name} at address={other.address} was written "
        f"over it by {writer.opcode} ({writer.file}:{writer.line})",
        limit="a tile may share bytes only with tiles that are not in use",
        advice="Give one of them another address, or read the first before the second is written",
        operands=(f"{mine.name} {list(mine.shape)}", f"{other.name} {list(other.shape)}"),
        file=reader.file,
        line=reader.line,
        details={
            "reader": {"event": reader.index, "file": reader.file, "line": reader.line},
            "writer": {"event": writer.index, "file": writer.file, "line": writer.line},
        },
    )
