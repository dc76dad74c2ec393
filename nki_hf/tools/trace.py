"""`nki_hf trace`: the simulated timeline of a kernel as a Perfetto trace or a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nki_hf.errors import require
from nki_hf.observers.perfetto import write_trace
from nki_hf.observers.timeline import draw_timeline
from nki_hf.timing.schedule import Schedule
from nki_hf.tools.judging.programs import UNCHECKED
from nki_hf.tools.modelled import (
    AT_HELP,
    FILE_HELP,
    KERNEL,
    KERNEL_HELP,
    LAYOUT_HELP,
    TASK_HELP,
    asked_for,
    model,
    window_of,
)
from nki_hf.tools.output_files import check_writable, whole_file, writing
from nki_hf.tools.progress import working
from nki_hf.tools.screen import Screen
from nki_hf.tools.shape import SHAPE_HELP

__all__ = ["check", "command", "run"]


def check(path: Path) -> None:
    """Find out whether `run` could write `path`, before anything is simulated.

    Raises:
      ValueError: its suffix is not `.pftrace`, `.png` or `.svg`, or it cannot be written.
      BackendUnavailable: the package that writes it is missing.
    """
    if path.suffix not in (".pftrace", ".png", ".svg"):
        raise ValueError(f"output={path} is not a trace: its name ends in .pftrace, .png or .svg.")
    check_writable(path)
    if path.suffix == ".pftrace":
        require("nki_hf trace", "trace", "perfetto")
    else:
        require("nki_hf trace (a picture)", "plot", "matplotlib")


def run(scheduled: Schedule, path: Path, title: str = "kernel") -> str:
    """Write `scheduled` to `path` by its suffix (`.pftrace`, `.png`, `.svg`); returns one line that says what was written.

    Raises:
      ValueError, BackendUnavailable: see `check`.
    """
    check(path)
    with writing(path), whole_file(path) as file:
        if path.suffix == ".pftrace":
            slices = write_trace(scheduled, file, title=title)
            return f"wrote {path}: {slices:,} slices, simulated; open it at ui.perfetto.dev"
        draw_timeline(scheduled, file, title=title, file_format=path.suffix.removeprefix("."))
    return f"wrote {path}: simulated timeline"


def command(
    kernel_file: Annotated[str, typer.Argument(help=FILE_HELP)] = "",
    kernel: Annotated[str, typer.Option(help=KERNEL_HELP)] = KERNEL,
    seqlen: Annotated[int, typer.Option(help="Keys (and queries) of a ladder rung.")] = 1024,
    shape: Annotated[str, typer.Option(help=SHAPE_HELP)] = "",
    task: Annotated[str, typer.Option(help=TASK_HELP)] = "",
    layout: Annotated[str, typer.Option(help=LAYOUT_HELP)] = "",
    at: Annotated[int, typer.Option(help=AT_HELP)] = 0,
    const: Annotated[list[str], typer.Option(help="A constant of the kernel file: NAME=VALUE.")] = [],  # noqa: B006
    chip: Annotated[str, typer.Option(help="trn1, trn2 or trn3.")] = "trn2",
    order: Annotated[str, typer.Option(help="program, or the window of the modelled compiler, e.g. 64.")] = "64",
    overflow: Annotated[str, typer.Option(help="Tiles that do not fit: spill (as a compiler would) or error.")] = "spill",
    output: Annotated[Path, typer.Option("--output", "-o", help="A .pftrace, .png or .svg file.")] = Path("nki_hf.pftrace"),
) -> None:
    """Write the simulated timeline of a kernel of this package by name, or of a kernel file with a task.

    The file is Python and runs with all of your rights, in a process of its own that is limited in time and memory.

    Exit code 1: the kernel file fails.
    """
    asked = asked_for(kernel_file, task, layout, at, const, kernel=kernel, seqlen=seqlen, shape=shape, chip=chip)
    check(output)
    with working(f"nki_hf trace of {asked}"):
        scheduled = model(asked, window=window_of(order), overflow=overflow)
        wrote = run(scheduled, output, str(asked))
    screen = Screen()
    screen.say(f"{asked}: ~ {scheduled.total_ns / 1e3:,.1f} µs (sim, {chip}), {scheduled.order} order; {asked.band}")
    screen.say(wrote)
    if asked.task:
        screen.say(UNCHECKED)
