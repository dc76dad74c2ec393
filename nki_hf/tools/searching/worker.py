"""A worker: a process that runs jobs one after the other, with a server of the judge of its own, and ends with its client.

    python -m nki_hf.tools.searching.worker

It reads jobs from standard input and answers on standard output (judging/plain.py). When its client is gone, however that
was, it ends the agent's command that is under way and itself.
"""

from __future__ import annotations

import hashlib
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nki_hf.tools.bench_rows import run
from nki_hf.tools.judging import plain
from nki_hf.tools.judging.judgement import judge
from nki_hf.tools.searching.agent import answered
from nki_hf.tools.shape import problem_of
from nki_hf.tools.tuning.trial import Trials

__all__ = ["main"]

_trials = Trials()


def main() -> None:
    """Serve until standard input ends."""
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    taken: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    gone = threading.Event()
    ended = threading.Event()

    def work() -> None:
        while True:
            job = taken.get()
            try:
                answer = _DONE[job["kind"]](job, lambda: not gone.is_set())
            except (ValueError, OSError, ImportError) as error:  # wrong use
                answer = {"wrong": f"{error}"}
            except BaseException as error:  # whatever a job does, its client hears of it
                answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
            ended.set()
            if not gone.is_set():
                plain.send(answers, answer)

    threading.Thread(target=work, daemon=True).start()
    while True:
        try:
            job = plain.receive(jobs)
        except EOFError:
            gone.set()
            ended.wait(1.0)
            os._exit(0)
        ended.clear()
        taken.put(job)


def _judged(job: Mapping[str, Any], alive: Callable[[], bool]) -> dict[str, Any]:
    return {"record": judge(job["path"], job["task"], **job["options"])}


def _round(job: Mapping[str, Any], alive: Callable[[], bool]) -> dict[str, Any]:
    """One round: the agent's command, then the judge. The kernel's file is written whole, before it is judged.

    `left` seconds after its beginning a round is out of time, however far it has come: `budget` says so.
    """
    end = math.inf if job["left"] is None else time.monotonic() + job["left"]
    answer = answered(job["agent"], job["request"], min(job["seconds"], end - time.monotonic()), alive, job["folder"])
    found: dict[str, Any] = {"note": answer.note, "error": answer.error, "agent_seconds": answer.seconds, "record": None}
    if answer.error[0] == "timeout" and time.monotonic() >= end:
        return {**found, "budget": True}
    if not answer.kernel or not alive():
        return found
    path = Path(job["path"])
    aside = path.with_suffix(".part")
    with aside.open("w", encoding="utf-8", errors="replace") as file:
        file.write(answer.kernel)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    known = job["known"].get(hashlib.sha256(answer.kernel.encode(errors="replace")).hexdigest())
    if known is not None:
        return {**found, "same": known}
    within = None if end == math.inf else max(0.0, end - time.monotonic())
    record = judge(str(path), job["task"], **job["options"], within=within)
    return {**found, "record": record, "budget": time.monotonic() >= end and _late(record)}


def _late(record: Mapping[str, Any]) -> bool:
    return not record["passed"] and any(finding["kind"] == "timeout" for finding in record["findings"])


def _trial(job: Mapping[str, Any], alive: Callable[[], bool]) -> dict[str, Any]:
    return _trials.run(job)


def _bench(job: Mapping[str, Any], alive: Callable[[], bool]) -> dict[str, Any]:
    return {"row": run(problem_of(job["shape"]), (job["chip"],), window=job["window"], lnc=job["lnc"])[0]}


_DONE: Mapping[str, Callable[[Mapping[str, Any], Callable[[], bool]], dict[str, Any]]] = {
    "bench": _bench,
    "judge": _judged,
    "round": _round,
    "trial": _trial,
}


if __name__ == "__main__":
    main()
