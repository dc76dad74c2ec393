"""The server: a clean process that forks one process per step, with limits on time and memory, and buries what they leave.

    python -m nki_hf.tools.judging.server

It reads requests from standard input and answers on standard output (see plain.py). For each request it forks the kernel's
process (child.py), which writes its tapes to a file, and after its end the judge's processes (stages.py, time_stage.py), which
read them. The server never runs anything of a kernel's, so all of them start clean.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nki_hf.tools.judging import child, plain, stages, task_trial, time_stage, verdict
from nki_hf.tools.judging.findings import finding
from nki_hf.tools.judging.limited_process import answer_of, bury, ended, error_of, killed, started
from nki_hf.tools.judging.stage_names import TASK_FAILS
from nki_hf.tools.judging.under_way import blamed, noted_in

__all__ = ["clear_left_folders", "main"]

_SHOWN = 4000
"""Characters of a kernel's own output that are kept of its beginning and of its end."""
_SUBREAPER = 36
_FOLDER = "nki_hf_judge_"


def main() -> None:
    """Serve until standard input ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    with contextlib.suppress(OSError, AttributeError):  # orphans come here, on Linux
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    clear_left_folders()
    gc.disable()  # tapes are large and have no cycles: collected between two requests
    gc.freeze()
    while True:
        try:
            request = plain.receive(requests)
        except EOFError:
            return
        plain.send(answers, _served(request))
        del request
        gc.collect()


class _Limits:
    """Seconds of each process, and of all of them together, which begin now; None = no such limit."""

    def __init__(self, each: float, whole: float | None) -> None:
        self._each, self._end = each, math.inf if whole is None else time.monotonic() + whole

    def seconds(self) -> float:
        """What a process that begins, or is waited for, now has."""
        return max(0.0, min(self._each, self._end - time.monotonic()))


def _prefix() -> str:
    """Of the folders of this process: its namespace (0 where the system has none) and its number."""
    with contextlib.suppress(OSError):
        return f"{_FOLDER}{os.stat('/proc/self/ns/pid').st_ino:x}_{os.getpid()}_"
    return f"{_FOLDER}0_{os.getpid()}_"


def clear_left_folders() -> None:
    """Remove the folders of this user's servers that are dead: one that a kernel kills cannot do so itself."""
    space = _prefix().removeprefix(_FOLDER).split("_")[0]
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}{space}_*_*"):
        process = folder.name.removeprefix(_FOLDER).split("_")[1]
        with contextlib.suppress(OSError, ValueError):
            found = folder.lstat()
            if found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode) and not _alive(int(process)):
                shutil.rmtree(folder, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's, by now
        return True
    return True


def _served(request: Mapping[str, Any]) -> dict[str, Any]:
    if "trial" in request:
        return _tried(request)
    with tempfile.TemporaryDirectory(prefix=_prefix()) as name:
        folder = Path(name)
        limits = _Limits(float(request["seconds"]), request.get("within")), int(request["memory"])
        start = time.perf_counter()
        answer = _kernel(request["child"], folder, "kernel", *limits)
        if request["judge"] is None:
            return {**answer, "printed": _printed(folder)}
        seconds = time.perf_counter() - start
        other = request["judge"]["against"]
        if other is not None:
            other = {**other, "answer": _kernel(request["against"], folder, "against", *limits)}
        whole = {
            **request["judge"],
            "against": other,
            "answer": answer,
            "printed": _printed(folder),
            "kernel_seconds": seconds,
            "seed": secrets.randbits(31) if request["judge"]["seed"] is None else request["judge"]["seed"],
            "secret": None if request["judge"]["seed"] is None else secrets.randbits(31),
        }
    with tempfile.TemporaryDirectory(prefix=_prefix()) as name:  # another: the kernel's process may have left things
        return _judged(whole, Path(name), *limits)


def _tried(request: Mapping[str, Any]) -> dict[str, Any]:
    """`said`: what is wrong with a user's task (see task_trial.py)."""
    with tempfile.TemporaryDirectory(prefix=_prefix()) as name:
        folder, asked, seconds = Path(name), request["trial"], float(request["seconds"])
        note = folder / "trial.task"
        process = started(lambda: plain.dump(task_trial.trial(asked, note)), folder, "trial", seconds, int(request["memory"]))
        how = ended(process, seconds)
        answer = answer_of(folder, "trial", how)
        bury()
        if "said" in answer:
            return answer
        return {"said": blamed(note, how) or f"task={asked['task']}: when it was tried, {answer['error']['message']}"}


def _kernel(asked: Mapping[str, Any], folder: Path, name: str, limit: _Limits, memory: int) -> dict[str, Any]:
    """The answer of a kernel's own process."""
    began = folder / f"{name}.began"
    seconds = limit.seconds()
    process = started(lambda: plain.dump(child.answer({**asked, "progress": str(began)})), folder, name, seconds, memory)
    answer = answer_of(folder, name, ended(process, seconds))
    bury()
    if not _complete(answer):
        answer = error_of("damaged", "what its process wrote is no tape: a kernel leaves the modules that it is run by alone")
    if answer["error"] is not None and answer["stage"] == "load" and began.exists():
        answer["stage"] = "run"
    return answer


def _complete(answer: Mapping[str, Any]) -> bool:
    """True if a kernel's process wrote what `child.answer` gives: a file may have changed json, or the process's own code."""
    error = answer.get("error", False)
    if error is not None:
        texts = ("kind", "message", "limit", "advice", "file")
        if not isinstance(error, dict) or not all(isinstance(error.get(key), str) for key in texts):
            return False
        if not isinstance(error.get("line"), int) or not isinstance(error.get("fault"), bool):
            return False
    kinds = {"stage": str, "name": str, "traces": list}
    return all(isinstance(answer.get(key), kind) for key, kind in kinds.items())


def _judged(whole: Mapping[str, Any], folder: Path, limit: _Limits, memory: int) -> dict[str, Any]:
    """The record, from two processes that run beside each other: what needs values, and the times."""
    at = folder / "stage"
    times = None
    notes = {name: folder / f"{name}.task" for name in ("judge", "times")}
    seconds = limit.seconds()
    if whole["until"] == "times" and whole["answer"]["error"] is None:
        late = folder / "times.stage"
        times = started(
            _noting(whole, notes["times"], lambda: time_stage.time_rows(whole, late)), folder, "times", seconds, memory
        )
    process = started(_noting(whole, notes["judge"], lambda: stages.judged(whole, at)), folder, "judge", seconds, memory)
    how = ended(process, seconds)
    record = answer_of(folder, "judge", how)
    if "verdict" not in record:
        stage, error = _blame(notes["judge"], how, at.read_text() if at.is_file() else "load", record["error"])
        record = verdict.broken(whole, stage, error)
    if times is not None and record["passed"]:
        how = ended(times, limit.seconds())
        found = answer_of(folder, "times", how)
        if "rows" not in found:
            failed = _unfinished(*_blame(notes["times"], how, "times", found["error"]))
            found = {"rows": [], "warnings": [], "seconds": 0.0, "failed": failed}
        record = verdict.timed_too(record, found)
    elif times is not None:
        killed(times)
    bury()
    return record


def _noting(whole: Mapping[str, Any], note: Path, body: Callable[[], dict[str, Any]]) -> Callable[[], bytes]:
    """The body of a process that notes which function of a user's task is under way; those of the package are tested."""

    def noting() -> bytes:
        if ".py" in whole["task"]:
            noted_in(note)
        return plain.dump(body())

    return noting


def _blame(note: Path, how: Mapping[str, Any], stage: str, error: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Stage and error of a process that did not come to its end: the task's own where a function of it was under way."""
    words = blamed(note, how)
    return ("values", {"kind": TASK_FAILS, "message": words}) if words else (stage, error)


def _unfinished(stage: str, error: Mapping[str, Any]) -> dict[str, Any]:
    return {"stage": stage, "findings": [finding(stage, error)]}


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
