"""`nki_hf correlate`: simulated against measured latencies in three sets, what each law does, and the fit of what is fitted.

A user's own rows from a device are a fourth set: `--measured FILE` (tools/measured.py).
"""

from __future__ import annotations

import functools
import json
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from nki_hf.chips import Chip, get_chip
from nki_hf.chips.laws import without
from nki_hf.chips.measurements import FAMILIES, MEASUREMENTS, STANDINGS, Measurement
from nki_hf.tools.correlation_page import markdown
from nki_hf.tools.correlation_rows import DEFAULT_ORDER, run, scheduled_us, store, stored, summary
from nki_hf.tools.measured import compared, read_rows
from nki_hf.tools.output_files import check_writable, whole_file, writing
from nki_hf.tools.progress import working
from nki_hf.tools.screen import Screen
from nki_hf.tools.subjects import events_of

__all__ = ["FITTED", "command", "fit"]

FITTED = ("kernel_fixed_ns", "tensor_fp32_weight_load_cycles")
"""What is fitted on trn1: no document or measurement gives either of them."""

_NO_FLOAT32_MATMUL = ("v7", "v8", "v11")
"""Kernels that do not depend on the second of them, so that the fit need not run them again for each of its values."""

FIXED_NS = tuple(range(3000, 12001, 500))
WEIGHT_CYCLES = (0, 32, 64, 96, 128, 160)
"""What the fit searches, in the order of `FITTED`."""


def fit(measurements: Sequence[Measurement] = MEASUREMENTS) -> dict[str, float]:
    """The fit of `FITTED` on trn1, by search for the smallest mean absolute error over the rows that are marked as fitted.

    They are the ladder's of 512 keys (where the fixed cost weighs most), and all of v5 and v6 up to 4,096 (bound by float32
    matmuls). Of equally good values the smaller fixed cost, then the fewer cycles are taken. There is no leave-one-out study:
    nearly all of the model was chosen by hand with every row in sight, which leaving out two constants' rows does not undo.
    """
    rows = [item for item in measurements if item.standing == "fitted"]
    base = get_chip("trn1")

    @functools.cache
    def variable_us(item: Measurement, cycles: float) -> float:
        """Latency without the fixed cost."""
        chip = _with(base, kernel_fixed_ns=0.0, tensor_fp32_weight_load_cycles=cycles)
        return scheduled_us(events_of(item.subject, item.size, base), chip)

    def error(item: Measurement, values: tuple[float, float]) -> float:
        cycles = WEIGHT_CYCLES[0] if item.subject in _NO_FLOAT32_MATMUL else values[1]
        return abs((variable_us(item, cycles) + values[0] / 1e3) / item.us - 1)

    grid = [(fixed, cycles) for fixed in FIXED_NS for cycles in WEIGHT_CYCLES]
    best = min(grid, key=lambda values: statistics.mean(error(item, values) for item in rows))
    return dict(zip(FITTED, best, strict=True))


def _with(chip: Chip, **values: float) -> Chip:
    params = {**chip.params, **{name: replace(chip.params[name], value=value) for name, value in values.items()}}
    return replace(chip, params=params)


