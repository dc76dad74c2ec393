"""Sealed file: what a process writes for the server while a kernel's process runs, which may open whatever the user may.

The file has no name, but on Linux a process reaches those that another one of the same user has open. So what is written begins
with a digest under a key that only the server and the writer hold: the kernel's process was forked before it was drawn.
"""

from __future__ import annotations

import hmac
import secrets
import tempfile

from nki_hf.tools.judging.plain import Damaged

__all__ = ["SealedFile"]

_DIGEST, _SIZE = "sha256", 32


class SealedFile:
    """A file of one process, and of what it forks from now on."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(_SIZE)
        self._file = tempfile.TemporaryFile()

    def fileno(self) -> int:
        """The number of the open file."""
        return self._file.fileno()

    def write(self, data: bytes) -> None:
        """Write the whole of it."""
        self._file.write(hmac.digest(self._key, data, _DIGEST) + data)
        self._file.flush()

    def read(self) -> bytes:
        """What was written.

        Raises:
          Damaged: another process has changed it.
        """
        self._file.seek(0)
        found = self._file.read()
        data = found[_SIZE:]
        if not hmac.compare_digest(found[:_SIZE], hmac.digest(self._key, data, _DIGEST)):
            raise Damaged("another process has changed it: a kernel leaves the files of others alone")
        return data

    def close(self) -> None:
        """Give the file back."""
        self._file.close()
