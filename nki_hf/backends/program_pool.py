"""Program pool: idle recordings of launches, of which the longest unused ones go beyond a limit of memory."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import OrderedDict
from typing import Any

from nki_hf.sim import Program

__all__ = ["Key", "ProgramPool"]

Key = tuple[Any, ...]


class ProgramPool:
    """Idle recordings by key, the least recently used key first. A recording is out of the pool while a thread replays it.

    `_idle` alone says what is held. An interrupt (Ctrl-C) may end a change of it anywhere: the byte count is then made again
    from it.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._idle: OrderedDict[Key, list[tuple[Program, int]]] = OrderedDict()
        self._used = 0
        self._counted = True  # False while `_used` may differ from `_idle`
        self._dropped = 0  # bytes dropped and not yet given back to the system
        self._lock = threading.Lock()

    def take(self, key: Key) -> Program | None:
        """An idle recording of that key, or None."""
        with self._lock:
            self._count()
            entries = self._idle.get(key)
            if not entries:
                return None
            self._counted = False
            program, size = entries.pop()
            self._used -= size
            self._counted = True
            return program

    def give(self, key: Key, program: Program) -> None:
        """Put a recording back; beyond the limit the longest unused ones are dropped."""
        size = program.nbytes + _BYTES_PER_INSTRUCTION * program.instructions
        with self._lock:
            self._count()
            self._counted = False
            self._idle.setdefault(key, []).append((program, size))
            self._used += size
            self._idle.move_to_end(key)
            self._drop()
            self._counted = True
            give_back, self._dropped = self._dropped >= _GIVE_BACK, self._dropped % _GIVE_BACK
        if give_back:
            _trim()

    def _drop(self) -> None:
        """Drop the longest unused recordings beyond the limit."""
        while self._used > self._limit:
            oldest, entries = next(iter(self._idle.items()))
            if not entries:  # all in use, or dropped
                if len(self._idle) == 1:
                    break
                del self._idle[oldest]
                continue
            if len(self._idle) == len(entries) == 1:
                break
            dropped, size = entries.pop(0)
            self._used -= size
            self._dropped += size
            dropped.release()

    def clear(self) -> None:
        """Drop all."""
        with self._lock:
            self._counted = False
            for entries in self._idle.values():
                for program, _ in entries:
                    program.release()
            self._idle.clear()
            self._used = self._dropped = 0
            self._counted = True
        _trim()

    def after_fork(self) -> None:
        """In a forked child: its lock may be held by a thread that is not there."""
        self._lock = threading.Lock()

    def _count(self) -> None:
        if not self._counted:
            self._used = sum(size for entries in self._idle.values() for _, size in entries)
            self._counted = True


_GIVE_BACK = 64 << 20
"""Bytes of dropped recordings after which freed memory is returned to the system: the C library keeps it otherwise."""


def _trim() -> None:
    """Return freed memory to the system, where the C library has a way to (glibc)."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


_BYTES_PER_INSTRUCTION = 4500
"""Closure, array views and buffer record of a recorded instruction: measured with tracemalloc on flash_prefill."""
