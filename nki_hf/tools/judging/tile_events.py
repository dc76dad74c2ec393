"""The instructions that each tile of an output follows from, as columns: what the looks for odd tiles compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nki_hf.sim.run.play import Marks
from nki_hf.sim.stream.access_table import AccessTable, Ints
from nki_hf.sim.stream.region_elements import elements_of
from nki_hf.tools.judging.followed import Followed

__all__ = ["TileEvents", "tile_events"]

Array = np.ndarray[Any, Any]
_OPERATORS = ("op", "op0", "op1", "reduce", "perf_mode", "is_transpose")


@dataclass(frozen=True, kw_only=True)
class TileEvents:
    """The events of all tiles, one tile's after the other's, each tile's in their order.

    Attributes:
      followed: what follows from what in the launch.
      tape: of the launch.
      count, per_head: tiles, and those of each head, or of each entry of a batch; they are numbered head by head.
      events: index in the launch, int64[events of tiles]; one that several tiles follow from is there for each.
      owner: the tile of each.
      labels: a number for line, opcode, operators and shapes, of each event of the launch.
      given: the form (of the tape's `forms`) of what its instruction is given beside tensors, of each event of the launch; -1 =
        none.
    """

    followed: Followed
    tape: Mapping[str, Any]
    count: int
    per_head: int
    events: Ints
    owner: Ints
    labels: Ints
    given: Ints

    @cached_property
    def label(self) -> Ints:
        """The label of each of `events`."""
        return self.labels[self.events]

    @cached_property
    def offsets(self) -> dict[str, Array]:
        """Where each event of the launch reads and writes, by operand; NaN where it has none."""
        table = self.followed.table
        offset = np.array([region.offset for region in table.forms], np.float64)[table.form]
        counts = {"reads": table.reads, "writes": np.diff(table.starts) - table.reads}
        begins = {"reads": table.starts[:-1], "writes": table.starts[:-1] + table.reads}
        found = {}
        for kind, count in counts.items():
            for place in range(int(count.max(initial=0))):
                column = np.full(len(count), np.nan)
                has = count > place
                column[has] = offset[begins[kind][has] + place]
                found[f"{kind}{place}"] = column
        return found


def tile_events(
    owner: Array,
    number: int,
    tape: Mapping[str, Any],
    followed: Followed,
    marks: Mapping[int, Marks],
    per_head: int,
    most: int,
) -> TileEvents | None:
    """The events of the tiles of an output; None if they are more than `most`.

    Args:
      owner: the tile of each element of the output, in the order of its buffer.
      number: the output's buffer.
      tape, followed, marks: of the launch.
      per_head: see `TileEvents`.
      most: events of all tiles together.
    """
    count = int(owner.max()) + 1
    writers = _writers(owner.reshape(-1), number, followed, count)
    tiles = [np.sort(np.array(followed.sources(wanted), np.int64)) for wanted in writers]
    lengths = list(map(len, tiles))
    if sum(lengths) > most:
        return None
    return TileEvents(
        followed=followed,
        tape=tape,
        count=count,
        per_head=per_head,
        events=np.concatenate(tiles),
        owner=np.repeat(np.arange(count), lengths),
        labels=_labels(followed),
        given=_given(followed, tape, marks),
    )


def _writers(owner: Array, number: int, followed: Followed, count: int) -> list[list[int]]:
    """By tile, the events that write elements of it."""
    found: list[list[int]] = [[] for _ in range(count)]
    table = followed.table
    of = np.array([buffer.number == number for buffer in table.buffers], np.bool_)
    for access in np.flatnonzero(table.writes & of[table.buffer]).tolist():
        event = int(table.event[access])
        place = access - int(table.starts[event] + table.reads[event])
        for region in followed.events[event].writes[place : place + 1]:  # none of a meeting of cores
            tiles = elements_of(owner, region)
            for tile in () if tiles is None else np.unique(tiles).tolist():
                found[tile].append(event)
    return found


def _given(followed: Followed, tape: Mapping[str, Any], marks: Mapping[int, Marks]) -> Ints:
    """A number for what each event's instruction is given beside tensors: one for each form of the tape."""
    found = np.full(len(followed.events), -1, np.int64)
    cores = np.array([core for core, _, _, _ in followed.table.heads], np.int64)[followed.table.head]
    for core, mark in marks.items():
        ends = np.array(mark.events, np.int64)
        forms = [entry[2][1] if entry[0] == "isa" and entry[2][0] == "f" else -1 for entry in tape["cores"][str(core)]]
        counts = np.diff(ends)[: len(forms)]
        events = np.arange(int(ends[0]), int(ends[0]) + int(counts.sum()))
        mine = cores[events] == core
        found[events[mine]] = np.repeat(np.array(forms[: len(counts)], np.int64), counts)[mine]
    return found


def _labels(followed: Followed) -> Ints:
    """A number for the line, opcode, operators and shapes of each event."""
    table: AccessTable = followed.table
    shapes: dict[Any, int] = {}
    ids = [shapes.setdefault((form.shape, form.dtype.name), len(shapes)) for form in table.forms]
    shape = np.array(ids, np.int64)[table.form].tolist()
    opcodes = [opcode for _, _, _, opcode in table.heads]
    starts: Sequence[int] = table.starts.tolist()
    known: dict[Any, int] = {}
    found = []
    for event, head, begin, end in zip(followed.events, table.head.tolist(), starts, starts[1:], strict=False):
        get = event.attrs.get
        operators = tuple([str(value) for name in _OPERATORS if (value := get(name))])
        key = event.file, event.line, opcodes[head], operators, *shape[begin:end]
        found.append(known.setdefault(key, len(known)))
    return np.array(found, np.int64)
