"""The server: a clean process that forks one process per step, with limits on time and memory, and buries what they leave.

    python -m nki_hf.tools.judging.server

It reads requests from standard input and answers on standard output (see plain.py). For each request it forks the kernel's
process (child.py), which writes its tapes to a file, and after its end the judge's process (stages.py), which reads them. The
server never runs anything of a kernel's, so both start clean.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nki_hf.tools.judging import child, plain, stages

__all__ = ["main"]

_SHOWN = 4000
"""Characters of a kernel's own output that are kept of its beginning and of its end."""
_FILE_BYTES = 1 << 28
_SUBREAPER = 36


def main() -> None:
    """Serve until standard input ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    with contextlib.suppress(OSError, AttributeError):  # orphans come here, on Linux
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    while True:
        try:
            request = plain.receive(requests)
        except EOFError:
            return
        plain.send(answers, _served(request))


def _served(request: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="nki_hf_judge_") as name:
        folder = Path(name)
        limits = float(request["seconds"]), int(request["memory"])
        start = time.perf_counter()
        began = {**request["child"], "progress": str(folder / "began")}
        ended = _run(lambda: plain.dump(child.answer(began)), folder, "kernel", *limits)
        answer = _answer(folder, "kernel", ended)
        if answer["error"] is not None and answer["stage"] == "load" and (folder / "began").exists():
            answer["stage"] = "run"
        seconds = time.perf_counter() - start
        request["judge"]["against"] = _against(request, folder, *limits)
        # what the kernel's process left in the folder is not what the judge reads
        whole = {**request["judge"], "answer": answer, "printed": _printed(folder), "kernel_seconds": seconds}
        ended = _run(lambda: plain.dump(stages.judged(whole, folder / "stage")), folder, "judge", *limits)
        record = _answer(folder, "judge", ended)
        if "verdict" not in record:
            at = folder / "stage"
            record = stages.broken(whole, at.read_text() if at.is_file() else "load", record["error"])
        return record


def _against(request: Mapping[str, Any], folder: Path, seconds: float, memory: int) -> dict[str, Any] | None:
    """The tapes of the kernel that times are compared with, from a process of its own."""
    if request["against"] is None:
        return None
    ended = _run(
        lambda: plain.dump(child.answer({**request["against"], "progress": os.devnull})), folder, "against", seconds, memory
    )
    return {**request["judge"]["against"], "answer": _answer(folder, "against", ended)}


def _run(body: Callable[[], bytes], folder: Path, name: str, seconds: float, memory: int) -> dict[str, Any]:
    """Fork, let `body` write its bytes to a file, and wait; how the process ended."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        code = 70
        try:
            _confine(folder, name, memory, seconds)
            data = body()
            (folder / name).write_bytes(data)
            code = 0
        except BaseException as error:
            with contextlib.suppress(BaseException):
                (folder / f"{name}.error").write_text(f"{type(error).__name__}: {error}"[:2000])
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    ended = _wait(process, seconds)
    with contextlib.suppress(OSError):
        os.killpg(process, signal.SIGKILL)
    _bury()
    return ended


def _confine(folder: Path, name: str, memory: int, seconds: float) -> None:
    os.setsid()
    out = os.open(folder / f"{name}.out", os.O_WRONLY | os.O_CREAT, 0o600)
    err = os.open(folder / f"{name}.err", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, 256)  # nothing to write answers to
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


def _wait(process: int, seconds: float) -> dict[str, Any]:
    end, pause = time.monotonic() + seconds, 0.0005
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            if os.WIFSIGNALED(status):
                return {"signal": os.WTERMSIG(status)}
            return {"code": os.WEXITSTATUS(status)}
        if time.monotonic() > end:
            with contextlib.suppress(OSError):
                os.killpg(process, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return {"timeout": seconds}
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def _bury() -> None:
    """Kill what the process started and left behind; orphans are children of this process now."""
    for _ in range(200):
        found = _children()
        for process in found:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(OSError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not found:
            return
        time.sleep(0.005)


def _children() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []


def _answer(folder: Path, name: str, ended: Mapping[str, Any]) -> dict[str, Any]:
    """What the process wrote, or an error that says how it ended."""
    at = folder / name
    if ended.get("code") == 0 and at.is_file():
        try:
            found = plain.load(at.read_bytes())
            if isinstance(found, dict):
                return found
        except Exception as error:
            return _error("damaged", f"what the process wrote cannot be read ({error})")
    if "timeout" in ended:
        return _error("timeout", f"it was still running after {ended['timeout']:g} s")
    if "signal" in ended:
        number = int(ended["signal"])
        word = signal.Signals(number).name if number in set(signal.Signals) else str(number)
        return _error("killed", f"the process was ended by the signal {word}")
    note = folder / f"{name}.error"
    if note.is_file():
        return _error("crashed", note.read_text())
    return _error("exit", f"the process ended itself with exit code {ended.get('code')} before the kernel had returned")


def _error(kind: str, message: str) -> dict[str, Any]:
    return {
        "stage": "load",
        "name": "",
        "traces": [],
        "error": {"kind": kind, "message": message, "limit": "", "advice": "", "file": "", "line": 0, "fault": False},
    }


def _printed(folder: Path) -> dict[str, Any]:
    """The kernel's own output: text of both streams, long ones with their middle left out, and how long they were."""
    found: dict[str, Any] = {}
    for stream in ("out", "err"):
        at = folder / f"kernel.{stream}"
        size = at.stat().st_size if at.is_file() else 0
        text = ""
        if size:
            with at.open("rb") as file:
                text = file.read(_SHOWN).decode(errors="replace")
                if size > _SHOWN:
                    file.seek(max(_SHOWN, size - _SHOWN))
                    text += ("\n[...]\n" if size > 2 * _SHOWN else "") + file.read().decode(errors="replace")
        found[f"std{stream}"], found[f"std{stream}_bytes"] = text, size
    return found


if __name__ == "__main__":
    main()
