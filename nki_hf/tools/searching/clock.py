"""The clock of a run: wall-clock seconds of all of its sessions, of killed ones too, for the budget."""

from __future__ import annotations

import math
import os
import threading
import time
from pathlib import Path
from types import TracebackType

__all__ = ["Clock"]

_EVERY = 1.0


class Clock:
    """Seconds that the sessions of a run have taken together; inside its block they are written down every second.

    Args:
      path: the file with the seconds of earlier sessions; one that is not there, or cannot be read, has none.
      least: seconds that there have been at least, as the rounds say.
    """

    def __init__(self, path: Path, least: float) -> None:
        self._path = path
        self._zero = time.monotonic() - max(least, _read(path))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __call__(self) -> float:
        """Seconds by now."""
        return time.monotonic() - self._zero

    def __enter__(self) -> Clock:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self._write()

    def _beat(self) -> None:
        while not self._stop.wait(_EVERY):
            self._write()

    def _write(self) -> None:
        """In place and of one width, so that no moment leaves less than a number."""
        number = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.write(number, f"{self():020.3f}\n".encode())
        finally:
            os.close(number)


def _read(path: Path) -> float:
    try:
        seconds = float(path.read_text())
    except (OSError, ValueError):
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0
