"""The server: a clean process that forks one process per step, with limits on time and memory, and buries what they leave.

    python -m nki_hf.tools.judging.server

It reads requests from standard input and answers on standard output, one end of a pair of sockets (see plain.py). For each
request it forks the kernel's process (child.py), which writes its tapes to files, and the judge's processes, which read them:
the one that needs values (judge_process.py) when what is judged has been written, the one of the times (time_stage.py) after
the kernel's has ended. The server never runs anything of a kernel's, so all of them start clean.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nki_hf.tools.judging import child, plain, task_trial, time_stage, verdict
from nki_hf.tools.judging.budget import slowness
from nki_hf.tools.judging.findings import finding
from nki_hf.tools.judging.judge_process import JudgeProcess, blame, noting
from nki_hf.tools.judging.kernel_answer import complete
from nki_hf.tools.judging.limited_process import answer_of, bury, ended, error_of, killed, started
from nki_hf.tools.judging.task_files import stamp, written
from nki_hf.tools.judging.under_way import blamed

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
    slowness()  # asked before a kernel runs: its processes are told
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


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=_prefix()) as name:
        yield Path(name)


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
    with contextlib.suppress(OSError):  # gone: then only absolute paths lead anywhere
        os.chdir(request["folder"])
    if "trial" in request:
        return _tried(request)
    limits = _Limits(float(request["seconds"]), request.get("within")), int(request["memory"])
    with _folder() as folder:
        if request["judge"] is None:
            return {**_kernel(request["child"], folder, "kernel", *limits), "printed": _printed(folder)}
        with _folder() as own:
            judge = JudgeProcess(request["judge"], folder / "kernel.part", own, limits[0].seconds, limits[1])
            return _judged(_recorded(request, folder, judge, *limits), judge, *limits)


def _recorded(request: Mapping[str, Any], folder: Path, judge: JudgeProcess, limit: _Limits, memory: int) -> dict[str, Any]:
    """What the judge's processes are asked, when the kernel's and that of --against have ended; `judge` may have begun."""
    start, before = time.perf_counter(), stamp(request["judge"]["task"])
    answer = _kernel(request["child"], folder, "kernel", limit, memory, judge)
    seconds = time.perf_counter() - start
    other = request["judge"]["against"]
    if other is not None:
        other = {**other, "answer": _kernel(request["against"], folder, "against", limit, memory)}
    if words := written(request["judge"]["task"], before):
        judge.stop()
        answer = {**error_of("tampered", words), "stage": "run"}
    known = {"printed": _printed(folder), "kernel_seconds": seconds, "against": other, "answer": answer}
    return {**request["judge"], **judge.draws(), **known}


def _tried(request: Mapping[str, Any]) -> dict[str, Any]:
    """`said`: what is wrong with a user's task (see task_trial.py)."""
    with _folder() as folder:
        asked, seconds = request["trial"], float(request["seconds"])
        note = folder / "trial.task"
        process = started(lambda: plain.dump(task_trial.trial(asked, note)), folder, "trial", seconds, int(request["memory"]))
        how = ended(process, seconds)
        answer = answer_of(folder, "trial", how)
        bury()
        if "said" in answer:
            return answer
        return {"said": blamed(note, how) or f"task={asked['task']}: when it was tried, {answer['error']['message']}"}


def _kernel(
    asked: Mapping[str, Any], folder: Path, name: str, limit: _Limits, memory: int, judge: JudgeProcess | None = None
) -> dict[str, Any]:
    """The answer of a kernel's own process, and `judge` under way where it can begin."""
    began = folder / f"{name}.began"
    seconds = limit.seconds()
    more = {"progress": str(began), "part": str(folder / f"{name}.part"), "judged": judge.first if judge else 0}
    process = started(lambda: plain.dump(child.answer({**asked, **more})), folder, name, seconds, memory)
    answer = answer_of(folder, name, ended(process, seconds, judge.look if judge and judge.first else None))
    bury(judge.process if judge else None)
    if judge is not None and judge.first:
        judge.look()
        answer = judge.joined(answer)
    if not complete(answer):
        answer = error_of("damaged", "what its process wrote is no tape: a kernel leaves the modules that it is run by alone")
    if answer["error"] is not None and answer["stage"] == "load" and began.exists():
        answer["stage"] = "run"
    return answer


def _judged(whole: Mapping[str, Any], judge: JudgeProcess, limit: _Limits, memory: int) -> dict[str, Any]:
    """The record, from two processes that run beside each other: what needs values, and the times."""
    with _folder() as folder:  # another: the kernel's process may have left things
        times, note = None, folder / "times.task"
        if whole["until"] == "times" and whole["answer"]["error"] is None:
            late = folder / "times.stage"
            body = noting(whole, note, lambda: time_stage.time_rows(whole, late))
            times = started(body, folder, "times", limit.seconds(), memory)
        record = judge.record(whole, folder)
        if times is not None and record["passed"]:
            how = ended(times, limit.seconds())
            found = answer_of(folder, "times", how)
            if "rows" not in found:
                failed = _unfinished(*blame(note, how, "times", found["error"]))
                found = {"rows": [], "warnings": [], "seconds": 0.0, "failed": failed}
            record = verdict.timed_too(record, found)
        elif times is not None:
            killed(times)
        bury()
        return record


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
