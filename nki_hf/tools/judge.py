"""`nki_hf judge`: one round of a search for a kernel: is it right, would the chip take it, how long would it take, and why."""

from __future__ import annotations

import ast
import json
from typing import Annotated, Any

import typer
from rich.console import Console

from nki_hf.tasks import load_task, task_names
from nki_hf.tools.judging import client
from nki_hf.tools.judging.judgement import judge
from nki_hf.tools.modelled import window_of
from nki_hf.tools.output_files import check_writable, whole_file, writing

__all__ = ["command"]


def command(
    kernel: Annotated[str, typer.Argument(help="FILE.py or FILE.py:NAME.")] = "",
    task: Annotated[str, typer.Option(help="A task's name, or a file with TASK = Task(...); --tasks lists them.")] = "",
    layout: Annotated[str, typer.Option(help="Axes as the kernel takes them, e.g. q=ds,k=ds,v=ds; default: the task's.")] = "",
    check: Annotated[str, typer.Option(help="Sizes whose values are judged, e.g. 512,1024; one is joined by its double.")] = "",
    at: Annotated[str, typer.Option(help="Sizes that are timed, e.g. 4096.")] = "",
    chip: Annotated[str, typer.Option(help="Chips, e.g. trn1,trn2; the first checks values. Default: the setting.")] = "",
    lnc: Annotated[int, typer.Option(help="Cores of the launch, 1 or 2.")] = 1,
    dtype: Annotated[str, typer.Option(help="Element type of the run; default: the task's.")] = "",
    const: Annotated[list[str], typer.Option(help="A constant of the kernel: NAME=VALUE.")] = [],  # noqa: B006
    rtol: Annotated[float, typer.Option(help="Allowed relative error of a row; 0 = from an ideal kernel.")] = 0.0,
    timeout: Annotated[float, typer.Option(help="Seconds for the kernel's process, and for the judge's.")] = 60.0,
    memory: Annotated[float, typer.Option(help="GiB that each may take.")] = 8.0,
    against: Annotated[str, typer.Option(help="Another kernel FILE or a rung such as v7, to compare times with.")] = "",
    order: Annotated[str, typer.Option(help="program, or the window of the modelled compiler, e.g. 64.")] = "64",
    seed: Annotated[int, typer.Option(help="Seed of the inputs; -1 = a new one.")] = -1,
    json_file: Annotated[str, typer.Option("--json", help="Write the record to this file; - prints it.")] = "",
    tasks: Annotated[bool, typer.Option("--tasks", help="List the tasks.")] = False,
    show_schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of the record.")] = False,
) -> None:
    """Judge a kernel file in processes of its own: load, limits, memory, races, values on unseen inputs, times with reasons.

    The file is Python: it runs with all of your rights, limited in time and memory, on shapes alone.

    Exit code 0: passed; 1: failed at a stage, whatever the file did; 2: wrong use.
    """
    if show_schema:
        from nki_hf.tools.judging.record import schema  # pydantic is not needed to judge

        print(json.dumps(schema(), indent=1))
        return
    if tasks:
        for name in task_names():
            found = load_task(name)
            arrays = ", ".join(f"{key} {list(shape)}" for key, (shape, _) in found.arrays(found.check[0]).items())
            print(f"{name}: {found.about}; at {found.check[0]}: {arrays}; {found.dtype}")
        return
    if not kernel or not task:
        raise ValueError("a kernel and a task are needed: nki_hf judge FILE.py --task NAME (--tasks lists the names).")
    client.start()
    if json_file not in ("", "-"):
        check_writable(json_file, "json")
    record = judge(
        kernel, task, layout=layout, check=_sizes(check, "check"), at=_sizes(at, "at"), chip=[c for c in chip.split(",") if c],
        lnc=lnc, dtype=dtype, constants=dict(_constant(text) for text in const), rtol=rtol, timeout=timeout, memory_gib=memory,
        against=against, window=window_of(order), seed=None if seed == -1 else seed,
    )  # fmt: skip
    text = json.dumps(record, indent=1)
    if json_file == "-":
        print(text)
    else:
        if json_file:
            with writing(json_file, "json"), whole_file(json_file) as file:
                file.write((text + "\n").encode())
        show(record, Console(soft_wrap=True))
    raise typer.Exit(0 if record["passed"] else 1)


def show(record: dict[str, Any], console: Console) -> None:
    """The record in lines."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    say(record["sentence"])
    for finding in record["findings"]:
        place = f" ({finding['file']}:{finding['line']})" if finding["file"] else ""
        limit = f", {finding['limit']}" if finding["limit"] else ""
        say(f"  {finding['stage']}: {finding['message']}{limit}{place}")
    for row in record["times"]:
        say(f"  {row['sentence']}")
        if row["speedup"]:
            say(f"    {row['speedup']:.2f} times as fast as --against ({row['against_us']:,.1f} us)")
        for hint in row["hints"]:
            say(f"    up to {hint['gain_us']:,.1f} us: line {hint['line']}: {hint['text']}")
    for warning in record["warnings"][:8]:
        say(f"  warning: {warning}")
    for stream in ("stdout", "stderr"):
        if record["printed"].get(stream):
            say(f"  the kernel's own {stream}: {record['printed'][stream][:400]}")
    say("PASS" if record["passed"] else "FAIL")


def _sizes(text: str, what: str) -> list[int]:
    parts = text.split(",") if text else []
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise ValueError(f"{what}={text!r} is no list of sizes: write --{what} 512,1024.")
    return [int(part) for part in parts]


def _constant(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator or not name.isidentifier():
        raise ValueError(f"const={text!r} is not a constant: write --const NAME=VALUE.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # the last two: brackets too deep
        return name, value
