"""Output files: found out to be writable before the work, and one line instead of a traceback where writing fails after it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["check_writable", "writing"]


def check_writable(path: Path) -> None:
    """Open `path` for writing without changing it; a file that this created is removed again. Pipes and devices are not opened.

    Raises:
      ValueError: it cannot be opened.
    """
    target = Path(os.path.realpath(path))  # of a link: what it points to, which need not exist
    if target.exists() and not target.is_file() and not target.is_dir():
        return
    with writing(path):
        new = not target.exists()
        target.open("ab").close()
        if new:
            target.unlink()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What fails inside because of the operating system becomes a ValueError that names `path`."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise ValueError(
            f"output={path} cannot be written ({why}): give a file in an existing folder that you may write to, with room."
        ) from None
