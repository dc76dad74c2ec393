"""`nki_hf bench`: the simulated latency of one attention call on each chip, ours beside the eager-like rung."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.table import Table

from nki_hf.chips import CHIPS, Chip, get_chip
from nki_hf.chips.measurements import error_band
from nki_hf.dispatch import decide
from nki_hf.errors import Reason, UnsupportedProblem
from nki_hf.problem import Problem
from nki_hf.tools.cores import check_cores
from nki_hf.tools.error_bands import band_of, family_of
from nki_hf.tools.judging.timetable import command as kernel_command
from nki_hf.tools.latency import EAGER_NOTE, attention_us, eager_like_us, independent_units, one_unit
from nki_hf.tools.lengths import attention_instructions, check_length
from nki_hf.tools.modelled import FILE_HELP, LAYOUT_HELP, TASK_HELP, visible_flops, window_of
from nki_hf.tools.option_values import constant_of, sizes_of
from nki_hf.tools.progress import working
from nki_hf.tools.screen import Screen
from nki_hf.tools.shape import SHAPE_HELP, problem_of
from nki_hf.tools.subjects import attention_kernels

__all__ = ["check_shape_length", "command", "modelled_rows", "modelled_table", "run"]

_MOST_LAYERS = 1_000_000


def run(
    problem: Problem,
    chips: tuple[str, ...] = tuple(CHIPS),
    *,
    window: int | None,
    lnc: int | None = None,
    budget: int = 300_000,
    progress: Callable[[], None] | None = None,
) -> list[dict[str, Any]]:
    """A row per chip: simulated µs of the kernel that dispatch picks and of the eager-like rung, TFLOP/s on visible keys, how
    they were found, and the error band of its kernel's family.

    Args:
      problem: the call.
      chips: their names.
      window: order option of the schedule.
      lnc: cores; None = each chip's default.
      budget: instructions per core up to which every head is scheduled (see `latency.attention_us`).
      progress: called after each of the two kernels of each chip.

    Raises:
      UnsupportedProblem: no kernel takes the problem on one of the chips.
    """
    rows = []
    for name in chips:
        chip = get_chip(name)
        cores = chip.default_lnc if lnc is None else lnc
        decision = decide(problem, backend="simulator", chip=name, lnc=cores)
        if decision.plan is None:
            raise UnsupportedProblem(decision.rejected)
        ours = attention_us(problem, chip, cores, window=window, budget=budget, kernel=decision.kernel)
        if progress is not None:
            progress()
        eager = eager_like_us(problem, chip, cores)
        if progress is not None:
            progress()
        rows.append({
            "chip": name, "cores": cores, "kernel": decision.kernel, "nki_us_simulated": ours.us,
            "eager_like_us_simulated": eager,
            "speedup_simulated": eager / ours.us, "visible_tflops_simulated": visible_flops(problem) / ours.us / 1e6,
            "peak_tflops": cores * chip.tensor_peak_tflops, "extrapolated": ours.extrapolated,
            "instructions": ours.instructions, "band": error_band(family_of(decision.kernel), name),
        })  # fmt: skip
    return rows


def modelled_rows(
    problem: Problem,
    layers: int,
    *,
    window: int | None = 64,
    chips: tuple[str, ...] = tuple(CHIPS),
    lnc: int | None = None,
    prompts: int | None = None,
    budget: int = 60_000,
) -> list[dict[str, Any]]:
    """`run` plus what a model of `layers` such calls would spend on attention, and the prompts/s that alone would allow.

    Args:
      problem: the attention call of one layer for one batch of prompts.
      layers: attention layers of the model.
      window, chips, lnc, budget: as in `run`; the default budget is for tables beside other work.
      prompts: prompts per batch; default is the problem's batch.
    """
    rows = run(problem, chips, window=window, lnc=lnc, budget=budget)
    count = problem.batch if prompts is None else prompts
    for row in rows:
        for kind in ("nki", "eager_like"):
            seconds = layers * row[f"{kind}_us_simulated"] / 1e6
            row[f"{kind}_model_ms_simulated"] = seconds * 1e3
            row[f"{kind}_prompts_per_s_simulated"] = count / seconds
    return rows


def modelled_table(rows: list[dict[str, Any]], layers: int) -> Table:
    """The rows of `modelled_rows` as a table that holds simulated figures only."""
    table = Table("chip", "cores", "kernel", "µs a layer (sim)", f"ms, {layers} layer{'' if layers == 1 else 's'} (sim)",
                  "prompts/s, attention alone (sim)",
                  title="attention on Trainium, simulated: no figure here was measured",
                  caption="\n".join(f"error on measured rows: {row['band']}" for row in rows))  # fmt: skip
    for row in rows:
        for kind, label in (("nki", f"nki {row['kernel']}"), ("eager_like", "eager-like (ladder v3)")):
            table.add_row(row["chip"], str(row["cores"]), label, f"{row[f'{kind}_us_simulated']:,.0f}",
                          f"{row[f'{kind}_model_ms_simulated']:,.2f}",
                          f"{row[f'{kind}_prompts_per_s_simulated']:,.1f}")  # fmt: skip
    return table


def check_shape_length(problem: Problem, chip: Chip, lnc: int | None) -> None:
    """Refuse what is too long for every kernel: even one of its units, or all of them where none stands for the others."""
    cores = chip.default_lnc if lnc is None else lnc
    counts: list[tuple[int, bool]] = []
    refused: list[Reason] = []
    for kernel in attention_kernels():
        alike = independent_units(problem, cores, kernel)
        try:
            counts.append((attention_instructions(one_unit(problem, kernel) if alike else problem, chip, kernel), alike))
        except UnsupportedProblem as error:
            refused.extend(error.reasons)
    if not counts:
        raise UnsupportedProblem(refused)
    count, alike = min(counts)
    what = "one (batch, kv head) unit of the shape" if alike else f"the shape on {cores} core{'s' if cores > 1 else ''}"
    uneven = "" if alike or not problem.batch * problem.num_heads_kv % cores else f", or b x hkv as a multiple of {cores}"
    check_length(count, what, f"give smaller sizes{uneven}")


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
            kernel_file, task, sizes_of(at, "at"), chips, lnc=1 if lnc is None else lnc, layout=layout,
            constants=dict(map(constant_of, const)), window=window_of(order), as_json=as_json,
        )  # fmt: skip
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
    for name in chips:
        check_shape_length(problem, get_chip(name), lnc)
    with working(f"nki_hf bench of {shape}", 2 * len(chips)) as work:
        rows = run(problem, chips, window=window_of(order), lnc=lnc, progress=work.advance)
        more = modelled_rows(problem, layers, window=window_of(order), chips=chips) if layers > 1 and not as_json else []
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("chip", "cores", "nki µs (sim)", "TFLOP/s (sim)", "of peak", "eager-like µs (sim)", "speed-up (sim)",
                  title=f"{shape}: simulated, not measured; TFLOP/s on visible keys")  # fmt: skip
    for row in rows:
        table.add_row(row["chip"], str(row["cores"]), f"{row['nki_us_simulated']:,.1f}",
                      f"{row['visible_tflops_simulated']:,.1f}",
                      f"{row['visible_tflops_simulated'] / row['peak_tflops']:.0%}", f"{row['eager_like_us_simulated']:,.0f}",
                      f"{row['speedup_simulated']:,.1f}x")  # fmt: skip
    screen = Screen()
    screen.show(table)
    screen.say("")
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
