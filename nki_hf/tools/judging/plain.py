"""Plain data between processes: what another process wrote is read without running or importing anything for it (JSON)."""

from __future__ import annotations

import json
import struct
from typing import IO, Any

__all__ = ["Damaged", "dump", "load", "receive", "send"]


class Damaged(ValueError):
    """Bytes that are no plain data."""


def dump(value: Any) -> bytes:
    """Bytes of a value made of numbers, strings, lists and dicts of strings; tuples arrive as lists.

    Raises:
      TypeError: it holds something else.
    """
    return json.dumps(value, check_circular=False).encode()


def load(data: bytes) -> Any:
    """The value again; nothing in it is run.

    Raises:
      Damaged: the bytes are no such value.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"damaged: {type(error).__name__}: {error}") from error


def send(stream: IO[bytes], value: Any) -> None:
    """Write a value with its length before it."""
    data = dump(value)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """The next value; an EOFError if the writer is gone."""
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError("the other process has ended")
    return load(stream.read(struct.unpack("<Q", head)[0]))
