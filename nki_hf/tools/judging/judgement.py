"""`nki_hf.judge`: one kernel file through every stage; the record is plain data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nki_hf.chips import get_chip
from nki_hf.settings import settings
from nki_hf.tasks import RUN_DTYPES, load_task
from nki_hf.timing.schedule import DEFAULT_WINDOW
from nki_hf.tools.cores import check_cores
from nki_hf.tools.judging import client
from nki_hf.tools.judging.layouts import parsed
from nki_hf.tools.judging.named_kernels import located
from nki_hf.tools.judging.ours import packed_by
from nki_hf.tools.judging.request import (
    GIB,
    as_text,
    check_number,
    child,
    is_whole,
    judged_sizes,
    listed,
    no_file,
    parent,
    sizes_given,
    split,
    traces,
)
from nki_hf.tools.judging.stage_names import TASK_FAILS, UNKNOWN_CONSTANT
from nki_hf.tools.judging.tried_task import try_task
from nki_hf.tools.judging.verdict import broken, finite

__all__ = ["judge"]

_MOST_GIB = 1 << 20


def judge(
    path: str | Path,
    task: str | Path,
    *,
    name: str = "",
    layout: str | Mapping[str, str] = "",
    check: Sequence[int] | int | str = (),
    at: Sequence[int] | int | str = (),
    chip: Sequence[str] | str = (),
    lnc: int = 1,
    dtype: str = "",
    constants: dict[str, Any] | None = None,
    rtol: float = 0.0,
    timeout: float = 60.0,
    memory_gib: float = 8.0,
    window: int | None = DEFAULT_WINDOW,
    against: str = "",
    against_layout: str | Mapping[str, str] = "",
    seed: int | None = None,
    until: str = "times",
    same_writes: bool = False,
    within: float | None = None,
) -> dict[str, Any]:
    """Judge a kernel file: load, limits, memory, races, values and times.

    The kernel's Python runs in a process of its own, on shapes alone, with limits on time and memory. What it did to the
    machine comes back as data; a clean process runs that on inputs that the kernel never saw. No sandbox: the file runs with
    your rights.

    Args:
      path: the kernel's file; `FILE.py:NAME` names one of several kernels; or a kernel of ours by name, such as `flash_prefill`
        or a rung of the ladder (`v3` to `v11`, which have no scale: the task `attention_unscaled`).
      task: name of a task, or a file that says `TASK = Task(...)` (docs/writing_kernels.md).
      name: the kernel, if `path` does not say it.
      layout: axes of the task's arrays as the kernel takes them, e.g. `q=ds,k=ds,v=ds`.
      check: sizes at which values are judged; one size is joined by its double (from 2,048 on by its half). Default: the
        task's.
      at: sizes that are timed. Default: the task's.
      chip: chips; the first one checks values, and each for which the kernel is another program. Default: the setting.
      lnc: cores of the launch.
      dtype: element type of the run. Default: the task's.
      constants: further keyword arguments of the kernel, by the names of its parameters.
      rtol: allowed relative error of a row; 0 = four times that of an ideal kernel, and a bound on precision.
      timeout: seconds for the kernel's process, and for the judge's.
      memory_gib: memory of each.
      window: order of the schedule; None = as written.
      against: another kernel of the same task, named as `path` (with its layout); its times
        stand beside, and where the kernel is wrong and the other right, the first instruction whose tile differs is named.
      seed: of the inputs; None = a new one, which the record holds.
      until: the last stage: `lint`, `values` or `times`.
      same_writes: both cores of a launch may write the same bytes by the same instruction, and one may read what the other
        writes into an input where no output shows it: a warning then, otherwise a race.
      within: seconds for all processes together, whatever `timeout` says; None = no further limit.

    Returns:
      The record, plain JSON types; its schema is `nki_hf judge --schema`. `passed` and `sentence` say what it is.

    Raises:
      ValueError: a task, chip, layout, size, file or other option is not allowed, or the task itself is at fault (its
        functions raise, hang, or give what is none: wrong use; what the kernel does is in the record).
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(task, str | os.PathLike):
        raise ValueError(
            f"path={path!r}, task={task!r}: both are names or files (a Task of your own stands in a file, TASK = Task(...))."
        )
    task = str(task)
    for option, given in (("timeout", timeout), ("memory_gib", memory_gib), ("rtol", rtol), ("lnc", lnc)):
        check_number(option, given)
    if not 0 < timeout <= 3600:
        raise ValueError(f"timeout={timeout} is no time: it is above 0 and at most 3,600 s.")
    if not 0 < memory_gib <= _MOST_GIB:
        raise ValueError(f"memory={memory_gib} is no size: it is above 0 and at most {_MOST_GIB:,} GiB.")
    checked = sizes_given(check, "check")
    try_task(task, checked, sizes_given(at, "at"), dtype, min(timeout, within or timeout), int(memory_gib * GIB))
    place = located(str(path), task, as_text(layout))
    file, kernel = split(place.path, name)
    unreadable = no_file(file) if file.endswith(".py") or "/" in file else None
    found = load_task(task)
    element = dtype or found.dtype
    if element not in RUN_DTYPES:
        raise ValueError(f"dtype={element!r} is not an element type of a run: it is bfloat16, float16 or float32.")
    if not 0 <= rtol < 1:
        raise ValueError(f"rtol={rtol} is no allowed error: it is at least 0 (= from an ideal kernel) and below 1, e.g. 0.01.")
    if seed is not None and not (is_whole(seed) and 0 <= seed < 1 << 63):
        raise ValueError(f"seed={seed} is no seed: it is 0 to 2 ** 63 - 1; -1 (None in Python) = a new one.")
    chips = [get_chip(item).name for item in (listed(chip) or (settings().chip,))]
    check_cores(lnc, chips)
    sizes = judged_sizes(checked, found)
    timed = sizes_given(at, "at") or list(found.at)
    own = parsed(place.layout, found)
    if until not in ("lint", "values", "times"):
        raise ValueError(f"until={until!r} is no stage to end at: it is lint, values or times.")
    timed = timed if until == "times" else []
    checks = [(size, chips[0]) for size in dict.fromkeys(sizes)]
    ours = bool(unreadable) or packed_by(file, kernel, found, get_chip(chips[0]), lnc) is not None
    wanted = [*checks]
    if timed and not ours:  # values are judged on each chip for which the kernel is another program
        wanted += [(size, item) for item in chips[1:] for size in dict.fromkeys(sizes)]
    launches = [] if unreadable else traces(found, element, own, wanted, constants, file, kernel, lnc, checks)
    ragged = 0 if ours or until == "lint" or found.ragged in sizes else found.ragged
    if ragged:
        (one,) = traces(found, element, own, [(ragged, chips[0])], constants, file, kernel, lnc)
        launches.append({**one, "checked": False, "optional": True, "repeated": False})
    if not unreadable:  # last, so that all that is judged is known before
        only_timed = [(size, item) for size in timed for item in chips if (size, item) not in wanted]
        more = traces(found, element, own, only_timed, constants, file, kernel, lnc)
        launches += [{**item, "checked": False} for item in more]
    request = {
        "file": file,
        "name": kernel,
        "task": task,
        "layout": own,
        "check": sizes,
        "ragged": ragged,
        "asked": bool(check),
        "at": timed,
        "chips": chips,
        "lnc": lnc,
        "dtype": element,
        "rtol": rtol,
        "window": window,
        "seed": seed,  # a new one is drawn when the kernel's process has ended
        "traces": launches,
        "until": until,
        "same_writes": same_writes,
        "against": None,
    }
    if unreadable is not None:
        return broken({**request, "seed": seed or 0}, "load", unreadable)
    whole: dict[str, Any] = {
        "judge": request,
        "child": child(file, kernel, lnc, launches, constants or ()),
        "seconds": timeout,
        "within": within,
        "memory": int(memory_gib * GIB),
        "against": None,
    }
    if against:
        other, other_name, laid = parent(against, task, as_text(against_layout or layout))
        compared = [*checks, *((size, item) for size in timed for item in chips)]
        extra = traces(found, element, laid, list(dict.fromkeys(compared)), constants, other, other_name, lnc, checks)
        whole["against"] = child(other, other_name, lnc, extra)
        request["against"] = {"file": other, "layout": laid, "traces": extra}
    try:
        record: dict[str, Any] = finite(client.ask(whole))
    except EOFError as error:
        return broken(
            {**request, "seed": seed or 0}, "load", _error("killed", f"{error}: a kernel must leave other processes alone")
        )
    for item in record["findings"]:
        if (constants and item["kind"] == UNKNOWN_CONSTANT) or (item["kind"] == TASK_FAILS and item["stage"] == "values"):
            raise ValueError(item["message"])
    if place.task and place.task != task and record["stage"] == "values":
        record["sentence"] += f" {place.label} is judged by --task {place.task}, whose function it computes."
    return record


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"kind": kind, "message": message}
