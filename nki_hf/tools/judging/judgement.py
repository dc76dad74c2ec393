"""`nki_hf.judge`: one kernel file through every stage; the record is plain data."""

from __future__ import annotations

import ast
import importlib.util
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nki_hf.chips import get_chip
from nki_hf.settings import settings
from nki_hf.tasks import Task, load_task
from nki_hf.timing.schedule import DEFAULT_WINDOW
from nki_hf.tools.judging import client
from nki_hf.tools.judging.layouts import layout_of, parsed, placed_shape
from nki_hf.tools.judging.ours import packed_by
from nki_hf.tools.judging.verdict import broken
from nki_hf.tools.numpy_layouts import NUMPY_DTYPES
from nki_hf.tools.subjects import SUBJECTS

__all__ = ["judge"]

_GIB = 1 << 30
_MOST_GIB = 1 << 20


def judge(
    path: str | Path,
    task: str,
    *,
    name: str = "",
    layout: str = "",
    check: Sequence[int] = (),
    at: Sequence[int] = (),
    chip: Sequence[str] = (),
    lnc: int = 1,
    dtype: str = "",
    constants: dict[str, Any] | None = None,
    rtol: float = 0.0,
    timeout: float = 60.0,
    memory_gib: float = 8.0,
    window: int | None = DEFAULT_WINDOW,
    against: str = "",
    against_layout: str = "",
    seed: int | None = None,
    until: str = "times",
) -> dict[str, Any]:
    """Judge a kernel file: load, limits, memory, races, values and times.

    The kernel's Python runs in a process of its own, on shapes alone, with limits on time and memory. What it did to the
    machine comes back as data; a clean process runs that on inputs that the kernel never saw. No sandbox: the file runs with
    your rights.

    Args:
      path: the kernel's file; `FILE.py:NAME` names one of several kernels.
      task: name of a task, or a file that says `TASK = Task(...)` (docs/writing_kernels.md).
      name: the kernel, if `path` does not say it.
      layout: axes of the task's arrays as the kernel takes them, e.g. `q=ds,k=ds,v=ds`.
      check: sizes at which values are judged; one size is joined by its double. Default: the task's.
      at: sizes that are timed. Default: the task's.
      chip: chips; the first one checks values. Default: the setting.
      lnc: cores of the launch.
      dtype: element type of the run. Default: the task's.
      constants: further keyword arguments of the kernel.
      rtol: allowed relative error of a row; 0 = four times that of an ideal kernel, and a bound on precision.
      timeout: seconds for the kernel's process, and for the judge's.
      memory_gib: memory of each.
      window: order of the schedule; None = as written.
      against: another kernel file of the same task (with its layout), or a rung of the ladder such as `v7`; its times
        stand beside.
      seed: of the inputs; None = a new one, which the record holds.
      until: the last stage: `lint`, `values` or `times`.

    Returns:
      The record, plain JSON types; its schema is `nki_hf judge --schema`. `passed` and `sentence` say what it is.

    Raises:
      ValueError: a task, chip, layout, size, file or other option is not allowed (wrong use; what the kernel does is in
        the record).
    """
    file, kernel = _split(str(path), name)
    if file.endswith(".py") and not Path(file).is_file():
        raise ValueError(f"kernel={file} is not a file: give FILE.py or FILE.py:NAME.")
    found = load_task(task)
    element = dtype or found.dtype
    if element not in ("bfloat16", "float16", "float32"):
        raise ValueError(f"dtype={element!r} is not an element type of a run: it is bfloat16, float16 or float32.")
    if lnc not in (1, 2):
        raise ValueError(f"lnc={lnc} is not a logical-core degree: it is 1 or 2.")
    if not 0 < timeout <= 3600:
        raise ValueError(f"timeout={timeout} is no time: it is above 0 and at most 3,600 s.")
    if not 0 < memory_gib <= _MOST_GIB:
        raise ValueError(f"memory={memory_gib} is no size: it is above 0 and at most {_MOST_GIB:,} GiB.")
    if not 0 <= rtol < 1:
        raise ValueError(f"rtol={rtol} is no allowed error: it is at least 0 (= from an ideal kernel) and below 1, e.g. 0.01.")
    if seed is not None and not 0 <= seed < 1 << 63:
        raise ValueError(f"seed={seed} is no seed: it is 0 to 2 ** 63 - 1; -1 (None in Python) = a new one.")
    chips = [get_chip(item).name for item in (chip or (settings().chip,))]
    sizes = [_size(item) for item in check] or list(found.check)
    if len(sizes) == 1:
        sizes = [sizes[0], 2 * sizes[0]]
    timed = [_size(item) for item in at] or list(found.at)
    own = parsed(layout, found)
    number = secrets.randbits(31) if seed is None else seed
    if until not in ("lint", "values", "times"):
        raise ValueError(f"until={until!r} is no stage to end at: it is lint, values or times.")
    timed = timed if until == "times" else []
    wanted = [(size, chips[0]) for size in dict.fromkeys(sizes)]
    wanted += [(size, item) for size in timed for item in chips if (size, item) not in wanted]
    traces = _traces(found, element, own, wanted, constants, file, kernel, lnc)
    request = {
        "file": file,
        "name": kernel,
        "task": task,
        "layout": own,
        "check": sizes,
        "at": timed,
        "chips": chips,
        "lnc": lnc,
        "dtype": element,
        "rtol": rtol,
        "window": window,
        "seed": number,
        "traces": traces,
        "until": until,
        "against": None,
    }
    whole: dict[str, Any] = {
        "judge": request,
        "child": _child(file, kernel, lnc, traces),
        "seconds": timeout,
        "memory": int(memory_gib * _GIB),
        "against": None,
    }
    if against:
        at_only = [(size, item) for size in timed for item in chips]
        other, other_name, laid = _parent(against, against_layout or layout, found)
        extra = _traces(found, element, laid, at_only, constants, other, other_name, lnc)
        whole["against"] = _child(other, other_name, lnc, extra)
        request["against"] = {"file": other, "traces": extra}
    try:
        return client.ask(whole)
    except EOFError as error:
        return broken(request, "load", _error("killed", f"{error}: a kernel must leave other processes alone"))


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"kind": kind, "message": message}


