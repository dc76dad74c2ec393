"""`nki_hf judge`: one round of a search for a kernel: is it right, would the chip take it, how long would it take, and why."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from nki_hf.tools.judging import client

__all__ = ["command"]


def command(
    kernel: Annotated[
        str,
        typer.Argument(
            help="FILE.py, FILE.py:NAME, or one of ours such as flash_prefill or v7 (v3 to v11: --task attention_unscaled)."
        ),
    ] = "",
    task: Annotated[str, typer.Option(help="A task's name, or a file with TASK = Task(...); --tasks lists them.")] = "",
    layout: Annotated[str, typer.Option(help="Axes as the kernel takes them, e.g. q=ds,k=ds,v=ds; default: the task's.")] = "",
    check: Annotated[str, typer.Option(help="Sizes whose values are judged, e.g. 512,1024; one is joined by another.")] = "",
    at: Annotated[str, typer.Option(help="Sizes that are timed, e.g. 4096.")] = "",
    chip: Annotated[str, typer.Option(help="Chips; values: on the first, on others if programs differ there.")] = "",
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
    same_writes: Annotated[
        bool,
        typer.Option(
            "--same-writes", help="Both cores may write the same values, or one read what no output shows: a warning, no race."
        ),
    ] = False,
    tasks: Annotated[bool, typer.Option("--tasks", help="List the tasks.")] = False,
    show_schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of the record.")] = False,
) -> None:
    """Judge a kernel file in processes of its own: load, limits, memory, races, values on unseen inputs, times with reasons.

    The file is Python: it runs with all of your rights, limited in time and memory, on shapes alone.

    Exit code 0: passed; 1: failed at a stage, whatever the file did; 2: wrong use.
    """
    if kernel and task:
        client.start()  # gets ready while this process imports what follows
    from nki_hf.tasks import load_task, task_names
    from nki_hf.tools.judging.judgement import judge
    from nki_hf.tools.judging.output import give
    from nki_hf.tools.modelled import window_of
    from nki_hf.tools.option_values import constant_of, sizes_of
    from nki_hf.tools.output_files import check_writable
    from nki_hf.tools.progress import working
    from nki_hf.tools.screen import Screen

    if show_schema:
        from nki_hf.tools.judging.record import schema  # pydantic is not needed to judge

        print(json.dumps(schema(), indent=1))
        return
    if tasks:
        screen = Screen()
        for name in task_names():
            found = load_task(name)
            arrays = ", ".join(f"{key} {list(shape)}" for key, (shape, _) in found.arrays(found.check[0]).items())
            screen.say(f"{name}: {found.about}; at {found.check[0]}: {arrays}; {found.dtype}")
        return
    if not kernel or not task:
        raise ValueError("a kernel and a task are needed: nki_hf judge FILE.py --task NAME (--tasks lists the names).")
    if json_file not in ("", "-"):
        check_writable(json_file, "json")
    with working(f"nki_hf judge of {kernel} on {task}"):
        record = judge(
            kernel, task, layout=layout, check=sizes_of(check, "check"), at=sizes_of(at, "at"),
            chip=[item for item in chip.split(",") if item], lnc=lnc, dtype=dtype, constants=dict(map(constant_of, const)),
            rtol=rtol, timeout=timeout, memory_gib=memory, against=against,
            window=window_of(order), seed=None if seed == -1 else seed, same_writes=same_writes,
        )  # fmt: skip
    give(record, json_file)
