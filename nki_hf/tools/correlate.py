"""`nki_hf correlate`: simulated against measured latencies of every calibration subject, and the fit of what is fitted."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from nki_hf.chips import Chip, get_chip
from nki_hf.chips.measurements import MEASUREMENTS, Measurement
from nki_hf.timing.schedule import DEFAULT_WINDOW, schedule
from nki_hf.tools.output_files import check_writable, whole_file, writing
from nki_hf.tools.subjects import events_of

__all__ = ["ORDERS", "Row", "command", "fit", "markdown", "run", "summary"]

ORDERS: tuple[int | None, ...] = (None, 16, DEFAULT_WINDOW, 256)
"""Instruction orders that are compared: program order, and windows of a reordering compiler."""

FITTED = ("kernel_fixed_ns", "tensor_fp32_weight_load_cycles")
"""What is fitted on trn1: no document or measurement gives either of them."""

_NO_FLOAT32_MATMUL = ("v7", "v8", "v11")
"""Kernels that do not depend on the second of them, so that the fit need not run them again for each of its values."""

_CLOSE = 0.03
"""Measurements closer than this do not count in the rank order."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement beside the model's answer.

    Attributes:
      measurement: the published row.
      simulated_us: the model's latency by order, `program` or `window(n)`.
      fitted: the row took part in a fit.
    """

    measurement: Measurement
    simulated_us: dict[str, float]
    fitted: bool

    def error(self, order: str) -> float:
        """(simulated - measured) / measured."""
        return self.simulated_us[order] / self.measurement.us - 1


def order_name(window: int | None) -> str:
    """`program` or `window(n)`."""
    return "program" if window is None else f"window({window})"


DEFAULT_ORDER = order_name(DEFAULT_WINDOW)


def run(
    measurements: Sequence[Measurement] = MEASUREMENTS, orders: Sequence[int | None] = ORDERS, progress: Any = None
) -> list[Row]:
    """A row per measurement, in the given order."""
    rows = []
    for item in measurements:
        chip = get_chip(item.chip)
        simulated = {order_name(window): _us(item.subject, item.size, chip, window) for window in orders}
        rows.append(Row(measurement=item, simulated_us=simulated, fitted=_is_fitted(item)))
        if progress is not None:
            progress(rows[-1])
    return rows


def summary(rows: Sequence[Row], order: str = DEFAULT_ORDER) -> dict[str, Any]:
    """Mean, median and worst absolute error, and the pairs of one length that the model ranks wrongly."""
    errors = {f"{row.measurement.subject} {row.measurement.size}": row.error(order) for row in rows}
    sizes = [abs(error) for error in errors.values()]
    worst = max(errors, key=lambda name: abs(errors[name]))
    return {
        "order": order, "rows": len(rows), "mean": statistics.mean(sizes), "median": statistics.median(sizes),
        "worst": abs(errors[worst]), "worst_row": worst, "misranked": _misranked(rows, order),
    }  # fmt: skip


def _misranked(rows: Sequence[Row], order: str) -> list[str]:
    """Pairs of the ladder whose order at one length differs, measurements closer than 3 % ignored."""
    wrong = []
    for a, b in combinations([row for row in rows if row.measurement.subject.startswith("v")], 2):
        left, right = a.measurement, b.measurement
        if left.size != right.size or abs(left.us - right.us) <= _CLOSE * max(left.us, right.us):
            continue
        if (left.us < right.us) != (a.simulated_us[order] < b.simulated_us[order]):
            wrong.append(f"{left.subject} and {right.subject} at {left.size}")
    return wrong


# ---- fit ------------------------------------------------------------------------------------------------------------


def _is_fitted(item: Measurement) -> bool:
    return item.chip == "trn1" and item.subject.startswith("v") and item.subject != "v3" and (
        item.size == 512 or item.subject in ("v5", "v6")
    )  # fmt: skip


FIXED_NS = tuple(range(3000, 12001, 500))
WEIGHT_CYCLES = (0, 32, 64, 96, 128, 160)
"""What the fit searches, in the order of `FITTED`."""


def fit(measurements: Sequence[Measurement] = MEASUREMENTS) -> dict[str, Any]:
    """The fit of `FITTED` on trn1, by search for the smallest mean absolute error over its rows.

    Rows: the ladder's of 512 keys (where the fixed cost weighs most), and all of v5 and v6 (bound by float32 matmuls). Of
    equally good values the smaller fixed cost, then the fewer cycles are taken.

    Returns:
      `values` with all rows, and per left-out kernel the values without it and its own errors (`left_out`).
    """
    rows = [item for item in measurements if _is_fitted(item)]
    everything = [item for item in measurements if item.chip == "trn1"]
    base = get_chip("trn1")

    @functools.cache
    def variable_us(item: Measurement, cycles: float) -> float:
        """Latency without the fixed cost."""
        chip = _with(base, kernel_fixed_ns=0.0, tensor_fp32_weight_load_cycles=cycles)
        return _us(item.subject, item.size, chip, DEFAULT_WINDOW)

    def simulated(item: Measurement, values: tuple[float, float]) -> float:
        cycles = WEIGHT_CYCLES[0] if item.subject in _NO_FLOAT32_MATMUL else values[1]
        return variable_us(item, cycles) + values[0] / 1e3

    def best(chosen: Sequence[Measurement]) -> tuple[float, float]:
        grid = [(fixed, cycles) for fixed in FIXED_NS for cycles in WEIGHT_CYCLES]
        return min(grid, key=lambda values: statistics.mean(abs(simulated(m, values) / m.us - 1) for m in chosen))

    left_out = {}
    for name in dict.fromkeys(item.subject for item in everything):
        values = best([item for item in rows if item.subject != name])
        errors = {item.size: simulated(item, values) / item.us - 1 for item in everything if item.subject == name}
        left_out[name] = {"values": dict(zip(FITTED, values, strict=True)), "errors": errors}
    return {"values": dict(zip(FITTED, best(rows), strict=True)), "rows": len(rows), "left_out": left_out}


def _with(chip: Chip, **values: float) -> Chip:
    params = {**chip.params, **{name: replace(chip.params[name], value=value) for name, value in values.items()}}
    return replace(chip, params=params)


def _us(name: str, size: int, chip: Chip, window: int | None) -> float:
    return schedule(events_of(name, size, get_chip(chip.name)), chip, window=window).total_ns / 1e3


# ---- rendering ------------------------------------------------------------------------------------------------------


def markdown(rows: Sequence[Row], fitted: dict[str, Any]) -> str:
    """The page docs/correlation.md."""
    orders = list(rows[0].simulated_us)
    lines = [
        "# Simulated against measured",
        "",
        "Written by `nki_hf correlate --fit --write docs/correlation.md`; do not edit. Measured columns are published",
        "latencies, simulated ones come from this package's timing model; errors are simulated / measured - 1. Rows marked",
        "\\* took part in the fit of the constants named below, so their agreement is no evidence. Rows marked † were known,",
        "or belong to a profile that was known, when a constant or a rule was chosen by hand (listed under Notes): their",
        "agreement is weak evidence. No row is free of both. Sources: `nki_hf/chips/measurements.py`.",
        "",
        "| kernel | size | chip | measured µs | simulated µs, default | error | "
        + " | ".join(f"error, {o}" for o in orders)
        + " |",
        "|---|---:|---|---:|---:|---:|" + "---:|" * len(orders),
    ]
    for row in rows:
        item = row.measurement
        lines.append(
            f"| {item.subject}{_mark(row)} | {item.size:,} | {item.chip} | {item.us:,.0f} | "
            f"{row.simulated_us[DEFAULT_ORDER]:,.0f} | {row.error(DEFAULT_ORDER):+.1%} | "
            + " | ".join(f"{row.error(order):+.1%}" for order in orders) + " |"
        )  # fmt: skip
    attention = [row for row in rows if row.measurement.group == "attention"]
    unfitted = [row for row in attention if not row.fitted]
    lines += [
        "",
        "## Attention rows by instruction order",
        "",
        "| order | rows | mean | median | worst | ranked wrongly |",
        "|---|---|---:|---:|---:|---|",
    ]
    for label, chosen in (("all", attention), ("not in the fit", unfitted)):
        for order in orders:
            found = summary(chosen, order)
            default = " (default)" if order == DEFAULT_ORDER else ""
            wrong = ", ".join(found["misranked"]) or "none"
            lines.append(
                f"| {order}{default} | {label}, {found['rows']} | {found['mean']:.1%} | {found['median']:.1%} | "
                f"{found['worst']:.1%} ({found['worst_row']}) | {wrong} |"
            )
    lines += ["", "## Fitted constants, and each kernel predicted without its own rows", ""]
    lines += [f"On trn1 `{name}` = {value:g}." for name, value in fitted["values"].items()]
    lines += ["", f"| kernel left out | {' | '.join(FITTED)} | its errors by size |", "|---|---:|---:|---|"]
    for name, found in fitted["left_out"].items():
        values = " | ".join(f"{found['values'][key]:g}" for key in FITTED)
        lines.append(f"| {name} | {values} | {', '.join(f'{size}: {error:+.1%}' for size, error in found['errors'].items())} |")
    notes = [f"* {item.subject} {item.size:,}: {item.note}." for item in MEASUREMENTS if item.note]
    for informed in dict.fromkeys(item.informed for item in MEASUREMENTS if item.informed):
        named = dict.fromkeys(item.subject for item in MEASUREMENTS if item.informed == informed)
        notes.append(f"* † {', '.join(named)} were known when these were chosen: {informed}.")
    return "\n".join([*lines, "", "## Notes", "", *notes, ""])


def _mark(row: Row) -> str:
    return (" \\*" if row.fitted else "") + (" †" if row.measurement.informed else "")


def command(
    fit_constants: Annotated[
        bool, typer.Option("--fit", help="Also fit the fitted constants and leave one kernel out.")
    ] = False,
    write: Annotated[Path | None, typer.Option(help="Write the documentation page (implies --fit).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Attention rows up to 2,048 keys only, default order only.")] = False,
) -> None:
    """Compare simulated with measured latencies: an error table and its summary; --fit adds the leave-one-out errors."""
    if write is not None:
        check_writable(write)
        if quick:
            raise ValueError("quick and write exclude each other: the page is written from all rows.")
    chosen = [item for item in MEASUREMENTS if not quick or (item.group == "attention" and item.size <= 2048)]
    noisy = Console(stderr=True)
    rows = run(chosen, (DEFAULT_WINDOW,) if quick else ORDERS,
               progress=lambda row: noisy.print(f"{row.measurement.subject} {row.measurement.size}", style="dim"))  # fmt: skip
    fitted = fit() if fit_constants or write is not None else None
    if write is not None and fitted is not None:
        with writing(write), whole_file(write) as file:
            file.write(markdown(rows, fitted).encode())
    attention = [row for row in rows if row.measurement.group == "attention"]
    orders = list(rows[0].simulated_us)
    if as_json:
        body = [{**vars_of(row.measurement), "simulated_us": row.simulated_us, "fitted": row.fitted} for row in rows]
        print(json.dumps({"rows": body, "summary": [summary(attention, order) for order in orders], "fit": fitted}, indent=1))
        return
    table = Table(Column("kernel", no_wrap=True), "size", "chip", "measured µs", "simulated µs",
                  *[f"error, {order}" for order in orders],
                  title="simulated latencies against published measurements (* fitted row)")  # fmt: skip
    for row in rows:
        item = row.measurement
        table.add_row(f"{item.subject}{'*' if row.fitted else ''}", f"{item.size:,}", item.chip, f"{item.us:,.0f}",
                      f"{row.simulated_us[DEFAULT_ORDER]:,.0f}", *[f"{row.error(order):+.1%}" for order in orders])  # fmt: skip
    console = Console(width=140)
    console.print(table)
    for order in orders:
        found = summary(attention, order)
        console.print(
            f"{order}: {found['rows']} attention rows, mean {found['mean']:.1%}, median {found['median']:.1%}, worst "
            f"{found['worst']:.1%} ({found['worst_row']}); ranked wrongly: {', '.join(found['misranked']) or 'none'}"
        )
    if fitted is not None:
        console.print(f"fit on trn1: {fitted['values']}")
        for name, one in fitted["left_out"].items():
            errors = ", ".join(f"{size}: {error:+.1%}" for size, error in one["errors"].items())
            console.print(f"  without {name}: {one['values']} -> its errors {errors}")
    if write is not None:
        console.print(f"wrote {write}; again: nki_hf correlate --fit --write {write}")


def vars_of(item: Measurement) -> dict[str, Any]:
    """The measurement as plain JSON types."""
    return {name: getattr(item, name) for name in ("subject", "size", "chip", "us", "source", "note", "group")}
