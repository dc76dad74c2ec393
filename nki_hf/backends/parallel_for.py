"""Parallel for: one function on every item, on threads of this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

from nki_hf.sim.execution.numerics import engine_numerics

__all__ = ["parallel_for", "usable_processors"]

_Item = TypeVar("_Item")


def usable_processors() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parallel_for(work: Callable[[_Item], None], items: tuple[_Item, ...], threads: int) -> None:
    """Call `work` on every item, on up to `threads` threads, this one included; the first exception is raised here."""
    queue, failures, lock = iter(items), [], threading.Lock()
    stop = threading.Event()

    def take_turns() -> None:
        while not stop.is_set():
            with lock:
                item = next(queue, None)
            if item is None:
                return
            work(item)

    def worker() -> None:
        with engine_numerics():  # once for all parts
            take_turns()

    def guarded() -> None:
        try:
            worker()
        except BaseException as error:  # handed to the calling thread, which raises it
            failures.append(error)
            stop.set()

    others: list[threading.Thread] = []
    try:
        for _ in range(min(threads, len(items)) - 1):
            others.append(threading.Thread(target=guarded, daemon=True))
            others[-1].start()
        worker()
    finally:
        stop.set()
        for thread in others:
            if thread.ident is not None:  # started
                thread.join()
    if failures:
        raise failures[0]
