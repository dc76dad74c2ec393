"""Progress: a bar with an estimate on a terminal, and without one a line now and then on standard error that says what runs.

Nothing is said of what takes less than `QUIET` seconds, or with NKI_HF_PROGRESS=0 in the environment. An interrupt (Ctrl-C)
ends it cleanly: the bar goes, tools/program.py says the one word.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

__all__ = ["QUIET", "Work", "working"]

QUIET = 2.0
"""Seconds before the first word."""
_LATER = (2.0, 10.0, 30.0, 60.0)
"""Seconds at which lines are printed without a terminal; then each time that the last one has passed again."""


class Work:
    """What runs, and how far it is.

    Attributes:
      what: the work.
      total: steps that there are, or None.
      done: steps that have ended.
      step: the step under way.
      tell: prints a line that stays, above the bar if there is one.
    """

    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total = what, total
        self.done = 0
        self.step = ""
        self.began = time.monotonic()
        self.tell: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)

    def begin(self, step: str) -> None:
        """Name the step that begins."""
        self.step = step

    def advance(self, step: str = "", count: int = 1) -> None:
        """`count` steps have ended; `step` begins."""
        self.done += count
        self.step = step or self.step

    def text(self) -> str:
        """One line: what runs, since when, and about how long it will."""
        seconds = time.monotonic() - self.began
        parts = [f"running {self.what}" + (f": {self.step}" if self.step else "")]
        if self.total:
            parts.append(f"{min(self.done, self.total)} of {self.total}")
        parts.append(f"{_span(seconds)} so far")
        if self.total and 0 < self.done < self.total:
            parts.append(f"about {_span(seconds / self.done * (self.total - self.done))} left")
        return ", ".join(parts)


@contextmanager
def working(what: str, total: int | None = None, *, file: IO[str] | None = None) -> Iterator[Work]:
    """Show the work of a block.

    Args:
      what: a few words, e.g. `nki_hf verify`.
      total: how many steps it has, of which `Work.advance` tells; None = not known.
      file: where to; None = standard error.
    """
    stream = sys.stderr if file is None else file
    if os.environ.get("NKI_HF_PROGRESS") == "0":
        stream = None
    work = Work(what, total)
    where = sys.stderr if file is None else file
    work.tell = lambda text: print(text, file=where, flush=True)
    over = threading.Event()
    watch = None
    if stream is not None:
        terminal = bool(getattr(stream, "isatty", lambda: False)())
        watch = threading.Thread(target=_bar if terminal else _lines, args=(work, over, stream), daemon=True)
        watch.start()
    try:
        yield work
    finally:
        over.set()
        if watch is not None:
            watch.join()


def _lines(work: Work, over: threading.Event, stream: IO[str]) -> None:
    """Without a terminal: lines at `_LATER`."""
    for due in _moments():
        if over.wait(max(0.0, work.began + due - time.monotonic())):
            return
        try:
            print(work.text(), file=stream, flush=True)
        except (OSError, ValueError):  # the reader has left, or the stream is closed
            return


def _moments() -> Iterator[float]:
    yield from _LATER
    after = _LATER[-1]
    while True:
        after += _LATER[-1]
        yield after


def _bar(work: Work, over: threading.Event, stream: IO[str]) -> None:
    """On a terminal: a bar that vanishes at the end."""
    if over.wait(QUIET):
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    console = Console(file=stream)
    columns = (
        SpinnerColumn("line"), TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn(),
        TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    shown = columns if work.total else (columns[0], columns[1], columns[4])
    with Progress(*shown, console=console, transient=True, expand=True) as bar:
        task = bar.add_task(work.what, total=work.total, start=True)
        before, work.tell = work.tell, lambda text: bar.console.print(Text(text), soft_wrap=True)
        while not over.wait(0.2):
            room = max(10, console.width - 46 if work.total else console.width - 14)
            text = work.what + (f": {work.step}" if work.step else "")
            bar.update(task, completed=work.done, description=text if len(text) <= room else f"{text[: room - 3]}...")
        work.tell = before


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
