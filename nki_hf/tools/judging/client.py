"""The client's side of the server: started once per process and kept, so that a round costs no start of Python."""

from __future__ import annotations

import atexit
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from nki_hf.tools.judging import plain

__all__ = ["ask", "start"]

_SPARE = 60.0
"""Seconds beyond the limits of the kernel's process, that of --against and the judge's, after which the server has hung."""
_LOOK = 0.5

_lock = threading.Lock()
_server: subprocess.Popen[bytes] | None = None


def start() -> None:
    """Start the server, if it is not running; it gets ready while its client goes on.

    Raises:
      OSError: this system cannot fork.
    """
    global _server
    if not hasattr(os, "fork"):
        raise OSError("judging needs a system with fork (Linux, macOS, WSL).")
    if _server is None or _server.poll() is not None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # a process with threads cannot fork
        _server = subprocess.Popen(
            [sys.executable, "-m", "nki_hf.tools.judging.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        atexit.register(_stop, _server)


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """The server's record; an EOFError if it was killed or stopped on the way, by the kernel most likely."""
    with _lock:
        start()
        server = _server
        if server is None or server.stdin is None or server.stdout is None:
            raise EOFError("no server")
        try:
            plain.send(server.stdin, request)
            _await(server, 3 * float(request["seconds"]) + _SPARE)
            found: dict[str, Any] = plain.receive(server.stdout)
            return found
        except BaseException as error:  # an interrupt too: the next request must not get the answer of this one
            server.kill()
            server.wait()
            if not isinstance(error, EOFError | BrokenPipeError):
                raise
            raise EOFError("the judge's server was killed or stopped while the kernel ran") from error


def _await(server: subprocess.Popen[bytes], seconds: float) -> None:
    """Return when the server answers or ends; an EOFError if a kernel has stopped it (SIGSTOP), or it takes far too long."""
    if server.stdout is None:
        return
    end = time.monotonic() + seconds
    while not select.select([server.stdout], [], [], _LOOK)[0]:
        if _stopped(server.pid) or time.monotonic() > end:
            raise EOFError("the server does not answer")


def _stopped(process: int) -> bool:
    """True if a process is stopped by a signal; False where the system does not say."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.stdin is not None:
        server.stdin.close()
    server.kill()
    server.wait()
