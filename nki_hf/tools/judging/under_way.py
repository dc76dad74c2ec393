"""Which function of a task is under way, in a file: the server reads it where a process did not come to its end.

A function that never returns, or ends its process, cannot be caught there. Without the file it would be the kernel's fault.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["blamed", "noted", "noted_in", "under_way"]

_MOST = 0.5
"""Part of the time from which a process that takes too long does so because of the task's functions."""

_note: Path | None = None
_now = ""
_spent = 0.0


def noted_in(note: Path) -> None:
    """From now on this process, a limited one of the server, writes there what is under way."""
    global _note
    _note = note


def noted() -> bool:
    """True in a process that notes it: an interrupt is the task's own there, since no terminal reaches it."""
    return _note is not None


@contextlib.contextmanager
def under_way(words: str) -> Iterator[None]:
    """Block that runs what `words` say, such as `task NAME: its part at size 512`; nothing is written where nobody reads it."""
    global _now, _spent
    if _note is None:
        yield
        return
    before, began = _now, time.monotonic()
    _now = json.dumps([words, began, _spent])
    _note.write_text(_now)
    try:
        yield
    finally:
        _now = before
        _spent += 0.0 if before else time.monotonic() - began
        _note.write_text(before)


def blamed(note: Path, how: Mapping[str, Any]) -> str:
    """What a function of the task did to a process, in words; empty if none is to blame.

    Args:
      note: the file that the process wrote.
      how: it ended, as `limited_process.ended` says.
    """
    try:
        words, began, spent = json.loads(note.read_text())
    except (OSError, ValueError, TypeError):
        return ""
    if "timeout" in how:
        took = spent + time.monotonic() - began
        limit = how["timeout"]
        return f"{words} was still running after {limit:.4g} s (--timeout)" if took >= _MOST * limit else ""
    if "crowd" in how:
        return f"{words} started more than {how['crowd']} processes"
    if "signal" in how:
        number = int(how["signal"])
        return f"{words} was ended by the signal {signal.Signals(number).name if number in set(signal.Signals) else number}"
    return f"{words} ended the process itself, with exit code {how.get('code')}"
