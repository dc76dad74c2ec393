"""Source lines: what each line of a kernel costs, beside its text."""

from __future__ import annotations

import linecache
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from nki_hf.observers.timing import critical_path
from nki_hf.timing.schedule import Schedule

__all__ = ["SourceFile", "SourceLine", "source_files"]

_NEAR = 2
"""Lines that are shown before and after one that costs anything."""


@dataclass(frozen=True, kw_only=True)
class SourceLine:
    """A line, and what its instructions take.

    Attributes:
      number: from 1.
      text: without its end.
      instructions: how many it issued.
      path_us: simulated us of the critical path that they take.
      busy_us: simulated us that they keep an engine or a queue, by its name.
    """

    number: int
    text: str
    instructions: int
    path_us: float
    busy_us: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """The lines of a file that cost something and their neighbours, in order; a gap in the numbers is what was left out.

    Attributes:
      file: its path.
      path_us: simulated us of the critical path on all of its lines.
      lines: the lines.
    """

    file: str
    path_us: float
    lines: tuple[SourceLine, ...]


def source_files(scheduled: Schedule) -> list[SourceFile]:
    """The files of a schedule's instructions, that with the largest part of the critical path first."""
    path: dict[tuple[str, int], float] = defaultdict(float)
    for step in critical_path(scheduled):
        path[step.file, step.line] += step.ns / 1e3
    places: dict[tuple[str, int, str], int] = {}
    where = np.array(
        [places.setdefault((event.file, event.line, event.engine), len(places)) for event in scheduled.events], np.int64
    )
    count = np.bincount(where, minlength=len(places))
    moved = scheduled.work.cost("payload_ns") if len(where) else np.zeros(0)
    taken = np.where(moved > 0, moved, scheduled.free_ns - scheduled.start_ns)
    busy = np.bincount(where, weights=taken, minlength=len(places)) / 1e3
    issued: dict[tuple[str, int], int] = defaultdict(int)
    spent: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for (file, line, engine), number in places.items():
        issued[file, line] += int(count[number])
        spent[file, line][engine] = float(busy[number])
    found = []
    for file in dict.fromkeys(file for file, _ in issued if file):
        text = linecache.getlines(file)
        hot = {line for name, line in issued if name == file}
        shown = sorted({n for line in hot for n in range(line - _NEAR, line + _NEAR + 1) if n in hot or 1 <= n <= len(text)})
        lines = tuple(
            SourceLine(
                number=n,
                text=text[n - 1].rstrip() if n <= len(text) else "",
                instructions=issued.get((file, n), 0),
                path_us=path.get((file, n), 0.0),
                busy_us=spent.get((file, n), {}),
            )
            for n in shown
        )
        found.append(SourceFile(file=file, path_us=sum(line.path_us for line in lines), lines=lines))
    return sorted(found, key=lambda item: -item.path_us)
