"""Files that are complete or absent: written aside, then moved into place."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["whole_file"]


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write, which becomes `path` when the block ends, and vanishes if it ends by an exception.

    The folder is made if it is missing. An interrupt (Ctrl-C) counts as an exception.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)  # mkstemp's files are private
        os.replace(aside, path)
    except BaseException:  # an interrupt too: nothing half-written may stay
        Path(aside).unlink(missing_ok=True)
        raise
