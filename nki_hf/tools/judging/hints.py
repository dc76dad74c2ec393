"""Hints: rules that read a schedule, each naming a line, what to change and what it would gain at most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from nki_hf.observers.timing import critical_path, engine_times
from nki_hf.observers.working_set import working_sets
from nki_hf.timing.schedule import Schedule
from nki_hf.timing.times import REASONS
from nki_hf.tools.judging.line_words import line_words

__all__ = ["Hint", "bounding", "hints", "proposals"]

_ROW_BYTES = 512
"""Bytes of a DMA descriptor's row from which it moves at full rate (NKI's performance guide: 512 B or more)."""
_TILE = 512
"""Free size of a matmul's moving operand: shorter ones pay the fixed cost more often (nl.tile_size.gemm_moving_fmax)."""
_WORTH = 0.01
"""Share of the latency below which nothing is said."""


@dataclass(frozen=True, kw_only=True)
class Hint:
    """What to change at a line.

    Attributes:
      rule: its name.
      file, line: where.
      text: one sentence.
      gain_us: simulated us that it would save at most: what those instructions take of the critical path.
    """

    rule: str
    file: str
    line: int
    text: str
    gain_us: float


Lines = dict[tuple[str, int], list[int]]


def proposals(scheduled: Schedule, events: Sequence[Any]) -> list[Hint]:
    """What the rules find, each with what its instructions take of the critical path; `events` are those before any spill."""
    path: dict[tuple[str, int], float] = defaultdict(float)
    for step in critical_path(scheduled):
        path[step.file, step.line] += step.ns / 1e3
    found = [hint for rule in _RULES for hint in rule(scheduled, path)]
    return _worth(scheduled, [*found, *_spills(scheduled, events)])


def bounding(scheduled: Schedule, found: Sequence[Hint]) -> list[str | None]:
    """The engine of each proposal whose work it is about; None where there is none."""
    of_line = {(event.file, event.line): event.engine for event in scheduled.events}
    return [of_line.get((hint.file, hint.line)) if hint.gain_us and hint.rule != "one semaphore" else None for hint in found]


def hints(scheduled: Schedule, found: Sequence[Hint], *, saved_ns: Mapping[str, float], most: int = 8) -> list[Hint]:
    """Proposals that are still worth it if none about an engine's work gains more than the latency would if that engine took no
    time, the largest first; one per rule and line.

    Args:
      scheduled: the schedule.
      found: what `proposals` gave.
      saved_ns: what `gains` says of the engines that `bounding` names.
      most: how many.
    """
    bounded = []
    for hint, engine in zip(found, bounding(scheduled, found), strict=True):
        if engine is not None:
            hint = replace(hint, gain_us=min(hint.gain_us, max(saved_ns.get(engine, 0.0), 0.0) / 1e3))
        bounded.append(hint)
    return sorted(_worth(scheduled, bounded), key=lambda hint: -hint.gain_us)[:most]


def _worth(scheduled: Schedule, found: Sequence[Hint]) -> list[Hint]:
    return [hint for hint in found if hint.gain_us >= _WORTH * scheduled.total_ns / 1e3 or hint.rule == "spills"]


def _by_line(scheduled: Schedule, wanted: Callable[[Any], bool]) -> Lines:
    found: Lines = defaultdict(list)
    for number, event in enumerate(scheduled.events):
        if wanted(event):
            found[event.file, event.line].append(number)
    return found


def _busy(scheduled: Schedule, numbers: Sequence[int]) -> float:
    index = np.asarray(numbers)
    return float((scheduled.free_ns[index] - scheduled.start_ns[index]).sum()) / 1e3


