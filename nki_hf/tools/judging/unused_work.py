"""Work whose results reach no output: a kernel that takes another tile at timed sizes alone leaves the right one unused.

Found twice, since a tile may be written by one instruction and read in parts, or be written again before it is read:

* an instruction is used if an output follows from what it writes, by the dependencies of the stream,
* an allocation is used as far as used instructions read the elements that are written there, at any time. One line may
  allocate for a whole kernel (`def tile(*shape)`): tiles of one shape are compared with each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nki_hf.sim.stream.access_table import AccessTable, Ints
from nki_hf.sim.stream.region_elements import elements_of
from nki_hf.tools.judging.followed import Bools, Followed
from nki_hf.tools.judging.line_words import line_words
from nki_hf.tools.judging.other_kinds import Place

__all__ = ["Part", "unused", "used_parts"]

_ALLOCATION = "allocation"
"""In the place of an opcode, followed by the shape for tiles of one shape alone."""
_LESS = 0.98
"""Share of the judged sizes' share: of two sizes, the first and last turns of loops are not the same part."""


@dataclass
class Part:
    """Elements that a line writes, and how many of them an output follows from."""

    written: int = 0
    used: int = 0

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
    _add_allocations(found, table, used)
    return found


def _add_allocations(found: dict[Place, Part], table: AccessTable, used: Bools) -> None:
    """The parts of the allocations on chip."""
    counts = table.writes | used[table.event]  # what reads for nothing does not count
    forms = len(table.forms)
    pairs = np.unique((table.buffer[counts] * forms + table.form[counts]) * 2 + table.writes[counts])
    buffers, rest = np.divmod(pairs, 2 * forms)
    firsts = np.flatnonzero(np.concatenate([[True], buffers[1:] != buffers[:-1]]))
    known: dict[bytes, tuple[int, int]] = {}  # fresh tiles of a loop are accessed alike
    for begin, end in pairwise([*firsts.tolist(), len(pairs)]):
        buffer = table.buffers[int(buffers[begin])]
        if not buffer.on_chip:
            continue
        key = rest[begin:end].tobytes()
        if key not in known:
            known[key] = _counted(rest[begin:end], table)
        written, read = known[key]
        if written:
            for what in (_ALLOCATION, f"{_ALLOCATION} {tuple(buffer.shape)}"):
                part = found.setdefault((buffer.file, buffer.line, what), Part())
                part.written += written
                part.used += read


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
    mixed = _mixed(sizes, timed)
    worst: tuple[float, str, str, int] | None = None
    for place, part in timed.items():
        shares = [found[place].share for found in sizes if place in found]
        if place in mixed or not shares or part.share >= min(shares) * _LESS:
            continue
        file, line, opcode = place
        what = "the tile allocated" if opcode.startswith(_ALLOCATION) else f"what {opcode} writes"
        at = line_words(own, file, line)
        words = f"uses {part.share:.0%} of {what} at {at}, and {min(shares):.0%} of it at the sizes of --check"
        if worst is None or part.share / min(shares) < worst[0]:
            worst = part.share / min(shares), words, file, line
    return None if worst is None else worst[1:]


def _mixed(sizes: list[Mapping[Place, Part]], timed: Mapping[Place, Part]) -> set[Place]:
    """The lines that allocate tiles of known shapes alone: in the sum of them other shapes are more at another size."""
    known, new = set[Place](), set[Place]()
    for place in timed:
        file, line, opcode = place
        if opcode.startswith(f"{_ALLOCATION} "):
            (known if any(place in found for found in sizes) else new).add((file, line, _ALLOCATION))
    return known - new
