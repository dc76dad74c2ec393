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

from nki_hf.tools.printable import printable

__all__ = ["QUIET", "Work", "working"]

QUIET = 2.0
"""Seconds before the first word."""
_LATER = (2.0, 10.0, 30.0, 60.0)
"""Seconds at which lines are printed without a terminal; then each time that the last one has passed again."""
_WITH_BAR = 90
"""Columns of a terminal from which there is room for a bar beside the words."""


class Work:
    """What runs, and how far it is.

    Attributes:
      what: the work.
      total: steps that there are, or None.
      done: steps that have ended.
      step: the step under way.
      began, advanced: when the work began, and when the latest step ended, on the clock of `time.monotonic`.
      tell: prints a line that stays, above the bar if there is one.
    """

    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total = what, total
        self.done = 0
        self.step = ""
        self.began = self.advanced = time.monotonic()
        self.tell: Callable[[str], None] = lambda text: _tell(text, sys.stderr)

    def begin(self, step: str) -> None:
        """Name the step that begins."""
        self.step = step

    def advance(self, step: str = "", count: int = 1) -> None:
        """`count` steps have ended; `step` begins."""
        self.done += count
        self.step = step or self.step
        self.advanced = time.monotonic()

    def name(self) -> str:
        """What runs."""
        return printable(self.what + (f": {self.step}" if self.step else ""))

    def state(self) -> str:
        """How far it is, since when it runs, and about how long it will.

        What is left is counted from the last step that ended, at the speed up to there, and never less than the steps after
        the one under way would take if that ended now.
        """
        now = time.monotonic()
        parts = [f"{min(self.done, self.total)} of {self.total}"] if self.total else []
        parts.append(f"{_span(now - self.began)} so far")
        if self.total and 0 < self.done < self.total:
            a_step = (self.advanced - self.began) / self.done
            after = self.total - self.done - 1
            least = max(a_step, (now - self.began) / (self.done + 1)) * after
            left = max(a_step * (after + 1) - (now - self.advanced), least)
            parts.append(f"about {_span(left)} left" if left >= 0.5 else "nearly done")
        return ", ".join(parts)

    def text(self) -> str:
        """One line: what runs, since when, and about how long it will."""
        return f"running {self.name()}, {self.state()}"


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
    work.tell = lambda text: _tell(text, where)
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


def _tell(text: str, stream: IO[str]) -> None:
    print(printable(text, but="\n\t"), file=stream, flush=True)


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
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
    from rich.text import Text

    console = Console(file=stream)
    columns = [SpinnerColumn("line"), TextColumn("{task.description}", markup=False)]
    if work.total and console.width >= _WITH_BAR:
        columns.append(BarColumn(bar_width=16))
    with Progress(*columns, TextColumn("{task.fields[state]}"), console=console, transient=True) as bar:
        task = bar.add_task(work.name(), total=work.total, start=True, state=work.state())
        before, work.tell = work.tell, lambda text: bar.console.print(Text(printable(text, but="\n\t")), soft_wrap=True)
        while not over.wait(0.2):
            state = work.state()
            room = max(10, console.width - len(state) - (22 if len(columns) > 2 else 5))
            bar.update(task, completed=work.done, description=_shortened(work, room), state=state)
        work.tell = before


def _shortened(work: Work, room: int) -> str:
    """What runs, in `room` letters: the step, which changes, before the name of the command."""
    short = printable(work.step or work.what)
    for text in (work.name(), short):
        if len(text) <= room:
            return text
    return f"{short[: room - 3]}..."


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
