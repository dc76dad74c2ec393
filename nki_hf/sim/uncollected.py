"""A block of code in which Python's cyclic garbage collector rests: what only grows is not worth searching."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["uncollected"]


@contextmanager
def uncollected() -> Iterator[None]:
    """No collections inside, unless the program has switched them off itself. A trace or a recording keeps many thousands of
    objects, none of them in a cycle, and searching them again and again takes a third of its time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