def _idle_engine(scheduled: Schedule, path: dict[tuple[str, int], float]) -> Iterator[Hint]:
    active = {row.engine: row.active_ns / row.total_ns for row in engine_times(scheduled) if row.core == 0}
    for engine, other in (("vector", "scalar"), ("scalar", "vector")):  # GpSimd does not reach PSUM
        if active.get(engine, 0) < 0.5 or active.get(other, 0) > 0.6 * active.get(engine, 0):
            continue
        copies: dict[tuple[str, int, str], list[int]] = defaultdict(list)
        for number, event in enumerate(scheduled.events):
            instead = _instead(event, other) if event.engine == engine else ""
            if instead and event.reads and event.reads[0].buffer.space == "psum":
                copies[event.file, event.line, instead].append(number)
        for (file, line, instead), numbers in copies.items():
            gain = min(_busy(scheduled, numbers) / 2, path.get((file, line), 0.0))
            yield Hint(
                rule="idle engine",
                file=file,
                line=line,
                gain_us=gain,
                text=f"{len(numbers):,} evictions from PSUM run on {engine} ({active[engine]:.0%} active), while {other} is "
                f"{active.get(other, 0):.0%} active: give every second one {instead}",
            )


def _instead(event: Any, other: str) -> str:
    """What makes another engine do an eviction; empty if it cannot."""
    if event.opcode in ("tensor_copy", "activation") and event.attrs.get("op", "copy") in ("copy", None):
        return f"engine=nisa.engine.{other}"
    scales = event.opcode == "tensor_scalar" and event.attrs.get("op0") == "multiply" and event.attrs.get("op1") is None
    return "to nisa.activation(op=nl.copy, scale=operand0)" if scales and other == "scalar" else ""


def _apart(scheduled: Schedule, path: dict[tuple[str, int], float]) -> Iterator[Hint]:
    """An exp whose result another instruction sums."""
    exps = {
        event.writes[0].buffer.number
        for event in scheduled.events
        if event.opcode in ("activation", "exponential")
        and event.attrs.get("op") == "exp"
        and event.writes
        and not event.attrs.get("reduce")
        and len(event.writes) == 1
    }
    sums = _by_line(
        scheduled,
        lambda event: (
            event.opcode == "tensor_reduce"
            and event.attrs.get("op") == "add"
            and bool(event.reads)
            and event.reads[0].buffer.number in exps
        ),
    )
    for (file, line), numbers in sums.items():
        yield Hint(
            rule="exp and sum apart",
            file=file,
            line=line,
            gain_us=min(_busy(scheduled, numbers), path.get((file, line), 0.0)),
            text="the row sum reads what exp wrote: nisa.activation_reduce makes both in one instruction",
        )


def _float32(scheduled: Schedule, path: dict[tuple[str, int], float]) -> Iterator[Hint]:
    wide = _by_line(
        scheduled, lambda event: event.engine == "tensor" and bool(event.reads) and event.reads[-1].dtype.name == "float32"
    )
    cycles = float(scheduled.chip.tensor_fp32_cycles)
    for (file, line), numbers in wide.items():
        gain = min(_busy(scheduled, numbers) * (1 - 1 / cycles), path.get((file, line), 0.0))
        yield Hint(
            rule="float32 matmul",
            file=file,
            line=line,
            gain_us=gain,
            text=f"{len(numbers):,} matmuls or transposes in float32 take {cycles:g} times the cycles of bfloat16: cast the "
            "operands if the task allows it",
        )


def _loads(scheduled: Schedule, path: dict[tuple[str, int], float]) -> Iterator[Hint]:
    """The same HBM bytes loaded again and again."""
    first: dict[Any, int] = {}
    again: Lines = defaultdict(list)
    for number, event in enumerate(scheduled.events):
        if (
            event.engine == "dma"
            and event.reads
            and not event.reads[0].buffer.on_chip
            and event.reads[0].buffer.role == "input"
            and not event.reads[0].indirect  # what run-time indices choose is other bytes each time
        ):
            region = event.reads[0]
            key = (region.buffer.number, region.offset, region.shape, region.strides)
            if key in first:
                again[event.file, event.line].append(number)
            first.setdefault(key, number)
    for (file, line), numbers in again.items():
        yield Hint(
            rule="loads inside the loop",
            file=file,
            line=line,
            gain_us=path.get((file, line), 0.0),
            text=f"{len(numbers):,} transfers load bytes that were loaded before: keep them in SBUF, or load outside of "
            "the loop",
        )


