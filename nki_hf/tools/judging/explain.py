"""What an error in a kernel's Python means: the language before 0.3, names that do not exist, calls in an older style."""

from __future__ import annotations

import dis
import enum
import errno
import inspect
import linecache
import re
import traceback
from enum import EnumType
from pathlib import Path
from types import ModuleType

from nki_hf.errors import KernelFault
from nki_hf.sim import isa, language
from nki_hf.sim.run.tape_operands import Unwritable
from nki_hf.tools.judging.foreign_functions import foreign
from nki_hf.tools.kernel_lint.instead import instead

__all__ = ["explained", "place", "stated"]

_PACKAGE = str(Path(__file__).resolve().parents[2])
_OURS = tuple(f"{_PACKAGE}/{part}" for part in ("sim/", "tools/", "observers/", "timing/", "from_source.py"))

_OLD = (
    "neuronxcc.nki is the language before NKI 0.3, which is gone: write `import nki`, `import nki.language as nl`, "
    "`import nki.isa as nisa`; instructions write into dst= and return no tile, nl.load and nl.store are nisa.dma_copy."
)
_NO_TILE = "an instruction of this language returns no tile: it writes dst=, which is given, its first argument"
_REGISTER = (
    "A register takes no arithmetic: let the loop count in elements, for i in nl.dynamic_range(0, rows, 128), and address with "
    "x[nl.ds(i, 128)] or x.ap(..., scalar_offset=i)."
)


def place(error: BaseException) -> tuple[str, int]:
    """File and line of the kernel's code that raised, the simulator's own left out."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    outside = [item for item in frames if not item[0].startswith((*_OURS, "<", enum.__file__))]
    return outside[-1] if outside else ("", 0)


def stated(error: BaseException, file: Path) -> str:
    """How a kernel refuses its arguments, if that is what the error says; empty for one that it runs into.

    A limit of the language, or a bound, is a refusal; so is what an `assert` or a `raise` of the kernel's folder says (an
    assert without words says its condition).
    """
    if isinstance(error, KernelFault):
        return f"{error.record.instruction}: {error.record.message}"
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not Path(last.tb_frame.f_code.co_filename).resolve().is_relative_to(file.resolve().parent):
        return ""
    if last.tb_frame.f_code.co_code[last.tb_lasti] != dis.opmap["RAISE_VARARGS"]:
        return ""  # neither an assert nor a raise: an operation that failed
    line = (traceback.extract_tb(error.__traceback__)[-1].line or "").strip()
    said = " ".join(str(error).split())[:600]
    return f"{type(error).__name__}: {said or line}"


def explained(error: BaseException) -> tuple[str, str]:
    """What happened, one sentence, and what to do."""
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())[:600]
    kind = type(error).__name__
    if isinstance(error, SystemExit):
        return f"the file called sys.exit({error.code!r})", "A kernel file defines its kernel and returns."
    if isinstance(error, KeyboardInterrupt):
        return "the file raised KeyboardInterrupt", ""
    if isinstance(error, MemoryError):
        return "the kernel's Python needs more memory than it may take", "Give a larger --memory, or allocate less."
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return "the file writes or prints more than it may (a file of a judgement holds 256 MiB)", "Print less."
    if isinstance(error, RecursionError):
        return "the kernel's Python calls itself without end", ""
    if isinstance(error, ImportError) and (name := error.name or "").partition(".")[0] in ("neuronxcc", "torch_neuronx"):
        return f"the file imports {name}", _OLD
    if isinstance(error, ImportError) and text.startswith("cannot import name"):
        name = (re.findall(r"'(\w+)'", text) or [""])[0]
        return text, instead(name, [language, isa])
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType) and error.name:
        return _attribute(error.obj, error.name)
    if isinstance(error, AttributeError) and isinstance(error.obj, EnumType) and error.name:
        members = ", ".join(error.obj.__members__)
        return f"{error.obj.__name__}.{error.name} does not exist", f"{error.obj.__name__} has {members}."
    if isinstance(error, NameError) and error.name in ("nl", "nisa", "nki"):
        return f"{kind}: {text}", "Import it: import nki, import nki.language as nl, import nki.isa as nisa."
    if isinstance(error, Unwritable) and (words := foreign(error.operand, error.word))[0]:
        return words
    if isinstance(error, TypeError) and "argument" in text:
        old = _lacks_operand(text) and "dst=" not in _written(error)
        return f"{kind}: {text}{f' ({_NO_TILE})' if old else ''}", _call(text, old)
    if isinstance(error, TypeError) and "unsupported operand" in text and "VirtualRegister" in text:
        return f"{kind}: {text}", _REGISTER
    if isinstance(error, TypeError) and "NkiInstruction" in text:
        return f"{kind}: {text}", "Instructions return no tile: allocate one and pass it as dst=."
    return f"{kind}: {text}" if not isinstance(error, ValueError) or kind != "NoKernel" else text, ""


def _attribute(module: ModuleType, name: str) -> tuple[str, str]:
    short = {language: "nl", isa: "nisa"}.get(module)
    if short is None and module.__name__.rpartition(".")[2] in ("nki", "sim"):
        short = "nki"
    full = f"{short or module.__name__}.{name}"
    return f"{full} does not exist", instead(name, [module], full)


def _lacks_operand(text: str) -> bool:
    """True if a call of an instruction that writes `dst` lacks an operand."""
    name = (re.findall(r"(\w+)\(\)", text) or [""])[0]
    function = getattr(isa, name, None)
    if "missing" not in text or not inspect.isfunction(function):
        return False
    return "dst" in inspect.signature(function).parameters


def _written(error: BaseException) -> str:
    """The kernel's own lines that raised."""
    frames = [item for item in traceback.extract_tb(error.__traceback__) if not item.filename.startswith((*_OURS, "<"))]
    if not frames or not frames[-1].lineno:
        return ""
    last = frames[-1]
    return "".join(linecache.getlines(last.filename)[(last.lineno or 1) - 1 : last.end_lineno or last.lineno])


def _call(text: str, old: bool) -> str:
    """Advice on a call whose arguments do not fit the instruction; `old`: it was written for one that returns a tile."""
    name = (re.findall(r"(\w+)\(\)", text) or [""])[0]
    function = getattr(isa, name, None) or getattr(language, name, None)
    if function is None:
        return ""
    signature = ", ".join(inspect.signature(function).parameters)
    advice = f"{name} takes {signature}."
    if old:
        return f"Allocate a tile for the result and name each operand: nisa.{name}(dst=tile, ...). {advice}"
    if "'mask'" in text:
        return f"mask= is gone since NKI 0.3: slice the tile to what is valid. {advice}"
    return advice
