"""A run's folder: what was asked for, every round in a journal, every kernel and its whole judgement in files.

    run.json       what the run is: written once, and again if its agent, a limit or an end is another
    rounds.jsonl   one line per round, only ever added to, on the disk before the next round is asked for
    kernels/       0007.py of round 7, whole before it is judged
    judged/        0007.json, its record
    clock          seconds that all sessions have taken, written every second
    lock           held by the loop that runs

The state of a run is a function of `rounds.jsonl`. A run that was killed goes on with the rounds that have no line.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import Any

from nki_hf.tools.output_files import leftover, whole_file, writing
from nki_hf.tools.searching.facts import times_of
from nki_hf.tools.searching.journal import append, held, mended, read
from nki_hf.tools.searching.round_line import checked_against, checked_lines

__all__ = ["Run", "line_of"]

_SETTINGS = "run.json"
_ROUNDS = "rounds.jsonl"
_FOLDERS = ("kernels", "judged")
_KINDS: Mapping[str, type | UnionType] = {
    "agent": list,
    "task": str,
    "beam": int,
    "tries": int,
    "seed": int,
    "judge": dict,
    "timeout": int | float,
    "start": str,
    "folder": str,
    "remember": list,
    "remembered": list,
}
_TRANSIENT = {"timeout", "killed", "crowd", "damaged", "crashed", "exit"}
"""Kinds of a process that did not come to its end."""


class Run:
    """The folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def settings(self) -> dict[str, Any] | None:
        """What the run is; None if there is none in the folder.

        Raises:
          ValueError: the file cannot be read.
        """
        path = self.folder / _SETTINGS
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"run={self.folder}: {_SETTINGS} cannot be read ({error}): give another folder.") from None
        if not isinstance(found, dict) or found.get("kind") != "nki_hf loop":
            raise ValueError(f"run={self.folder}: {_SETTINGS} is not that of a loop: give another folder.")
        for name, kind in _KINDS.items():
            if not isinstance(found.get(name), kind) or isinstance(found[name], bool):
                raise ValueError(
                    f"damaged: {_SETTINGS}: {name}={found.get(name)!r} is not what a loop writes: give another "
                    f"folder than run={self.folder}."
                )
        if found["beam"] < 1 or found["tries"] < 1:
            raise ValueError(f"damaged: {_SETTINGS}: beam and tries are 1 or more: give another folder than run={self.folder}.")
        return found

    @property
    def clock(self) -> Path:
        """The file of searching/clock.py."""
        return self.folder / "clock"

    def check_new(self) -> None:
        """Compare the folder of a run that is to begin with an empty one; what a killed process left of its beginning may be
        there.

        Raises:
          ValueError: it holds other things.
        """
        if not self.folder.is_dir():
            return
        found = [path for path in self.folder.iterdir() if not path.is_file() or not _of_beginning(path.name)]
        found = [path for path in found if path.name not in _FOLDERS or not path.is_dir() or any(path.iterdir())]
        if found:
            names = ", ".join(sorted(path.name for path in found)[:3])
            raise ValueError(
                f"run={self.folder} is the folder of something else: it has no {_SETTINGS} and holds {names}: give a new or an "
                "empty folder."
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """The folder, made if it is missing and locked: one loop at a time."""
        with writing(self.folder, "run"):
            for folder in (self.folder, *(self.folder / name for name in _FOLDERS)):
                folder.mkdir(parents=True, exist_ok=True)
        with held(self.folder / "lock", f"run={self.folder}"):
            yield

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Write down what the run is."""
        self._write(_SETTINGS, {"kind": "nki_hf loop", **settings})

    def rounds(self, *, mend: bool = False) -> list[dict[str, Any]]:
        """Every round, by its number; `mend` cuts off what a killed process did not finish.

        Raises:
          ValueError: a line is no round, or a round has two.
        """
        return sorted(self._lines(mend=mend), key=lambda item: item["round"])

    def _lines(self, *, mend: bool = False) -> list[dict[str, Any]]:
        found = (mended if mend else read)(self.folder / _ROUNDS)
        self._whole(*checked_lines(found))
        return found

    def _whole(self, number: int, wrong: str) -> None:
        if wrong:
            raise ValueError(
                f"damaged: {_ROUNDS} line {number}: {wrong}: mend the line, or give another folder than run={self.folder}."
            )

    def check(self) -> None:
        """Compare the kernels' files and judgements with the journal.

        Raises:
          ValueError: a round's kernel is not what was judged, a line is not what its judgement says, or there are judged
            kernels and no round.
        """
        found = self._lines()
        if not found and any((self.folder / "judged").glob("*.json")):
            raise ValueError(f"run={self.folder} is damaged: it has judged kernels and no {_ROUNDS}: give another --run.")
        for item in found:
            if item.get("sha256") and _digest(self.source(item["round"])) != item["sha256"]:
                path = self.kernel(item["round"])
                what = "is not what was judged" if path.is_file() else "is missing"
                raise ValueError(f"run={self.folder} is damaged: {path} {what}: put it back, or give another --run.")
        width = self._width()
        for number, item in enumerate(found, 1):
            self._whole(number, checked_against(item, self.record(item["round"]), width))

    def _width(self) -> int:
        settings = self.settings
        if settings is None:
            raise ValueError(f"run={self.folder} has no {_SETTINGS}: give the folder of a run.")
        return int(settings["beam"]) * int(settings["tries"])

    def kernel(self, number: int) -> Path:
        """The file of a round's kernel."""
        return self.folder / "kernels" / f"{number:04d}.py"

    def source(self, number: int) -> str:
        """A round's kernel; empty if it has none."""
        path = self.kernel(number)
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def record(self, number: int) -> dict[str, Any] | None:
        """The whole judgement of a round.

        Raises:
          ValueError: its file cannot be read.
        """
        path = self.folder / "judged" / f"{number:04d}.json"
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ValueError(f"damaged: {path} cannot be read: put it back, or give another folder than run={self.folder}.")
        return found

    def add(self, line: Mapping[str, Any], record: Mapping[str, Any] | None) -> None:
        """Add a round: its judgement first, so that every line has one."""
        if record is not None:
            self._write(f"judged/{line['round']:04d}.json", record)
        append(self.folder / _ROUNDS, dict(line))

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        path = self.folder / name
        with writing(path, "run"), whole_file(path) as file:
            file.write((json.dumps(value, indent=1, sort_keys=True) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())


def _of_beginning(name: str) -> bool:
    return name in ("lock", "clock") or leftover(name)


def line_of(
    number: int, generation: int, parent: int | None, source: str, record: Mapping[str, Any] | None, **more: Any
) -> dict[str, Any]:
    """The line of a round.

    Args:
      number, generation, parent: which round, and the round whose kernel it started from.
      source: its kernel; empty if it has none.
      record: its judgement; None if it came to none, which `more` says.
      more: further entries: `sentence` and `stage` where there is no record, `note`, `seconds`, `clock_s`.
    """
    line: dict[str, Any] = {
        "round": number,
        "generation": generation,
        "parent": parent,
        "sha256": _digest(source),
        "passed": False,
        "stage": "agent",
        "sentence": "",
        "score": 0.0,
        "us": {},
        "transient": False,
    }
    if record is not None:
        line |= {key: record[key] for key in ("passed", "stage", "sentence", "score")}
        line |= {"us": times_of(record), "transient": _transient(record)}
    return line | more


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode(errors="replace")).hexdigest() if source else ""


def _transient(record: Mapping[str, Any]) -> bool:
    """True if a judgement says how its process ended, which may be otherwise another time, and nothing of the kernel."""
    kinds = {finding["kind"] for finding in record["findings"]}
    return not record["passed"] and (not kinds or bool(kinds & _TRANSIENT))
