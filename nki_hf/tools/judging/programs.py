"""The program of a kernel that anybody wrote, for the tools that show one: its event stream at one size on one chip."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nki_hf.chips import Chip, get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import LaunchResult
from nki_hf.sim.run.play import BadTape
from nki_hf.sim.stream.events import Event
from nki_hf.tasks import RUN_DTYPES, Task, load_task
from nki_hf.tools.judging import client
from nki_hf.tools.judging.findings import KIND_STAGE, Failed, KernelFailed, finding, kernel_failure, of_fault
from nki_hf.tools.judging.layouts import parsed
from nki_hf.tools.judging.named_kernels import located
from nki_hf.tools.judging.other_kinds import with_values
from nki_hf.tools.judging.ours import packed_by
from nki_hf.tools.judging.request import GIB, child, no_file, size_of, split, traces
from nki_hf.tools.judging.stage_names import TASK_FAILS, UNKNOWN_CONSTANT
from nki_hf.tools.judging.times import COUNTED, ONE_TURN, TURNS_OF_INPUTS, stream_of
from nki_hf.tools.judging.tried_task import try_task
from nki_hf.tools.judging.verdict import failure_sentence
from nki_hf.tools.judging.without_values import check_without_values
from nki_hf.tools.printable import printable

__all__ = ["UNCHECKED", "Recorded", "failing", "launched", "recorded", "user_events"]

UNCHECKED = "Whether it computes the task was not looked at here: nki_hf judge does that."
"""What is said beside the time of a kernel file."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What a kernel's process gave for one task.

    Attributes:
      file, kernel: the kernel's file and name.
      layout: letters by array.
      task, dtype, lnc: what it was launched for.
      launches: what was asked: size, chip and arrays of each launch.
      played: what came back: a tape for each.
    """

    file: str
    kernel: str
    layout: Mapping[str, str]
    task: Task
    dtype: str
    lnc: int
    launches: Sequence[Mapping[str, Any]]
    played: Sequence[Mapping[str, Any]]


def recorded(
    path: str,
    task: str,
    sizes: Sequence[int],
    chips: Sequence[Chip],
    *,
    lnc: int = 1,
    layout: str = "",
    dtype: str = "",
    constants: Mapping[str, Any] | None = None,
    timeout: float = 60.0,
    memory_gib: float = 8.0,
) -> Recorded:
    """Run the kernel of `FILE.py` or `FILE.py:NAME` on shapes alone, in a process of its own; arguments as for `judge`.

    Args:
      sizes: of the task; empty = those at which it is timed.

    Raises:
      ValueError: a task, a layout, a size, a constant or the file is none.
      KernelFailed: the file or the kernel's Python fails.
    """
    asked = [size_of(size) for size in sizes]
    try_task(task, (), asked, dtype, timeout, int(memory_gib * GIB))
    place = located(path, task, layout)
    file, name = split(place.path, "")
    unreadable = no_file(file)
    found = load_task(task)
    element = dtype or found.dtype
    if element not in RUN_DTYPES:
        raise ValueError(f"dtype={element!r} is not an element type of a run: it is {', '.join(RUN_DTYPES)}.")
    wanted = [(size, chip.name) for size in (asked or found.at) for chip in chips]
    if unreadable is not None:
        raise KernelFailed(failure_sentence("load", [finding("load", unreadable)]))
    launches = traces(found, element, parsed(place.layout, found), wanted, dict(constants or {}), file, name, lnc)
    request = {
        "judge": None,
        "child": child(file, name, lnc, launches, constants or ()),
        "seconds": timeout,
        "memory": int(memory_gib * GIB),
    }
    try:
        answer = client.ask(request)
    except EOFError as error:
        message = f"{error}: a kernel must leave other processes alone"
        raise KernelFailed(failure_sentence("load", [finding("load", {"kind": "killed", "message": message})])) from None
    failed = kernel_failure(answer)
    if failed is not None:
        if constants and failed.findings[0]["kind"] == UNKNOWN_CONSTANT:
            raise ValueError(failed.findings[0]["message"])
        raise KernelFailed(failure_sentence(failed.stage, failed.findings))
    return Recorded(
        file=file,
        kernel=answer["name"],
        layout=parsed(place.layout, found),
        task=found,
        dtype=element,
        lnc=lnc,
        launches=launches,
        played=answer["traces"],
    )


def user_events(
    path: str, task: str, size: int, chip: str, *, lnc: int = 1, layout: str = "", constants: Mapping[str, Any] | None = None
) -> Sequence[Event]:
    """The event stream of a kernel file at one size (0 = the task's) on one chip; memory may overflow (the schedule spills).

    Raises:
      ValueError, KernelFailed: see `recorded`; KernelFailed also where the kernel breaks a limit.
    """
    made = get_chip(chip)
    if not size:
        try_task(task)
    sizes = (size,) if size else load_task(task).at[:1]
    found = recorded(path, task, sizes, (made,), lnc=lnc, layout=layout, constants=constants)
    return launched(found, found.launches[0], found.played[0])[0].events


def launched(found: Recorded, asked: Mapping[str, Any], played: Mapping[str, Any]) -> tuple[LaunchResult, str]:
    """What `stream_of` gives for one of the launches; loops whose turns follow from values are said on standard error.

    Raises:
      KernelFailed: it breaks a limit, its cores race, or it writes an input; values are not judged.
    """
    chip, size = get_chip(asked["chip"]), asked["size"]
    with failing():
        launch = stream_of(asked, played, chip, found.lnc)
        check_without_values(launch[0].events, found.task, dict(played["parameters"]), size)
    if not launch[0].run.short:
        return launch
    words = f"{ONE_TURN}. {COUNTED}"
    if packed_by(found.file, found.kernel, found.task, chip, found.lnc) is None:
        request = {
            "file": found.file,
            "answer": {"name": found.kernel},
            "lnc": found.lnc,
            "dtype": found.dtype,
            "rtol": 0.0,
            "layout": found.layout,
            "seed": 0,
        }
        try:
            launch = with_values(request, found.task, asked, played, f"at size {size:,}")[1], launch[1]
        except Failed as failed:
            if failed.findings[0]["kind"] == TASK_FAILS:
                raise ValueError(failed.findings[0]["message"]) from None
            raise KernelFailed(failure_sentence(failed.stage, list(failed.findings))) from None
        words = TURNS_OF_INPUTS
    print(printable(f"{Path(found.file).name} at size {size:,}: {words}"), file=sys.stderr, flush=True)
    return launch


@contextmanager
def failing() -> Iterator[None]:
    """Block that plays a tape: what is wrong with it is a KernelFailed."""
    try:
        yield
    except Failed as failed:
        raise KernelFailed(failure_sentence(failed.stage, list(failed.findings))) from None
    except KernelFault as fault:
        at = KIND_STAGE.get(fault.record.kind, "limits")
        raise KernelFailed(failure_sentence(at, [of_fault(at, fault.record)])) from None
    except BadTape as error:
        message = f"what the kernel's process recorded is no program ({error})"
        raise KernelFailed(failure_sentence("run", [finding("run", {"kind": "tampered", "message": message})])) from None