def command(
    fit_constants: Annotated[bool, typer.Option("--fit", help="Also fit the fitted constants.")] = False,
    write: Annotated[Path | None, typer.Option(help="Write the documentation page and the rows it shows.")] = None,
    measured: Annotated[
        Path | None, typer.Option(help="A CSV file of your own measurements: chip,kernel,shape,us,versions.")
    ] = None,
    off: Annotated[list[str] | None, typer.Option("--without", help="Switch a law off, by name; may be repeated.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Attention rows up to 2,048 keys only.")] = False,
) -> None:
    """Compare simulated with measured latencies: published rows in three sets, or a file of your own."""
    if write is not None:
        check_writable(write)
        if quick or off or measured is not None:
            raise ValueError("write excludes quick, without and measured: the page is written from all rows and laws.")
    if measured is not None:
        if fit_constants or quick:
            raise ValueError("measured excludes fit and quick: they are about the published rows.")
        own = read_rows(measured)
        with working(f"nki_hf correlate, {len(own)} rows of {measured.name}"):
            rows = compared(own, off or ())
        _show_own(rows, as_json, off or ())
        return
    chosen = [item for item in MEASUREMENTS if not quick or (item.family == "attention" and item.size <= 2048)]
    if off:
        for name in off:
            without(get_chip("trn2"), name)  # an unknown one is refused before anything runs
    with working("nki_hf correlate", len(chosen)) as work:
        found = run(
            chosen,
            program=write is not None,
            laws=write is not None,
            progress=lambda row: work.advance(f"after {row.measurement.subject} {row.measurement.size}"),
        )
    if off:
        found = [
            replace(row, us=scheduled_us(events_of(m.subject, m.size, get_chip(m.chip)), without(get_chip(m.chip), *off)))
            for row in found
            for m in (row.measurement,)
        ]
    fitted = None
    if fit_constants or write is not None:
        with working("nki_hf correlate, the fit on trn1"):
            fitted = fit()
    if write is not None and fitted is not None:
        store(found)
        with writing(write), whole_file(write) as file:
            file.write(markdown(stored(), fitted).encode())
    shown = [*found, *(row for row in stored(chosen) if row.measurement.public and not off)]
    sets = [(name, [row for row in shown if row.measurement.standing == name]) for name in STANDINGS]
    if as_json:
        body = [{**vars_of(row.measurement), "simulated_us": row.us, "error": row.error} for row in shown]
        print(json.dumps({"rows": body, "summary": {n: summary(rows) for n, rows in sets if rows}, "fit": fitted}, indent=1))
        return
    table = Table(
        Column("kernel", no_wrap=True),
        "size",
        "chip",
        "set",
        "measured µs",
        "simulated µs",
        "error",
        "first",
        title=f"simulated latencies ({DEFAULT_ORDER}{_left_out(off)}) against published measurements",
    )
    for row in shown:
        m = row.measurement
        table.add_row(
            m.subject,
            f"{m.size:,}",
            m.chip,
            m.standing,
            f"{m.us:,.0f}",
            f"{row.us:,.0f}",
            f"{row.error:+.1%}",
            "" if m.first_error is None else f"{m.first_error:+.0%}",
        )
    screen = Screen()
    screen.show(table)
    screen.say("")
    if off:
        screen.say("rows of public kernels are not run here: docs/correlation.md has them without each law")
    for family in FAMILIES:
        for chip in sorted({row.measurement.chip for row in shown if row.measurement.family == family}):
            of_family = [row for row in shown if (row.measurement.family, row.measurement.chip) == (family, chip)]
            screen.say(
                f"{family}, {chip}: {len(of_family)} rows, median {summary(of_family)['median']:.1%}, "
                f"{min(row.error for row in of_family):+.0%} .. {max(row.error for row in of_family):+.0%}"
            )
    for name, rows_of in sets:
        if rows_of:
            one = summary(rows_of)
            screen.say(
                f"{name}: {one['rows']} rows, median {one['median']:.1%}, worst {one['worst']:+.1%} ({one['worst_row']}); "
                f"ranked wrongly: {', '.join(one['misranked']) or 'none'}"
            )
    if fitted is not None:
        screen.say(f"fit on trn1: {fitted}")
    if write is not None:
        screen.line(f"wrote {write}; again: nki_hf correlate --write {shlex.quote(str(write))}")


def _left_out(off: Sequence[str] | None) -> str:
    return f", without {', '.join(off)}" if off else ""


def _show_own(rows: Sequence[dict[str, Any]], as_json: bool, off: Sequence[str]) -> None:
    """Print a user's own rows beside the model's times."""
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(
        "chip",
        "kernel",
        "shape",
        "versions",
        "measured µs",
        "simulated µs",
        "error",
        "published rows' band",
        title=f"your measurements beside simulated times{_left_out(off)}",
    )
    for row in rows:
        table.add_row(
            row["chip"],
            row["kernel"],
            row["shape"],
            row["versions"],
            f"{row['us']:,.1f}",
            f"{row['simulated_us']:,.1f}",
            f"{row['error']:+.1%}",
            row["band"],
        )
    screen = Screen()
    screen.show(table)
    errors = sorted((row["error"] for row in rows), key=abs)
    median = statistics.median(abs(error) for error in errors)
    screen.say("", f"own rows: {len(rows)}, median {median:.1%}, worst {errors[-1]:+.1%}")


def vars_of(item: Measurement) -> dict[str, Any]:
    """The measurement as plain JSON types."""
    names = ("subject", "size", "shape", "chip", "us", "source", "note", "family", "standing", "first_error")
    return {name: getattr(item, name) for name in names}
