"""The agent's command: what it is given on standard input, and the kernel that it writes on standard output."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Answer", "answered", "kernel_of", "words_of"]

_MOST_BYTES = 1 << 20
"""Of an agent's output; a kernel has some 10 KiB."""
_NOTE = 600
_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of one call of the command.

    Attributes:
      kernel: source text; empty if there is none.
      note: what it wrote around the kernel.
      error: kind and words of what went wrong; empty if nothing.
      seconds: wall clock.
    """

    kernel: str = ""
    note: str = ""
    error: tuple[str, str] = ("", "")
    seconds: float = 0.0


def words_of(command: str) -> list[str]:
    """The command as words; no shell takes part.

    Raises:
      ValueError: it is empty, cannot be split, or its program is not there.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"agent={command!r} is no command ({error}): quote it as for a shell.") from None
    if not words or "\0" in command or shutil.which(words[0]) is None:
        raise ValueError(f"agent={command!r} is no command: its first word is a program that is found, and may be run.")
    return words


def answered(
    words: list[str], request: Mapping[str, Any], seconds: float, alive: Callable[[], bool] = lambda: True, at: str = "."
) -> Answer:
    """Run the command once. It ends at the limit at the latest, with all that it started and that stayed in its session.

    Args:
      words: program and arguments.
      request: what it reads, as JSON.
      seconds: its limit.
      alive: when this says no, the command is ended.
      at: its working folder: the one in which it was given, so that its relative paths stay what they were.
    """
    start = time.monotonic()
    if not os.path.isdir(at):
        return Answer(error=("cannot start", f"the command's working folder {at} is gone: give --agent anew"))
    with tempfile.TemporaryDirectory(prefix="nki_hf_agent_") as name:
        folder = Path(name)
        (folder / "in").write_text(json.dumps(request))
        try:
            with (folder / "in").open("rb") as given, (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
                process = subprocess.Popen(words, stdin=given, stdout=out, stderr=err, start_new_session=True, cwd=at)
        except OSError as error:
            return Answer(error=("cannot start", f"the command cannot be started ({error.strerror})"))
        ended = _waited(process, folder / "out", start + seconds, alive)
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        took = time.monotonic() - start
        said = _tail(folder / "err")
        if ended:
            limit = f"{seconds:g} s" if ended == "timeout" else f"{_MOST_BYTES:,} B of output"
            return Answer(error=(ended, f"the command was ended at its limit of {limit}{said}"), seconds=took)
        if process.returncode:
            code = process.returncode
            how = f"exit code {code}" if code > 0 else f"the signal {-code}"
            return Answer(error=("died", f"the command ended with {how}{said}"), seconds=took)
        text = (folder / "out").read_bytes()[:_MOST_BYTES].decode(errors="replace")
    kernel, note, wrong = kernel_of(text)
    return Answer(kernel=kernel, note=note, error=("no kernel", wrong + said) if wrong else ("", ""), seconds=took)


def kernel_of(text: str) -> tuple[str, str, str]:
    """Kernel, note and what is wrong: the last fenced block that speaks of nki, else the last one, else the whole text."""
    text = text.removeprefix("\ufeff")
    if not text.strip():
        return "", "", "the command wrote nothing"
    blocks = [match for match in _FENCE.finditer(text) if match.group(1).lower() in ("", "py", "python", "python3")]
    note = ""
    if blocks:
        chosen = next((match for match in reversed(blocks) if "nki" in match.group(2)), blocks[-1])
        note = " ".join((text[: chosen.start()] + text[chosen.end() :]).split())[:_NOTE]
        text = chosen.group(2).removeprefix("\ufeff")
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" at line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        shown = " ".join(text.split())[:80]
        return "", note, f"what the command wrote is no Python ({type(error).__name__}{line}): {shown!r}"
    return text if text.endswith("\n") else text + "\n", note, ""


def _waited(process: subprocess.Popen[bytes], out: Path, end: float, alive: Callable[[], bool]) -> str:
    """Empty if it ended by itself."""
    pause = 0.002
    while process.poll() is None:
        if time.monotonic() > end or not alive():
            return "timeout"
        if out.stat().st_size > _MOST_BYTES:
            return "too much output"
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    return "too much output" if out.stat().st_size > _MOST_BYTES else ""


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2000))
        text = " ".join(file.read().decode(errors="replace").split())
    return f"; its standard error ends: {text[-300:]!r}" if text else ""
