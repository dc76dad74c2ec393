"""`nki_hf prompt`: one text for a program that writes kernels: task, rules, limits, signatures, and a kernel that passes."""

from __future__ import annotations

from typing import Annotated

import typer

from nki_hf.tasks import load_task
from nki_hf.tools.judging.layouts import parsed
from nki_hf.tools.judging.tried_task import try_task
from nki_hf.tools.searching.guide import guide
from nki_hf.tools.searching.options import judge_options

__all__ = ["command"]


def command(
    task: Annotated[str, typer.Option(help="A task's name, or a file with TASK = Task(...); nki_hf judge --tasks lists them.")],
    layout: Annotated[str, typer.Option(help="Axes as the kernel takes them, e.g. q=ds,k=ds,v=ds.")] = "",
    check: Annotated[str, typer.Option(help="Sizes whose values are judged, e.g. 512,1024.")] = "",
    at: Annotated[str, typer.Option(help="Sizes that are timed, e.g. 4096.")] = "",
    chip: Annotated[str, typer.Option(help="Chips, e.g. trn1,trn2.")] = "",
    dtype: Annotated[str, typer.Option(help="Element type of the run; default: the task's.")] = "",
) -> None:
    """Print one text that says what kernel to write and by which rules; nothing of it is sent anywhere."""
    options = judge_options(layout=layout, check=check, at=at, chip=chip, dtype=dtype)
    if dtype not in ("", "bfloat16", "float16", "float32"):
        raise ValueError(f"dtype={dtype!r} is not an element type of a run: it is bfloat16, float16 or float32.")
    for name in ("check", "at"):
        if not all(0 < size < 1 << 24 for size in options[name]):
            raise ValueError(f"{name}={','.join(map(str, options[name]))}: a size is 1 to 16,777,215.")
    try_task(task, options["check"], options["at"], dtype)
    found = load_task(task)
    parsed(layout, found)
    print(guide(found, options), end="")
