"""Workers: jobs over several processes; one that hangs or dies costs its own job."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

from nki_hf.tools.judging import plain

__all__ = ["MOST_PROCESSES", "Workers", "processes_of", "worker_environment"]

MOST_PROCESSES = 256


def processes_of(number: int) -> int:
    """The number of processes; 0 = one per core that this process may use.

    Raises:
      ValueError: it is no number of processes.
    """
    if not 0 <= number <= MOST_PROCESSES:
        raise ValueError(f"processes={number} is not possible: it is 1 to {MOST_PROCESSES}, or 0 for one per core.")
    return number or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def worker_environment() -> dict[str, str]:
    """The environment of a worker that is started now."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Workers:
    """Processes that run jobs (worker.py); each is started with its first job, and again after it has died."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()
        self._all: list[subprocess.Popen[bytes]] = []
        self._lock, self._taking = threading.Lock(), threading.Lock()
        for _ in range(processes):
            self._idle.put(None)

    def run(
        self, jobs: Iterable[dict[str, Any]], limit: float, heard: Callable[[dict[str, Any]], None] | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Number and answer of each job, as they end. An answer has `error` if its process hung for `limit` s or died.

        `heard` is called with each answer before its process takes another job, which may be made from what it heard.

        Raises:
          ValueError: a job says that it was asked for something that is not possible.
        """
        done: queue.SimpleQueue[tuple[int, dict[str, Any]] | None] = queue.SimpleQueue()
        waiting = iter(enumerate(jobs))

        def serve() -> None:
            try:
                while True:
                    with self._taking:  # the next job may depend on what is known by now
                        number, job = next(waiting, (-1, {}))
                    if number < 0:
                        return
                    answer = self._one(job, limit)
                    if heard is not None:
                        with self._taking:
                            heard(answer)
                    done.put((number, answer))
            finally:
                done.put(None)

        for _ in range(self.processes):
            threading.Thread(target=serve, daemon=True).start()
        serving = self.processes
        while serving:
            item = done.get()
            if item is None:
                serving -= 1
                continue
            if "wrong" in item[1]:
                raise ValueError(item[1]["wrong"])
            yield item

    def _one(self, job: dict[str, Any], limit: float) -> dict[str, Any]:
        process = self._idle.get()
        if process is None or process.poll() is not None:
            process = self._started()
        late = threading.Timer(limit, process.kill)
        late.start()
        try:
            if process.stdin is None or process.stdout is None:
                raise EOFError
            plain.send(process.stdin, job)
            answer: dict[str, Any] = plain.receive(process.stdout)
        except (EOFError, OSError, ValueError):
            hung = not late.is_alive()
            process.kill()
            process.wait()
            process = None
            answer = {"error": f"its process was ended after {limit:g} s" if hung else "its process died"}
        finally:
            late.cancel()
        self._idle.put(process)
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "nki_hf.tools.searching.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=worker_environment(),
            start_new_session=True,
        )
        with self._lock:
            self._all.append(process)
        return process

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._all:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()  # it ends what it has under way, and itself
        for process in self._all:
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
