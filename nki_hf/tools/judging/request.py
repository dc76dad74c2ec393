"""What a kernel's process is asked: file and name, and the arrays and constants of each launch."""

from __future__ import annotations

import ast
import importlib.util
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nki_hf.chips import get_chip
from nki_hf.tasks import Task
from nki_hf.tools.judging.layouts import layout_of, parsed, placed_shape
from nki_hf.tools.judging.ours import packed_by
from nki_hf.tools.numpy_layouts import NUMPY_DTYPES
from nki_hf.tools.subjects import SUBJECTS

__all__ = ["GIB", "ELEMENTS", "child", "no_file", "parent", "size_of", "split", "traces"]

ELEMENTS = ("bfloat16", "float16", "float32")
"""Element types of a run."""
GIB = 1 << 30


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


def size_of(value: int) -> int:
    """The size, if it is one."""
    if not 1 <= value < 1 << 24:
        raise ValueError(f"size={value} is not a size: it is 1 to 16,777,215.")
    return value


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
) -> list[dict[str, Any]]:
    """One launch on shapes alone per size and chip that is `wanted`; the limits are checked in the first.

    Raises:
      ValueError: an element type or a constant is none that a task may have.
    """
    found: list[dict[str, Any]] = []
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


def parent(text: str, layout: str, task: Task) -> tuple[str, str, dict[str, str]]:
    """File, name and layout of the kernel that times are compared with."""
    rung = SUBJECTS.get(text)
    if rung is None:
        file, name = split(text, "")
        if not file.endswith(".py") or not Path(file).is_file():
            known = ", ".join(SUBJECTS)
            raise ValueError(f"against={text!r} is not a kernel: it is FILE.py, FILE.py:NAME or one of {known}.")
        return file, name, parsed(layout, task)
    spec = importlib.util.find_spec(rung.module)
    if spec is None or spec.origin is None:
        raise ValueError(f"against={text!r} is not here.")
    columns = rung.arguments(512)[0].shape[0] == 128
    laid = {key: "ds" for key in ("q", "k", "v") if key in task.axes} if columns else {}
    return spec.origin, rung.function, laid
