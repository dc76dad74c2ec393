"""The judge's process: what needs values. Where a second processor is free it begins beside the kernel's process.

That one hands over what is judged before it records what is only timed. Inputs are drawn after that was written, and what
becomes of the record is sealed (sealed_file.py).
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nki_hf.tools.judging import plain, stages, verdict
from nki_hf.tools.judging.kernel_answer import complete
from nki_hf.tools.judging.limited_process import answer_of, ended, killed, started
from nki_hf.tools.judging.sealed_file import SealedFile
from nki_hf.tools.judging.stage_names import TASK_FAILS
from nki_hf.tools.judging.under_way import blamed, noted_in

__all__ = ["JudgeProcess", "blame", "noting"]

_LARGEST = 1 << 28
"""Bytes of a part that are read: as many as a process may write."""
_BESIDE = ", the judge's, which runs beside the kernel's: a kernel leaves other processes alone"


class JudgeProcess:
    """The process of one judgement.

    Attributes:
      first: how many of the first traces it needs, if it begins before the others are there; 0 = it begins after them.
      process: its number; None before it begins.
    """

    def __init__(self, judge: Mapping[str, Any], part: Path, folder: Path, seconds: Callable[[], float], memory: int) -> None:
        """The arguments of `stages.judged` but for what the kernel's process answers, the file in which that one hands over a
        part of its answer, a folder of its own, and its limits: seconds that are left, and bytes.
        """
        self._judge, self._part, self._folder, self._seconds, self._memory = judge, part, folder, seconds, memory
        self.first = _judged_first(judge)
        self.process: int | None = None
        self._known: dict[str, Any] | None = None  # the part that was handed over
        self._answer: SealedFile | None = None
        self._looked = False
        self._drawn: dict[str, Any] = {}

    def draws(self) -> dict[str, Any]:
        """The seeds of the inputs, drawn once: when what they judge has been written."""
        seed = self._judge["seed"]
        if not self._drawn:
            self._drawn = {
                "seed": secrets.randbits(31) if seed is None else seed,
                "secret": None if seed is None else secrets.randbits(31),
            }
        return self._drawn

    def look(self) -> None:
        """Begin, if the part has been handed over."""
        if self._looked or not self._part.is_file():
            return
        self._looked = True
        with contextlib.suppress(OSError, ValueError):  # a stranger's process may have written anything
            if self._part.stat().st_size > _LARGEST:
                return
            part = plain.load(self._part.read_bytes())
            if not isinstance(part, dict) or not complete(part) or part["error"] or len(part["traces"]) != self.first:
                return
            self._known = part
            known = {"traces": self._judge["traces"][: self.first], "printed": {}, "kernel_seconds": 0.0, "answer": part}
            self._begin({**self._judge, **self.draws(), **known}, self._folder)

    def joined(self, rest: dict[str, Any]) -> dict[str, Any]:
        """The whole answer of a kernel's process that has ended; if it failed, this process is of no use, and is ended."""
        failed = rest.get("error", True) is not None
        if failed or rest.get("changed") is not None:
            self.stop()
        if failed:
            return rest
        if self._known is None or not isinstance(rest.get("traces"), list):
            return {}  # it went on as if it had handed over what is not there
        return {**rest, "traces": [*self._known["traces"], *rest["traces"]]}

    def stop(self) -> None:
        """End it: what it was given is not what is judged."""
        if self.process is not None:
            killed(self.process)
            self.process = None

    def record(self, whole: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """The record, without times, of a judgement whose kernel's process has answered.

        Args:
          whole: all arguments of `stages.judged`.
          folder: of the process, if it has not begun yet.
        """
        if self.process is None:
            self._begin(whole, folder)
        else:
            folder = self._folder
        if self.process is None or self._answer is None:
            raise RuntimeError("the judge's process did not begin.")
        how = ended(self.process, self._seconds())
        record = answer_of(folder, "judge", how, self._answer)
        self._answer.close()
        if "verdict" not in record:
            at = folder / "stage"
            stage, error = blame(folder / "judge.task", how, at.read_text() if at.is_file() else "load", record["error"])
            if folder is self._folder and "signal" in how:
                stage, error = "run", {**error, "message": f"{error['message']}{_BESIDE}"}
            record = verdict.broken(whole, stage, error)
        record["printed"] = whole["printed"]
        record["seconds"]["kernel"] = whole["kernel_seconds"]
        return record

    def _begin(self, whole: Mapping[str, Any], folder: Path) -> None:
        self._answer = SealedFile()
        body = noting(whole, folder / "judge.task", lambda: stages.judged(whole, folder / "stage"))
        self.process = started(body, folder, "judge", self._seconds(), self._memory, self._answer)


def _judged_first(judge: Mapping[str, Any]) -> int:
    """How many of the first traces are judged, if others come after them, and nothing but them is needed; else 0."""
    traces: Sequence[Mapping[str, Any]] = judge["traces"]
    needed = [bool(trace["optional"] or trace["size"] in judge["check"]) for trace in traces]
    count = needed.index(False) if False in needed else 0
    several = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1
    return count if several and not any(needed[count:]) and judge["against"] is None else 0


def noting(whole: Mapping[str, Any], note: Path, body: Callable[[], dict[str, Any]]) -> Callable[[], bytes]:
    """The body of a process that notes which function of a user's task is under way; those of the package are tested."""

    def noting() -> bytes:
        if ".py" in whole["task"]:
            noted_in(note)
        return plain.dump(body())

    return noting


def blame(note: Path, how: Mapping[str, Any], stage: str, error: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Stage and error of a process that did not come to its end: the task's own where a function of it was under way."""
    words = blamed(note, how)
    return ("values", {"kind": TASK_FAILS, "message": words}) if words else (stage, error)
