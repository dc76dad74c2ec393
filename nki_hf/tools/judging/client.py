"""The client's side of the server: started once per process and kept, so that a round costs no start of Python.

They speak over a pair of sockets, which no other process can open (a pipe of a process can be opened under /proc on Linux).
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from nki_hf.tools.judging import plain

__all__ = ["ask", "start"]

_SPARE = 60.0
"""Seconds beyond the limits of the kernel's process, that of --against and the judge's, after which the server has hung."""
_LOOK = 0.5

_lock = threading.Lock()


class _Server(NamedTuple):
    """A process, and this one's end of the pair."""

    process: subprocess.Popen[bytes]
    line: socket.socket


_server: _Server | None = None


def start() -> None:
    """Start the server, if it is not running; it gets ready while its client goes on.

    Raises:
      OSError: this system cannot fork.
    """
    global _server
    if not hasattr(os, "fork"):
        raise OSError("judging needs a system with fork (Linux, macOS, WSL).")
    if _server is None or _server.process.poll() is not None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # a process with threads cannot fork
        line, its = socket.socketpair()
        with its:
            process = subprocess.Popen(
                [sys.executable, "-m", "nki_hf.tools.judging.server"],
                stdin=its.fileno(),
                stdout=its.fileno(),
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        _server = _Server(process, line)
        atexit.register(_stop, _server)


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """The server's record; an EOFError if it was killed or stopped on the way, by the kernel most likely."""
    with _lock:
        start()
        server = _server
        if server is None:
            raise EOFError("no server")
        try:
            with server.line.makefile("wb") as requests:
                plain.send(requests, {**request, "folder": _folder()})
            _await(server, 3 * float(request["seconds"]) + _SPARE)
            with server.line.makefile("rb") as answers:
                found: dict[str, Any] = plain.receive(answers)
            return found
        except BaseException as error:  # an interrupt too: the next request must not get the answer of this one
            _stop(server)
            if not isinstance(error, EOFError | BrokenPipeError | ConnectionResetError):
                raise
            raise EOFError("the judge's server was killed or stopped while the kernel ran") from error


def _folder() -> str:
    """The folder that relative paths of this process begin in; empty if it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _await(server: _Server, seconds: float) -> None:
    """Return when the server answers or ends; an EOFError if a kernel has stopped it (SIGSTOP), or it takes far too long."""
    end = time.monotonic() + seconds
    while not select.select([server.line], [], [], _LOOK)[0]:
        if _stopped(server.process.pid) or time.monotonic() > end:
            raise EOFError("the server does not answer")


def _stopped(process: int) -> bool:
    """True if a process is stopped by a signal; False where the system does not say."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def _stop(server: _Server) -> None:
    server.line.close()
    server.process.kill()
    server.process.wait()
