"""How a program of ours ends: an exit code, and one sentence on standard error instead of a traceback.

`nki_hf`, the benchmark and the scripts of tools/ all end here. Exit code 0: done, or a verdict that passed; 1: a verdict that
did not; 2: wrong use, or something that was asked for is not here; 130: interrupted. NKI_HF_TRACEBACK=1 shows tracebacks.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from typer.core import TyperCommand, TyperGroup

from nki_hf.errors import DeviceFailed, KernelFault
from nki_hf.tools.judging.findings import KernelFailed
from nki_hf.tools.printable import printable

__all__ = ["Program", "ProgramCommand", "finished", "sentence"]

_ROOT = Path(__file__).resolve().parents[2]
_LONGEST = 2000
"""Characters of a sentence: values that somebody passed in may be of any length."""
_PLAIN = {"µ": "u", "✓": "v", "✗": "x", "…": "~", "\u00d7": "x", "\u2013": "-", "→": ">", "•": "*"}
_BOXES = {chr(code): "+" for code in range(0x2500, 0x2580)} | dict.fromkeys("─━═╴╶", "-") | dict.fromkeys("│┃║╵╷", "|")
"""Lines of tables, of which each takes one letter."""
_TOLD = (ValueError, OSError, ImportError, OverflowError, SyntaxError, KernelFault, DeviceFailed)
"""Errors whose text is meant for the user."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Program(TyperGroup):
    """A program with verbs."""

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        """Run it; `standalone_mode` ends the process, as everywhere in click."""
        return _run(super().main, standalone_mode, *args, **kwargs)


class ProgramCommand(TyperCommand):
    """A program without verbs."""

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        """Run it; `standalone_mode` ends the process, as everywhere in click."""
        return _run(super().main, standalone_mode, *args, **kwargs)


def finished(call: Callable[[], Any]) -> int:
    """Run `call` and return the exit code: the number that it returned, else 0; of an error 2, which is said in one sentence.

    Standard output may be of any encoding, and its reader may leave (`| head -1`): what comes after is dropped, and the exit
    code is what it would have been.
    """
    sys.stdout, sys.stderr = _tolerant(sys.stdout), _tolerant(sys.stderr)
    try:
        code = call()
        if sys.stdout is not None:
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        _say("interrupted.")
        return 130
    except Exception as error:  # a command ends with one sentence, not a traceback
        if os.environ.get("NKI_HF_TRACEBACK", "") not in ("", "0"):
            traceback.print_exc()
        if hasattr(error, "show") and type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # its text is the whole help
        else:
            _say(sentence(error))
        _drop_unwritable()
        return 1 if isinstance(error, KernelFailed) else 2


def sentence(error: BaseException) -> str:
    """What a user is told about an error, in one line of at most some 2,000 characters that are all printable."""
    message = getattr(error, "format_message", None)  # of click: wrong flags
    text = _one_line(message() if callable(message) else str(error))
    kind = type(error).__name__
    if callable(message):
        return f"{text if text.endswith('.') else text + '.'} See --help."
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate memory" in text):
        ours = type(error) is MemoryError and text  # of memory that is modelled, which says all that is needed
        return text if ours else f"there is not enough memory{f' ({text})' if text else ''}: give smaller sizes."
    if isinstance(error, RecursionError):
        return f"something is nested too deeply to be read ({text})."
    if isinstance(error, UnicodeError):
        return f"text cannot be read or written in this encoding ({text}): use UTF-8."
    if isinstance(error, OSError) and error.errno is not None:
        return _of_system(error)
    if text and isinstance(error, _TOLD):
        return text
    raised_by = _foreign(error)
    if raised_by:
        return f"{raised_by} raised {kind}: {text}{_place(error)}. Set NKI_HF_TRACEBACK=1 to see where it comes from."
    return (
        f"this is a fault of nki_hf itself: {kind}{f': {text}' if text else ''}{_place(error)}. Set NKI_HF_TRACEBACK=1 to see "
        "where it comes from, and report it (docs/security.md says where)."
    )


def _run(start: Callable[..., Any], standalone_mode: bool, *args: Any, **kwargs: Any) -> Any:
    if not standalone_mode:
        return start(*args, standalone_mode=False, **kwargs)
    sys.exit(finished(lambda: start(*args, standalone_mode=False, **kwargs)))


def _of_system(error: OSError) -> str:
    why = error.strerror or type(error).__name__
    if error.filename is not None:
        return _one_line(f"{os.fsdecode(error.filename)} cannot be used ({why}): give another file or folder.")
    return f"output cannot be written ({why})." if error.errno in _NO_ROOM else f"the system refused ({_one_line(str(error))})."


def _foreign(error: BaseException) -> str:
    """The other package in whose Python a RuntimeError with a text arose (a device's runtime, a compiler); empty if none."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None or not isinstance(error, RuntimeError) or isinstance(error, NotImplementedError) or not str(error):
        return ""
    top = str(frame.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    ours = Path(frame.tb_frame.f_code.co_filename).is_relative_to(_ROOT / "nki_hf")
    return "" if ours or top in ("", "__main__", "importlib") else top


def _place(error: BaseException) -> str:
    """` (nki_hf/tools/bench.py:12)`: the innermost line of ours."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(_ROOT)]
    return f" ({Path(frames[-1].filename).relative_to(_ROOT)}:{frames[-1].lineno})" if frames else ""


def _one_line(text: str) -> str:
    """Without line breaks and control characters: what a file is called must not steer a terminal."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 4 :]}"


def _say(text: str) -> None:
    if sys.stderr is None:
        return
    if sys.stderr.isatty():
        from nki_hf.tools.screen import Screen  # rich is not needed before

        Screen(sys.stderr).say(text)
    else:  # one line for what reads it
        print(text, file=sys.stderr, flush=True)


# ---- standard streams -----------------------------------------------------------------------------------------------


class _Stream(io.FileIO):
    """A standard stream whose reader may leave; what is written after that is dropped."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _to_nowhere(self.fileno())
            return memoryview(data).nbytes


def _tolerant(stream: TextIO) -> TextIO:
    """The stream with characters that its encoding lacks written plainly, and with a reader that may leave."""
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # unbuffered streams have none below
    if type(raw) is io.FileIO and isinstance(stream, io.TextIOWrapper):
        stream.flush()
        written = io.BufferedWriter(_Stream(raw.fileno(), "w", closefd=False))
        return io.TextIOWrapper(
            written,
            encoding=stream.encoding,
            errors=_ERRORS,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=_ERRORS)
    return stream


def _drop_unwritable() -> None:
    """What is left in the buffer of a full disk has nowhere to go; the interpreter would try again."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _to_nowhere(sys.stdout.fileno())


def _to_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """A codec's error handler: letters that look alike, else an escape in hexadecimal digits."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    plain = (_BOXES.get(c) or _PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in letters)
    return "".join(plain), error.end


_ERRORS = "nki_hf_plain"
codecs.register_error(_ERRORS, _plainly)
