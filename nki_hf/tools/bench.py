"""`nki_hf bench`: the simulated latency of one attention call on each chip, ours beside the eager-like rung."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from nki_hf.chips import CHIPS, get_chip
from nki_hf.tools.bench_rows import check_shape_length, modelled_rows, run
from nki_hf.tools.cores import check_cores
from nki_hf.tools.error_bands import band_of
from nki_hf.tools.judging.timetable import command as kernel_command
from nki_hf.tools.latency import EAGER_NOTE
from nki_hf.tools.modelled import FILE_HELP, LAYOUT_HELP, TASK_HELP, window_of
from nki_hf.tools.option_values import constant_of, sizes_of
from nki_hf.tools.progress import Work, working
from nki_hf.tools.screen import Screen
from nki_hf.tools.searching.workers import Workers, processes_of
from nki_hf.tools.shape import SHAPE_HELP, problem_of

__all__ = ["command", "modelled_table"]

_MOST_LAYERS = 1_000_000
_LONG = 20_000
"""Instructions from which on a chip has a process of its own, which takes half a second to start: they take about as long."""
_LIMIT_S = 3600.0


def modelled_table(rows: list[dict[str, Any]], layers: int) -> Table:
    """The rows of `modelled_rows` as a table that holds simulated figures only."""
    table = Table(
        "chip",
        "cores",
        "kernel",
        "µs a layer (sim)",
        f"ms, {layers} layer{'' if layers == 1 else 's'} (sim)",
        "prompts/s, attention alone (sim)",
        title="attention on Trainium, simulated: no figure here was measured",
        caption="\n".join(f"error on measured rows: {row['band']}" for row in rows),
    )
    for row in rows:
        for kind, label in (("nki", f"nki {row['kernel']}"), ("eager_like", "eager-like (ladder v3)")):
            table.add_row(
                row["chip"],
                str(row["cores"]),
                label,
                f"{row[f'{kind}_us_simulated']:,.0f}",
                f"{row[f'{kind}_model_ms_simulated']:,.2f}",
                f"{row[f'{kind}_prompts_per_s_simulated']:,.1f}",
            )
    return table


def command(
    kernel_file: Annotated[str, typer.Argument(help=FILE_HELP)] = "",
    shape: Annotated[str | None, typer.Option(help=SHAPE_HELP)] = None,
    task: Annotated[str, typer.Option(help=TASK_HELP)] = "",
    layout: Annotated[str, typer.Option(help=LAYOUT_HELP)] = "",
    at: Annotated[str, typer.Option(help="Sizes of the task, e.g. 1024,4096; default: those at which it is timed.")] = "",
    const: Annotated[list[str], typer.Option(help="A constant of the kernel file: NAME=VALUE.")] = [],  # noqa: B006
    chip: Annotated[str, typer.Option(help="trn1, trn2 or trn3; default is all three.")] = "",
    order: Annotated[str, typer.Option(help="program, or the window of the modelled compiler, e.g. 64.")] = "64",
    lnc: Annotated[int | None, typer.Option(help="Cores, 1 or 2; default is each chip's own.")] = None,
    layers: Annotated[int, typer.Option(help="Layers of the model that the call is one of.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Simulate the latency of one attention call on Trainium, or of a kernel file on a task.

    A kernel file is Python: it runs with all of your rights, in a process of its own that is limited in time and memory.

    Exit code 1: the kernel file fails.
    """
    if kernel_file or task:
        if not kernel_file or not task or shape is not None or layers != 1:
            raise ValueError("a kernel file and a task go together, without --shape and --layers: bench FILE.py --task NAME.")
        chips = (chip,) if chip else tuple(CHIPS)
        kernel_command(
            kernel_file,
            task,
            sizes_of(at, "at"),
            chips,
            lnc=1 if lnc is None else lnc,
            layout=layout,
            constants=dict(map(constant_of, const)),
            window=window_of(order),
            as_json=as_json,
        )
        return
    if shape is None:
        raise ValueError("shape is missing: give --shape b=1,hq=16,hkv=8,sq=4096, or a kernel FILE.py with --task NAME.")
    if layout or at or const:
        raise ValueError("layout, at and const describe a kernel file: give FILE.py --task NAME with them.")
    problem = problem_of(shape)
    chips = (get_chip(chip).name,) if chip else tuple(CHIPS)
    if not 1 <= layers <= _MOST_LAYERS:
        raise ValueError(f"layers={layers} is not a number of layers: it is 1 or more, and at most {_MOST_LAYERS:,}.")
    check_cores(lnc, chips)
    longest = max(check_shape_length(problem, get_chip(name), lnc) for name in chips)
    window, processes = window_of(order), min(processes_of(0), len(chips))
    with working(f"nki_hf bench of {shape}", 2 * len(chips)) as work:
        if longest < _LONG or processes < 2:
            rows = run(problem, chips, window=window, lnc=lnc, progress=work.advance)
        else:
            jobs = [{"kind": "bench", "shape": shape, "chip": name, "window": window, "lnc": lnc} for name in chips]
            rows = _beside(jobs, processes, work)
        more = modelled_rows(problem, layers, window=window, chips=chips) if layers > 1 and not as_json else []
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(
        "chip",
        "cores",
        "nki µs (sim)",
        "TFLOP/s (sim)",
        "of peak",
        "eager-like µs (sim)",
        "speed-up (sim)",
        title=f"{shape}: simulated, not measured; TFLOP/s on visible keys",
    )
    for row in rows:
        table.add_row(
            row["chip"],
            str(row["cores"]),
            f"{row['nki_us_simulated']:,.1f}",
            f"{row['visible_tflops_simulated']:,.1f}",
            f"{row['visible_tflops_simulated'] / row['peak_tflops']:.0%}",
            f"{row['eager_like_us_simulated']:,.0f}",
            f"{row['speedup_simulated']:,.1f}x",
        )
    screen = Screen()
    screen.show(table)
    kernels = {row["kernel"] for row in rows}
    chosen = kernels if len(kernels) == 1 else [f"{row['kernel']} on {row['chip']}" for row in rows]
    screen.say("", f"kernel: {', '.join(chosen)}")
    for row in rows:
        if row["extrapolated"]:
            known, asked = row["extrapolated"]
            screen.say(f"{row['chip']}: {known} of {asked} (batch, kv head) units scheduled, the others are alike")
    for row in rows:
        screen.say(band_of(row["kernel"], row["chip"]))
    screen.say(EAGER_NOTE)
    if more:
        screen.say("")
        screen.show(modelled_table(more, layers))


def _beside(jobs: list[dict[str, Any]], processes: int, work: Work) -> list[dict[str, Any]]:
    """The rows of chips that are modelled beside each other, in the order of the jobs."""
    rows = {}
    with Workers(processes) as workers:
        for number, answer in workers.run(jobs, _LIMIT_S):
            if "row" not in answer:
                raise RuntimeError(f"chip={jobs[number]['chip']} has no row: {answer.get('error', 'no answer')}.")
            rows[number] = answer["row"]
            work.advance(f"after {jobs[number]['chip']}", 2)
    return [rows[number] for number in range(len(jobs))]
