"""`nki_hf report`: where the simulated time of a kernel goes, as tables, JSON or one HTML page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from nki_hf.errors import BackendUnavailable, require
from nki_hf.observers.report import facts, html
from nki_hf.observers.timing import WAITS
from nki_hf.tools.modelled import Asked, check_writable, model, window_of

__all__ = ["command", "show"]


def show(found: dict[str, Any], title: str, console: Console) -> None:
    """Print the engine table, the longest lines of the critical path and a verdict."""
    console.print(f"{title}: ~ {found['total_us']:,.1f} µs (sim, {found['chip']}), {found['order']} order")
    table = Table("core", "engine", "instructions", "active", *[f"waits: {wait}" for wait in WAITS], "idle", "µs if free",
                  title="engines, % of the simulated time")  # fmt: skip
    for row in found["engines"]:
        waits = [f"{row['waiting'][wait]:.1%}" for wait in WAITS]
        table.add_row(str(row["core"]), row["engine"], f"{row['instructions']:,}", f"{row['active']:.1%}", *waits,
                      f"{row['idle']:.1%}", f"{-row['gain_us']:,.1f}")  # fmt: skip
    for row in found["dma"]:
        table.add_row(str(row["core"]), "dma", f"{row['transfers']:,}", f"{row['active']:.1%}", *["" for _ in WAITS], "",
                      f"{-row['gain_us']:,.1f}")  # fmt: skip
    console.print(table)
    path = Table("instruction", "source", "times", "µs (sim)", "share", title="critical path by kernel line")
    for row in found["path"][:8]:
        source = row["source"].rsplit("/", 1)[-1]
        path.add_row(
            f"{row['engine']} {row['opcode']}", source, f"{row['count']:,}", f"{row['us']:,.1f}", f"{row['share']:.1%}"
        )
    console.print(path)
    for row in found["memory"]:
        console.print(f"core {row['core']}: at most {row['kib']:,.1f} KiB of {row['space']} per partition at once")
    console.print(found["achieved"] + (f". {found['spills']}" if found["spills"] else ""))


def command(
    kernel: Annotated[str, typer.Option(help="flash_prefill, or a rung of the ladder such as v7.")] = "flash_prefill",
    seqlen: Annotated[int, typer.Option(help="Keys (and queries) of a ladder rung.")] = 1024,
    shape: Annotated[str, typer.Option(help="Problem of flash_prefill, b=1,hq=1,hkv=1,sq=1024,skv=1024,d=128,causal.")] = "",
    chip: Annotated[str, typer.Option(help="trn1, trn2 or trn3.")] = "trn2",
    order: Annotated[str, typer.Option(help="program, or the window of the modelled compiler, e.g. 64.")] = "64",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write one self-contained HTML page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Say where the simulated time of a kernel goes: engines, waits, critical path, DMA, roofline."""
    try:
        asked = Asked(kernel=kernel, seqlen=seqlen, shape=shape, chip=chip)
        if output is not None:  # a page that cannot be written is known before anything is simulated
            check_writable(output)
            require("nki_hf report --output", "plot", "jinja2", "matplotlib")
        plan = model(asked, window=window_of(order))
        if output is not None:
            output.write_text(html(plan, str(asked)))
    except (ValueError, BackendUnavailable) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    found = facts(plan)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    console = Console(width=150)
    show(found, str(asked), console)
    if output is not None:
        console.print(f"wrote {output}")