def _short_rows(scheduled: Schedule, path: dict[tuple[str, int], float]) -> Iterator[Hint]:
    def short(event: Any) -> bool:
        return event.engine == "dma" and any(
            region.contiguous_bytes < _ROW_BYTES and region.bytes >= 16 * _ROW_BYTES for region in (*event.reads, *event.writes)
        )

    for (file, line), numbers in _by_line(scheduled, short).items():
        event = scheduled.events[numbers[0]]
        least = min(region.contiguous_bytes for region in (*event.reads, *event.writes))
        yield Hint(
            rule="short DMA rows",
            file=file,
            line=line,
            gain_us=path.get((file, line), 0.0),
            text=f"{len(numbers):,} transfers move rows of {least} B: at least {_ROW_BYTES} B run at full rate; load wider "
            "tiles, or change the layout",
        )


def _narrow(scheduled: Schedule, path: dict[tuple[str, int], float]) -> Iterator[Hint]:
    def narrow(event: Any) -> bool:
        return event.opcode == "nc_matmul" and not event.attrs.get("is_transpose") and event.reads[-1].free_elements < _TILE

    for (file, line), numbers in _by_line(scheduled, narrow).items():
        width = scheduled.events[numbers[0]].reads[-1].free_elements
        if width >= _TILE or len(numbers) < 8:
            continue
        gain = path.get((file, line), 0.0) * (1 - width / _TILE) / 2
        yield Hint(
            rule="narrow tiles",
            file=file,
            line=line,
            gain_us=gain,
            text=f"{len(numbers):,} matmuls have a moving operand of {width} columns, up to {_TILE} fit: the fixed cost of "
            "each is paid more often than it must be",
        )


def _semaphore(scheduled: Schedule, path: dict[tuple[str, int], float]) -> Iterator[Hint]:
    """Waits of the engine that is active longest: without them the latency would be what it is active. Others may wait."""
    rows = engine_times(scheduled)
    if not rows:
        return
    busiest = max(rows, key=lambda row: row.active_ns)
    code, total = REASONS.index("semaphore"), scheduled.total_ns / 1e3
    waits: dict[tuple[str, int, str, str], float] = defaultdict(float)
    mine = [
        number
        for number in np.argsort(scheduled.start_ns, kind="stable").tolist()
        if (scheduled.events[number].core, scheduled.events[number].engine) == (busiest.core, busiest.engine)
    ]
    for before, number in pairwise(mine):
        gap = float(scheduled.start_ns[number] - scheduled.free_ns[before])
        if scheduled.reason[number] == code and gap > 0 and scheduled.cause[number] >= 0:
            event, cause = scheduled.events[number], scheduled.events[int(scheduled.cause[number])]
            at = line_words(event.file, cause.file, cause.line)
            waits[event.file, event.line, cause.engine, f"{cause.opcode} at {at}"] += gap / 1e3
    for (file, line, other, what), us in sorted(waits.items(), key=lambda item: -item[1])[:3]:
        if busiest.engine != other and us > 0.05 * total:
            yield Hint(
                rule="one semaphore",
                file=file,
                line=line,
                gain_us=min(us, total - busiest.active_ns / 1e3),
                text=f"{busiest.engine} waits {us:,.1f} us here for {other} ({what}): let it work on another tile meanwhile "
                "(a second buffer, or the loop in two stages)",
            )


def _spills(scheduled: Schedule, events: Sequence[Any]) -> Iterator[Hint]:
    if not scheduled.spills:
        return
    for item in working_sets(events, scheduled.chip):
        if item.high_water > item.capacity and item.tiles:
            largest = item.tiles[0]
            yield Hint(
                rule="spills",
                file=largest.file,
                line=largest.line,
                gain_us=0.0,
                text=f"{item.space} overflows ({item.high_water:,} of {item.capacity:,} B per partition) and is spilled; "
                f"{largest.live} tiles of {largest.nbytes:,} B ({largest.name}) hold most of it",
            )


_RULES = (_idle_engine, _apart, _float32, _loads, _short_rows, _narrow, _semaphore)
