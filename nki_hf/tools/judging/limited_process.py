"""Limited process: a forked process with limits of time and memory, how it ended, and what it wrote.

It writes its answer to a file of its folder, or to a sealed one where a kernel's process may run beside it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nki_hf.tools.judging import plain
from nki_hf.tools.judging.sealed_file import SealedFile

__all__ = ["answer_of", "bury", "ended", "error_of", "killed", "started"]

_FILE_BYTES = 1 << 28


_PAUSE = 0.02


_MOST_PROCESSES = 64


def started(
    body: Callable[[], bytes], folder: Path, name: str, seconds: float, memory: int, answer: SealedFile | None = None
) -> int:
    """Fork a process that writes what `body` gives: to `answer`, or to the file `name` of its folder."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        code = 70
        try:
            _confine(folder, name, memory, seconds, 2 if answer is None else answer.fileno())
            data = body()
            if answer is None:
                (folder / name).write_bytes(data)
            else:
                answer.write(data)
            code = 0
        except BaseException as error:  # what runs here is a stranger's: nothing of it may go on in the server's code
            with contextlib.suppress(BaseException):
                (folder / f"{name}.error").write_text(f"{type(error).__name__}: {error}"[:2000])
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    return process


def _confine(folder: Path, name: str, memory: int, seconds: float, kept: int) -> None:
    os.setsid()
    out = os.open(folder / f"{name}.out", os.O_WRONLY | os.O_CREAT, 0o600)
    err = os.open(folder / f"{name}.err", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, kept)  # nothing to write the server's answers to
    os.closerange(kept + 1, 256)
    sys.stdin, sys.stdout, sys.stderr = (
        open(0, closefd=False),
        open(1, "w", closefd=False),
        open(2, "w", closefd=False),
    )
    for what, limit in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(seconds) + 5),
    ):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(what, (limit, limit))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write that is too large raises instead


def ended(process: int, seconds: float, look: Callable[[], None] | None = None) -> dict[str, Any]:
    """How the process ended; after `seconds` it is killed, with what it started. Until then `look` is called now and again."""
    end, pause = time.monotonic() + seconds, 0.0005
    with _watched(process) as watched:
        while True:
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                with contextlib.suppress(OSError):
                    os.killpg(process, signal.SIGKILL)
                return {"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else {"code": os.WEXITSTATUS(status)}
            if look is not None:
                look()
            if time.monotonic() > end:
                killed(process)
                return {"timeout": seconds}
            if pause >= _PAUSE and _crowded(process):
                killed(process)
                return {"crowd": _MOST_PROCESSES}
            select.select(watched, [], [], pause)
            pause = min(pause * 1.5, _PAUSE)


@contextlib.contextmanager
def _watched(process: int) -> Iterator[list[int]]:
    """What `select` wakes up from when the process ends, where the system has that."""
    try:
        watched = [os.pidfd_open(process)]
    except (AttributeError, OSError):
        watched = []
    try:
        yield watched
    finally:
        for descriptor in watched:
            os.close(descriptor)


def _crowded(process: int) -> bool:
    """True if the session of a process has more members than a kernel needs: it forks without end."""
    count = 0
    with contextlib.suppress(OSError):  # no /proc: the time limit remains
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    count += os.getsid(int(name)) == process
    return count > _MOST_PROCESSES


def killed(process: int) -> None:
    """Kill a process and its session, and wait for it."""
    with contextlib.suppress(OSError):
        os.killpg(process, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def bury(spared: int | None = None) -> None:
    """Kill what a process started and left behind, but for one child; orphans are children of this process now."""
    for _ in range(200):
        found = [process for process in _children() if process != spared]
        for process in found:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(OSError):
            while spared is None and os.waitpid(-1, os.WNOHANG)[0]:
                pass
        for process in found:
            with contextlib.suppress(OSError):
                os.waitpid(process, os.WNOHANG)
        if not found:
            return
        time.sleep(0.005)


def _children() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []


def answer_of(folder: Path, name: str, ended: Mapping[str, Any], answer: SealedFile | None = None) -> dict[str, Any]:
    """What the process wrote, or an error that says how it ended; the first and the last argument as of `started`."""
    at = folder / name
    if ended.get("code") == 0 and (answer is not None or at.is_file()):
        try:
            found = plain.load(at.read_bytes() if answer is None else answer.read())
            if isinstance(found, dict):
                return found
        except Exception as error:  # a stranger's process may have written anything
            return error_of("damaged", f"what the process wrote cannot be read ({error})")
    if "crowd" in ended:
        return error_of("crowd", f"it started more than {ended['crowd']} processes: a kernel starts none")
    if "timeout" in ended:
        return error_of("timeout", f"it was still running after {ended['timeout']:.4g} s")
    if "signal" in ended:
        number = int(ended["signal"])
        word = signal.Signals(number).name if number in set(signal.Signals) else str(number)
        return error_of("killed", f"the process was ended by the signal {word}")
    note = folder / f"{name}.error"
    if note.is_file() and note.read_text().startswith("MemoryError"):
        return error_of("memory", "the process needs more memory than it may take: give a larger --memory, or allocate less")
    if note.is_file():
        return error_of(
            "crashed", note.read_text() or "the process could not write its answer: the file changed its own limits"
        )
    return error_of("exit", f"the process ended itself with exit code {ended.get('code')} before the kernel had returned")


def error_of(kind: str, message: str) -> dict[str, Any]:
    """An answer that says why there is none."""
    return {
        "stage": "load",
        "name": "",
        "traces": [],
        "error": {"kind": kind, "message": message, "limit": "", "advice": "", "file": "", "line": 0, "fault": False},
    }
