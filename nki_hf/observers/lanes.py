"""Lanes: every instruction of a schedule by the engine or DMA queue that ran it, as columns of numbers for a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nki_hf.observers.instruction_kinds import WORDS, word_of
from nki_hf.observers.timing import path_events
from nki_hf.timing.schedule import Schedule

__all__ = ["Columns", "Lane", "Lanes", "binned", "iterations", "lanes"]

_RANK = {"tensor": 0, "vector": 1, "scalar": 2, "gpsimd": 3, "sync": 4, "dma": 5}
FULL = 255
"""`Columns.use` of time that is taken throughout."""

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One row of the picture.

    Attributes:
      core: program id.
      engine: `dma` for a queue.
      name: the engine, or `dma` and the queue.
      queue: its position in `Workload.queues`.
    """

    core: int
    engine: str
    name: str
    queue: int


@dataclass(frozen=True, kw_only=True)
class Columns:
    """One entry per instruction, grouped by lane and sorted by start; int64 each, times in ticks.

    Attributes:
      lane, kind: positions in `Lanes.lanes` and `Lanes.kinds`.
      start, length: of an instruction on its engine; of a transfer, of its bytes.
      reason: why it did not start earlier, a position in `timing.times.REASONS`.
      cause: the entry that it waited for; -1 if none.
      path: 1 on the critical path.
      iteration: number of the part of the program that it belongs to, see `iterations`.
      use: share of `length` that was taken, of `FULL`; below it only in bins.
    """

    lane: Ints
    kind: Ints
    start: Ints
    length: Ints
    reason: Ints
    cause: Ints
    path: Ints
    iteration: Ints
    use: Ints


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """A schedule as lanes.

    Attributes:
      lanes: the rows, in the order of the picture.
      kinds: `(opcode, word, file, line)` of each kind of instruction; `word` is of `instruction_kinds.WORDS`.
      columns: the instructions.
      tick_ns: simulated ns of a tick.
    """

    lanes: tuple[Lane, ...]
    kinds: tuple[tuple[str, str, str, int], ...]
    columns: Columns
    tick_ns: float


def lanes(scheduled: Schedule) -> Lanes:
    """The lanes of a schedule."""
    queues = scheduled.work.queues
    order = sorted(range(len(queues)), key=lambda n: (queues[n].core, _RANK[queues[n].engine], queues[n].name))
    rows = tuple(
        Lane(
            core=queues[n].core,
            engine=queues[n].engine,
            name=f"dma {queues[n].name}" if queues[n].engine == "dma" else queues[n].engine,
            queue=n,
        )
        for n in order
    )
    place = np.zeros(max(len(queues), 1), np.int64)
    place[order] = np.arange(len(order))
    lane = place[scheduled.work.queue_of]
    dma = np.array([queue.engine == "dma" for queue in queues], bool)[scheduled.work.queue_of] if queues else np.zeros(0, bool)
    begin = scheduled.moves_ns
    end = np.where(dma, begin + scheduled.work.cost("payload_ns"), scheduled.free_ns) if len(begin) else begin
    known: dict[tuple[str, str, str, int], int] = {}
    kind = np.array(
        [known.setdefault((e.opcode, word_of(e), e.file, e.line), len(known)) for e in scheduled.events], np.int64
    ).reshape(-1)
    tick = max(0.25, scheduled.total_ns / 2**30)
    ranked = np.lexsort((begin, lane))
    position = np.zeros(len(ranked) + 1, np.int64)
    position[ranked] = np.arange(len(ranked))
    position[-1] = -1  # what has no cause
    on_path = np.zeros(len(ranked), np.int64)
    on_path[path_events(scheduled)] = 1
    start = np.rint(begin[ranked] / tick).astype(np.int64)
    columns = Columns(
        lane=lane[ranked],
        kind=kind[ranked],
        start=start,
        length=np.maximum(np.rint(end[ranked] / tick).astype(np.int64) - start, 0),
        reason=scheduled.reason[ranked].astype(np.int64),
        cause=position[scheduled.cause[ranked]],
        path=on_path[ranked],
        iteration=iterations(scheduled)[ranked],
        use=np.full(len(ranked), FULL, np.int64),
    )
    return Lanes(lanes=rows, kinds=tuple(known), columns=columns, tick_ns=tick)


def iterations(scheduled: Schedule) -> Ints:
    """The iteration of each instruction, from 0: a kernel's outermost loop ends with the stores of a tile of its output.

    A run of stores of outputs without a matmul or an activation between them belongs to one iteration; what comes after the
    last store belongs to the last one. Cores count apart. Spilled tiles are no outputs.
    """
    found = np.zeros(len(scheduled.events), np.int64)
    current: dict[int, int] = {}
    closing: dict[int, bool] = {}
    last: dict[int, int] = {}
    for index, event in enumerate(scheduled.events):
        core = event.core
        stored = event.engine == "dma" and bool(event.writes) and event.writes[0].buffer.role == "output"
        if closing.get(core) and event.engine in ("tensor", "scalar"):
            current[core], closing[core] = current.get(core, 0) + 1, False
        if stored:
            closing[core] = True
            last[core] = current.get(core, 0)
        found[index] = current.get(core, 0)
    top = np.array([last.get(core, current.get(core, 0)) for core in range(max(current, default=0) + 1)], np.int64)
    cores = np.array([event.core for event in scheduled.events], np.int64)
    return np.minimum(found, top[np.minimum(cores, len(top) - 1)]) if len(found) else found


def binned(found: Lanes, total_ns: float, bins: int = 4096) -> Lanes:
    """The same picture in `bins` equal parts of the time: an entry per part, lane and word that took any of it.

    What is longer than a part is cut at its ends, so that no part holds more than its own time of an instruction.
    """
    old = found.columns
    size = max(int(np.ceil(total_ns / found.tick_ns / bins)), 1)
    words = np.array([WORDS.index(word) for _, word, _, _ in found.kinds], np.int64)
    first, last = old.start // size, (old.start + np.maximum(old.length, 1) - 1) // size
    count = last - first + 1
    entry = np.repeat(np.arange(len(count)), count)
    part = np.arange(len(entry)) - np.repeat(np.cumsum(count) - count, count) + first[entry]
    taken = np.minimum(old.start[entry] + old.length[entry], (part + 1) * size) - np.maximum(old.start[entry], part * size)
    word = words[old.kind[entry]]
    key = (old.lane[entry] * (bins + 2) + part) * len(WORDS) + word
    unique, where = np.unique(key, return_inverse=True)
    total = np.bincount(where, weights=taken, minlength=len(unique))
    path = np.bincount(where, weights=taken * old.path[entry], minlength=len(unique))
    return Lanes(
        lanes=found.lanes,
        kinds=tuple((word, word, "", 0) for word in WORDS),
        tick_ns=found.tick_ns,
        columns=Columns(
            lane=unique // len(WORDS) // (bins + 2),
            kind=unique % len(WORDS),
            start=unique // len(WORDS) % (bins + 2) * size,
            length=np.full(len(unique), size, np.int64),
            reason=np.zeros(len(unique), np.int64),
            cause=np.full(len(unique), -1, np.int64),
            path=(path > 0).astype(np.int64),
            iteration=np.zeros(len(unique), np.int64),
            use=np.clip(np.ceil(total / size * FULL), 1, FULL).astype(np.int64),
        ),
    )
