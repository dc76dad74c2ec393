"""Input files: regular ones only, because a pipe that nobody writes to would be waited for without end."""

from __future__ import annotations

import errno
from pathlib import Path

__all__ = ["check_regular"]


def check_regular(path: Path) -> None:
    """Refuse a pipe, a device or a folder.

    Raises:
      OSError: `path` exists and is no regular file, or cannot be asked for.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
