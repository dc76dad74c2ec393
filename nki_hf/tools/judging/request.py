"""What a kernel's process is asked: file and name, and the arrays and constants of each launch."""

from __future__ import annotations

import ast
import numbers
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nki_hf.chips import get_chip
from nki_hf.tasks import Task, load_task
from nki_hf.tools.judging.layouts import layout_of, parsed, placed_shape
from nki_hf.tools.judging.named_kernels import named
from nki_hf.tools.judging.ours import packed_by
from nki_hf.tools.numpy_layouts import NUMPY_DTYPES
from nki_hf.tools.option_values import sizes_of

__all__ = [
    "GIB",
    "as_text",
    "check_number",
    "child",
    "is_whole",
    "judged_sizes",
    "listed",
    "no_file",
    "parent",
    "size_of",
    "sizes_given",
    "split",
    "traces",
]

GIB = 1 << 30
_HALVED = 2048
"""Size from which the second size is the smaller one, so that it costs little."""


def split(path: str, name: str) -> tuple[str, str]:
    """File and kernel of `FILE.py:NAME`; `name` where the path says none."""
    head, separator, tail = path.rpartition(":")
    if separator and tail.isidentifier() and (head.endswith(".py") or ("/" not in tail and not Path(path).is_file())):
        return head, tail
    return path, name


def no_file(path: str) -> dict[str, Any] | None:
    """The error of stage load for what is there but is no file (a folder, a pipe, a link to nothing); None for a file.

    Raises:
      ValueError: nothing is there.
    """
    if Path(path).is_file():
        return None
    if not os.path.lexists(path):
        raise ValueError(f"kernel={path} is not a file: give FILE.py or FILE.py:NAME.")
    try:
        what = _KINDS.get(stat.S_IFMT(os.stat(path).st_mode), "a device")
    except OSError as error:  # a link to nothing or to itself
        what = f"a link that leads to no file ({error.strerror})"
    return {
        "kind": "no file",
        "message": f"kernel={path} is {what}, not a file",
        "advice": "Give FILE.py or FILE.py:NAME.",
    }


_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def is_whole(value: Any) -> bool:
    """True for a whole number of any type."""
    return isinstance(value, numbers.Integral)


def check_number(option: str, value: Any) -> None:
    """Raise a ValueError for what is no number."""
    if not isinstance(value, numbers.Real):
        raise ValueError(f"{option}={value!r} is no number.")


def size_of(value: int) -> int:
    """The size, if it is one."""
    if not is_whole(value) or not 1 <= value < 1 << 24:
        raise ValueError(f"size={value} is not a size: it is a whole number, 1 to 16,777,215.")
    return int(value)


def sizes_given(value: Iterable[int] | int | str | None, what: str) -> list[int]:
    """Sizes as a caller gives them: one, several, or the text of the command line."""
    if isinstance(value, str):
        value = sizes_of(value, what)
    if isinstance(value, int):
        return [size_of(value)]
    try:
        return [size_of(item) for item in value or ()]
    except TypeError:
        raise ValueError(f"{what}={value!r} is no list of sizes: give one size or several, as in {what}=(512, 1024).") from None


def judged_sizes(given: Sequence[int], task: Task) -> list[int]:
    """Sizes whose values are judged: those that are given, else the task's; one is joined by another."""
    sizes = list(given) or list(task.check)
    if len(sizes) == 1:  # a mistake that follows one size shows at another
        sizes = sorted([sizes[0], 2 * sizes[0] if sizes[0] < _HALVED else sizes[0] // 2])
    return sizes


def listed(value: Iterable[str] | str) -> list[str]:
    """Names as a caller gives them: several, or the text of the command line."""
    return [item for item in value.split(",") if item] if isinstance(value, str) else list(value)


def as_text(layout: str | Mapping[str, str]) -> str:
    """A layout as the command line has it, `q=ds,k=ds`."""
    return ",".join(f"{name}={letters}" for name, letters in layout.items()) if isinstance(layout, Mapping) else layout


def child(file: str, name: str, lnc: int, traces: list[dict[str, Any]], named: Iterable[str] = ()) -> dict[str, Any]:
    """What the kernel's process is asked (see `child.answer`)."""
    return {"file": file, "name": name, "lnc": lnc, "traces": traces, "named": list(named)}


def traces(
    task: Task,
    dtype: str,
    layout: dict[str, str],
    wanted: list[tuple[int, str]],
    constants: dict[str, Any] | None,
    file: str,
    name: str,
    lnc: int,
    repeated: Iterable[tuple[int, str]] = (),
) -> list[dict[str, Any]]:
    """One launch on shapes alone per size and chip that is `wanted`; the limits are checked in the first, and those that are
    `repeated` are launched again at the end.

    Raises:
      ValueError: an element type or a constant is none that a task may have.
    """
    found: list[dict[str, Any]] = []
    again = set(repeated)
    for size, chip in wanted:
        packed = packed_by(file, name, task, get_chip(chip), lnc)
        shapes = task.shapes(size, dtype)
        given = {**task.constants(size), **(constants or {})}
        if packed is not None and constants:
            raise ValueError(
                f"const: {packed.binding.name} is run by its plan, which has its constants: leave out {', '.join(constants)} "
                "(nki_hf tune tries other plans)."
            )
        if packed is not None:
            shapes, given = packed.shapes(size, dtype), dict(packed.plan(size, dtype).constants)
        arrays = []
        for key, (shape, kind) in shapes.items():
            if kind not in NUMPY_DTYPES:
                raise ValueError(f"task {task.name}: {key} is {kind}: it is one of {', '.join(NUMPY_DTYPES)}.")
            own, laid = layout_of(task, layout, key) if packed is None else ("", "")
            arrays.append((key, placed_shape(shape, own, laid) if own else tuple(shape), kind))
        found.append(
            {
                "size": size,
                "chip": chip,
                "arrays": arrays,
                "constants": _literal(task, given),
                "checked": not found,
                "optional": False,
                "repeated": (size, chip) in again,
            }
        )
    return found


def _literal(task: Task, constants: dict[str, Any]) -> str:
    """Constants as text, so that tuples stay tuples on their way."""
    text = repr(constants)
    try:
        same = ast.literal_eval(text) == constants
    except (ValueError, SyntaxError):
        same = False
    if not same:
        raise ValueError(
            f"constants of {task.name} are {text[:200]}: they are numbers, strings, tuples, lists and dicts of such."
        )
    return text


def parent(text: str, task: str, layout: str) -> tuple[str, str, dict[str, str]]:
    """File, name and layout of the kernel that times are compared with."""
    try:
        found = named(text, task, layout)
    except ValueError as error:
        raise ValueError(str(error).replace("kernel=", "against=", 1)) from None
    return *split(found.path, ""), parsed(found.layout, load_task(task))
