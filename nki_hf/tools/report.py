"""`nki_hf report`: where the simulated time of a kernel goes, as tables, JSON or one HTML page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from nki_hf.chips import get_chip
from nki_hf.errors import require
from nki_hf.observers.report import LONGER, facts, html
from nki_hf.observers.timing import WAITS
from nki_hf.tools.modelled import (
    AT_HELP,
    FILE_HELP,
    KERNEL,
    KERNEL_HELP,
    LAYOUT_HELP,
    TASK_HELP,
    asked_for,
    planned,
    stream,
    window_of,
)  # fmt: skip
from nki_hf.tools.output_files import check_writable, whole_file, writing
from nki_hf.tools.shape import SHAPE_HELP

__all__ = ["command", "show"]


def show(found: dict[str, Any], title: str, console: Console) -> None:
    """Print the engine table, the longest lines of the critical path and a verdict."""
    console.print(f"{title}: ~ {found['total_us']:,.1f} µs (sim, {found['chip']}), {found['order']} order")
    table = Table("core", "engine", "instructions", "active", *[f"waits: {wait}" for wait in WAITS], "idle",
                  "µs gained if free",
                  title="engines, % of the simulated time")  # fmt: skip
    for row in found["engines"]:
        waits = [f"{row['waiting'][wait]:.1%}" for wait in WAITS]
        table.add_row(str(row["core"]), row["engine"], f"{row['instructions']:,}", f"{row['active']:.1%}", *waits,
                      f"{row['idle']:.1%}", f"{row['gain_us']:,.1f}")  # fmt: skip
    for row in found["dma"]:
        table.add_row(str(row["core"]), "dma", f"{row['transfers']:,}", f"{row['active']:.1%}", *["" for _ in WAITS], "",
                      f"{row['gain_us']:,.1f}")  # fmt: skip
    console.print(table)
    if any(row["gain_us"] < 0 for row in (*found["engines"], *found["dma"])):
        console.print(LONGER)
    path = Table(
        Column("instruction", no_wrap=True),
        Column("source", no_wrap=True),
        "times",
        "µs (sim)",
        "share",
        title="critical path by kernel line",
    )
    for row in found["path"][:8]:
        source = row["source"].rsplit("/", 1)[-1]
        path.add_row(
            f"{row['engine']} {row['opcode']}", source, f"{row['count']:,}", f"{row['us']:,.1f}", f"{row['share']:.1%}"
        )
    console.print(path)
    tiles = Table("core", "memory", Column("tile", no_wrap=True), Column("source", no_wrap=True),
                  "B per partition", "live at once", "total B", "of capacity",
                  title="working set where each memory is fullest, before spills")  # fmt: skip
    for row in found["working_set"]:
        head = (str(row["core"]), row["space"])
        for tile in row["tiles"]:
            source = tile["source"].rsplit("/", 1)[-1]
            tiles.add_row(*head, tile["name"], source, f"{tile['bytes']:,}", f"{tile['live']:,}", f"{tile['total_bytes']:,}",
                          f"{tile['total_bytes'] / row['capacity_bytes']:.1%}")  # fmt: skip
        tiles.add_row(*head, "all", "", "", "", f"{row['high_water_bytes']:,} of {row['capacity_bytes']:,}",
                      f"{row['high_water_bytes'] / row['capacity_bytes']:.1%}", end_section=True)  # fmt: skip
    console.print(tiles)
    for row in found["memory"]:
        console.print(f"core {row['core']}: at most {row['kib']:,.1f} KiB of {row['space']} per partition at once as scheduled")
    console.print(found["achieved"] + (f". {found['spills']}" if found["spills"] else ""))


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
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write one self-contained page, a .html file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Say where the simulated time of a kernel goes: engines, waits, critical path, DMA, working set, roofline.

    It takes kernels of this package by name, or a kernel file with a task: the file is Python and runs with all of your
    rights, in a process of its own that is limited in time and memory.

    Exit code 1: the kernel file fails.
    """
    asked = asked_for(kernel_file, task, layout, at, const, kernel=kernel, seqlen=seqlen, shape=shape, chip=chip)
    if output is not None:  # a page that cannot be written is known before anything is simulated
        if output.suffix not in (".html", ".htm"):
            raise ValueError(f"output={output} is not a page: its name ends in .html or .htm.")
        check_writable(output)
        require("nki_hf report --output", "plot", "jinja2", "matplotlib")
    window = window_of(order)
    events = stream(asked)
    plan = planned(events, get_chip(chip), window=window, overflow=overflow)
    found = facts(plan, events, asked.useful_flops)
    if output is not None:
        with writing(output), whole_file(output) as file:
            file.write(html(plan, str(asked), found).encode())
    if as_json:
        print(json.dumps(found, indent=1))
        return
    console = Console(width=150)
    show(found, str(asked), console)
    console.print(asked.band)
    if output is not None:
        console.print(f"wrote {output}")
