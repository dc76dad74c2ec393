"""Work whose results reach no output: a kernel that takes another tile at timed sizes alone leaves the right one unused.

Found twice, since a tile may be written by one instruction and read in parts, or be written again before it is read:

* an instruction is used if an output follows from what it writes, by the dependencies of the stream,
* an allocation is used as far as used instructions read the elements that are written there, at any time. One line may
  allocate for a whole kernel (`def tile(*shape)`): tiles are compared with those of the same shape that the same lines write
  and read, where a timed size has no other ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nki_hf.sim.stream.access_table import AccessTable, Ints
from nki_hf.sim.stream.events import Event
from nki_hf.sim.stream.region_elements import elements_of
from nki_hf.tools.judging.followed import Bools, Followed
from nki_hf.tools.judging.line_words import line_words
from nki_hf.tools.judging.other_kinds import Place

__all__ = ["Part", "unused", "used_parts"]

_ALLOCATION = "allocation"
"""In the place of an opcode, followed by a number of `_GROUPS` and what the tiles of the group have in common."""
_GROUPS = range(4)
"""Tiles of a line by shape and by the lines that access them, by these lines, by shape, and all of them."""
_LESS = 0.98
"""Share of the judged sizes' share: of two sizes, the first and last turns of loops are not the same part."""


@dataclass
class Part:
    """Elements that a line writes, and how many of them an output follows from; of an allocation, how many tiles it is."""

    written: int = 0
    used: int = 0
    tiles: int = 0

    @property
    def share(self) -> float:
        """Of the written elements."""
        return self.used / self.written


def used_parts(followed: Followed, outputs: Collection[int]) -> dict[Place, Part]:
    """The part of what each line writes that reaches one of the buffers `outputs` (or an input that is written)."""
    found: dict[Place, Part] = {}
    if not followed.events:
        return found
    table = followed.table
    ends = np.array([buffer.number in outputs or buffer.role == "input" for buffer in table.buffers], np.bool_)
    used = followed.needed(table.event[table.writes & ends[table.buffer]])
    size = np.array([region.elements for region in table.forms], np.int64)[table.form] * table.writes
    written = np.add.reduceat(np.append(size, 0), table.starts[:-1]) * (np.diff(table.starts) > 0)
    for event, elements, is_used in zip(followed.events, written.tolist(), used.tolist(), strict=True):
        if elements:
            part = found.setdefault((event.file, event.line, event.opcode), Part())
            part.written += elements
            part.used += elements * is_used
    _add_allocations(found, followed.events, table, used)
    return found


def _add_allocations(found: dict[Place, Part], events: Sequence[Event], table: AccessTable, used: Bools) -> None:
    """The parts of the allocations on chip."""
    counts = table.writes | used[table.event]  # what reads for nothing does not count
    places: dict[tuple[str, int], int] = {}
    place = np.array([places.setdefault((event.file, event.line), len(places)) for event in events], np.int64)[table.event]
    lines = [f"{file}:{line}" for file, line in places]
    known: dict[bytes, tuple[int, int]] = {}  # fresh tiles of a loop are accessed alike
    users: dict[bytes, str] = {}
    forms, by = _by_buffer(table, table.form, counts), _by_buffer(table, place, counts)
    for (number, accesses), (_, access_lines) in zip(forms, by, strict=True):
        buffer = table.buffers[number]
        if not buffer.on_chip:
            continue
        key, user_key = accesses.tobytes(), access_lines.tobytes()
        if key not in known:
            known[key] = _counted(accesses, table)
        if user_key not in users:
            users[user_key] = " ".join(sorted(f"{lines[int(item) // 2]}{'rw'[int(item) % 2]}" for item in access_lines))
        written, read = known[key]
        if written:
            shape, user = str(tuple(buffer.shape)), users[user_key]
            for group, same in zip(_GROUPS, (f"{shape} {user}", user, shape, ""), strict=True):
                part = found.setdefault((buffer.file, buffer.line, f"{_ALLOCATION} {group} {same}"), Part())
                part.written += written
                part.used += read
                part.tiles += 1


def _by_buffer(table: AccessTable, column: Ints, counts: Bools) -> Iterator[tuple[int, Ints]]:
    """Of each buffer its number and what its accesses have in a column, each once: twice that, and one more for a write."""
    most = 2 * (int(column.max()) + 1)
    buffers, rest = np.divmod(np.unique(table.buffer[counts] * most + 2 * column[counts] + table.writes[counts]), most)
    firsts = np.flatnonzero(np.concatenate([[True], buffers[1:] != buffers[:-1]]))
    for begin, end in pairwise([*firsts.tolist(), len(buffers)]):
        yield int(buffers[begin]), rest[begin:end]


def _counted(accesses: Ints, table: AccessTable) -> tuple[int, int]:
    """Elements of a buffer that are written, and those of them that are read; all where that is not known."""
    regions = [(table.forms[int(access) // 2], bool(access % 2)) for access in accesses]
    buffer = regions[0][0].buffer
    written, read = np.zeros(buffer.elements, np.bool_), np.zeros(buffer.elements, np.bool_)
    for region, writes in regions:
        flags = elements_of(written if writes else read, region)
        if flags is None:
            return 1, 1
        flags[...] = True
    return int(written.sum()), int((written & read).sum())


def unused(judged: Iterable[Mapping[Place, Part]], timed: Mapping[Place, Part], own: str) -> tuple[str, str, int] | None:
    """A line of which a timed size uses less than every judged size, as words, file and line; None if there is none. `own`: the
    kernel's file.
    """
    sizes = list(judged)
    apart = _apart(sizes, timed)
    worst: tuple[float, str, str, int] | None = None
    for place, part in timed.items():
        shares = [found[place].share for found in sizes if place in found]
        if place in apart or not shares or part.share >= min(shares) * _LESS:
            continue
        file, line, opcode = place
        what = f"what {opcode} writes"
        if opcode.startswith(_ALLOCATION):
            what = "the tile allocated" if part.tiles == 1 else f"the {part.tiles:,} tiles allocated"
        at = line_words(own, file, line)
        words = f"uses {part.share:.0%} of {what} at {at}, and {min(shares):.0%} at the sizes of --check"
        if worst is None or part.share / min(shares) < worst[0]:
            worst = part.share / min(shares), words, file, line
    return None if worst is None else worst[1:]


def _apart(sizes: list[Mapping[Place, Part]], timed: Mapping[Place, Part]) -> set[Place]:
    """Allocations that are not compared: those of each line are in the finest groups that all occur at a judged size.

    In coarser ones tiles of another use are more at another size.
    """
    new: dict[tuple[str, int], list[bool]] = {}
    places = [(place, int(place[2].split(" ", 2)[1])) for place in timed if place[2].startswith(_ALLOCATION)]
    for place, group in places:
        if not any(place in found for found in sizes):
            new.setdefault(place[:2], [False] * len(_GROUPS))[group] = True
    none = [False] * len(_GROUPS)
    return {place for place, group in places if group != _finest(new.get(place[:2], none))}


def _finest(new: Sequence[bool]) -> int:
    return next((group for group in _GROUPS if not new[group]), _GROUPS[-1])