def _split(path: str, name: str) -> tuple[str, str]:
    head, separator, tail = path.rpartition(":")
    if separator and tail.isidentifier() and (head.endswith(".py") or ("/" not in tail and not Path(path).is_file())):
        return head, tail
    return path, name


def _size(value: int) -> int:
    if not 1 <= value < 1 << 24:
        raise ValueError(f"size={value} is not a size: it is 1 to 16,777,215.")
    return value


def _child(file: str, name: str, lnc: int, traces: list[dict[str, Any]]) -> dict[str, Any]:
    return {"file": file, "name": name, "lnc": lnc, "traces": traces}


def _traces(
    task: Task,
    dtype: str,
    layout: dict[str, str],
    wanted: list[tuple[int, str]],
    constants: dict[str, Any] | None,
    file: str,
    name: str,
    lnc: int,
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for size, chip in wanted:
        packed = packed_by(file, name, task, get_chip(chip), lnc)
        shapes = task.shapes(size, dtype)
        given = {**task.constants(size), **(constants or {})}
        if packed is not None:
            shapes, given = packed.shapes(size, dtype), dict(packed.plan(size, dtype).constants)
        arrays = []
        for key, (shape, kind) in shapes.items():
            if kind not in NUMPY_DTYPES:
                raise ValueError(f"task {task.name}: {key} is {kind}: it is one of {', '.join(NUMPY_DTYPES)}.")
            own, laid = layout_of(task, layout, key) if packed is None else ("", "")
            arrays.append((key, placed_shape(shape, own, laid) if own else tuple(shape), kind))
        found.append({"size": size, "chip": chip, "arrays": arrays, "constants": _literal(task, given), "checked": not found})
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


def _parent(text: str, layout: str, task: Task) -> tuple[str, str, dict[str, str]]:
    """File, name and layout of the kernel that times are compared with."""
    rung = SUBJECTS.get(text)
    if rung is None:
        file, name = _split(text, "")
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
