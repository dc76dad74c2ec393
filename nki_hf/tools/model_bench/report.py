"""The text of a run: header, tables, verdict, where files went. Every table is one function of the record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from nki_hf.tools.bench import modelled_table
from nki_hf.tools.latency import EAGER_NOTE
from nki_hf.tools.model_bench.modelled import ModelledDecode
from nki_hf.tools.model_bench.published import published_lines
from nki_hf.tools.model_bench.record import BenchResult, Row
from nki_hf.tools.screen import Screen

__all__ = [
    "TABLES",
    "Column",
    "accuracy_table",
    "decode_table",
    "modelled_decode_table",
    "show",
    "table_rows",
    "time_table",
]


@dataclass(frozen=True)
class Column:
    """A column: its title with the unit, and the text of a row's cell."""

    title: str
    cell: Callable[[Row], str]


def show(result: BenchResult, screen: Screen, *, json: Path) -> None:
    """Print the record."""
    screen.pairs(list(result.header.items()))
    for make in TABLES:
        table = make(result)
        if table is not None:
            screen.say("")
            screen.show(table)
    screen.say("")
    for row in result.rows:
        if row.skipped:
            screen.say(f"{row.attn} skipped: {row.skipped}")
        if row.kernel_calls is not None:
            screen.say(f"{row.attn}: {row.kernel_calls:,} kernel calls, {row.fallbacks:,} fallbacks (strict)")
        if row.accuracy is not None and row.accuracy.remark:
            screen.say(f"{row.attn}: {row.accuracy.remark}")
    for entry in result.modelled:
        screen.say("")
        screen.show(modelled_table(list(entry.rows), entry.layers))
    for steps in result.modelled_decode:
        screen.say("")
        screen.show(modelled_decode_table(steps))
    if result.modelled:
        screen.say(EAGER_NOTE)
    screen.say(*published_lines(result.published, result.modelled))
    screen.say("", f"{'PASS' if result.passed else 'FAIL'}: {result.verdict}")
    screen.line(f"results: {json}")
    screen.line(f"repeat:  {result.command}")


def table_rows(result: BenchResult) -> list[tuple[str, Sequence[Column], list[Row]]]:
    """Title, columns and rows of each table that has something to say."""
    ran = [row for row in result.rows if row.timing is not None]
    decoded = [row for row in ran if row.decode is not None]
    tables = [
        ("forward pass", _TIME_COLUMNS, ran),
        ("prefill, then decode steps with a cache", _DECODE_COLUMNS, decoded),
        (f"last hidden state against {result.reference['what']}", _ACCURACY_COLUMNS, ran),
    ]
    return [table for table in tables if table[2]]


def time_table(result: BenchResult) -> Table | None:
    """Times of the forward pass."""
    return _table("forward pass", result.rows, _TIME_COLUMNS)


def decode_table(result: BenchResult) -> Table | None:
    """Times of prefill and decode with a cache, apart."""
    rows = [row for row in result.rows if row.decode is not None]
    return _table("prefill, then decode steps with a cache", rows, _DECODE_COLUMNS) if rows else None


def modelled_decode_table(steps: ModelledDecode) -> Table:
    """What a decode step costs on each chip, simulated."""
    layers = f"{steps.layers} layer{'' if steps.layers == 1 else 's'}"
    titles = ("chip", "cores", "kernel", "µs a layer (sim)", "of the bandwidth (sim)", f"tokens/s, attention of {layers} (sim)")
    bands = [f"error on measured rows: {row['band']}" for row in steps.rows if row.get("band")]
    table = Table(
        *titles,
        title="attention of a decode step on Trainium, simulated: no figure here was measured",
        caption="\n".join(bands),
    )
    for row in steps.rows:
        table.add_row(
            row["chip"],
            str(row["cores"]),
            row["kernel"],
            f"{row['us_simulated']:,.1f}",
            f"{row['bandwidth_share_simulated']:.0%}",
            f"{row['tokens_per_s_simulated']:,.0f}",
        )
    return table


def accuracy_table(result: BenchResult) -> Table | None:
    """Errors against the reference."""
    return _table(f"last hidden state against {result.reference['what']}", result.rows, _ACCURACY_COLUMNS)


TABLES: tuple[Callable[[BenchResult], Table | None], ...] = (time_table, decode_table, accuracy_table)
"""The tables in the order of printing; one that has nothing to say returns None."""


def _table(title: str, rows: Sequence[Row], columns: Sequence[Column]) -> Table | None:
    shown = [row for row in rows if row.timing is not None]
    if not shown:
        return None
    table = Table(title=title)
    for number, column in enumerate(columns):
        table.add_column(column.title, justify="left" if number == 0 else "right", no_wrap=True)
    for row in shown:
        table.add_row(*(column.cell(row) for column in columns))
    return table


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None or value != value else f"{value:,.{digits}f}"


def _small(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.2e}"


def _of(path: str, form: Callable[[Any], str] = _number) -> Callable[[Row], str]:
    """Cell text from an attribute path such as `timing.mean_s`; `-` where a part is None."""

    def cell(row: Row) -> str:
        value: Any = row
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        return "-" if value is None else form(value)

    return cell


def _times(value: float) -> str:
    return f"{value:.2f}x"


def _mebibytes(value: int) -> str:
    return f"{value / 2**20:,.0f}"


def _place(row: tuple[int, int]) -> str:
    return f"{row[0]}:{row[1]:,}"


def _mark(value: bool) -> str:
    return "✓" if value else "✗"


_ATTN = Column("attn", lambda row: row.attn)

_TIME_COLUMNS = (
    _ATTN,
    Column("compile s", _of("timing.compile_s")),
    Column("mean s", _of("timing.mean_s")),
    Column("median s", _of("timing.median_s")),
    Column("min s", _of("timing.min_s")),
    Column("max s", _of("timing.max_s")),
    Column("prompts /s", _of("prompts_per_s")),
    Column("tokens /s", _of("tokens_per_s", lambda value: _number(value, 0))),
    Column("vs eager", _of("speed_against_eager", _times)),
    Column("peak MiB", _of("timing.peak_bytes", _mebibytes)),
)

_DECODE_COLUMNS = (
    _ATTN,
    Column("prefill compile s", _of("decode.prefill.compile_s")),
    Column("prefill mean s", _of("decode.prefill.mean_s")),
    Column("step compile s", _of("decode.step.compile_s")),
    Column("step mean s", _of("decode.step.mean_s")),
    Column("median s", _of("decode.step.median_s")),
    Column("min s", _of("decode.step.min_s")),
    Column("max s", _of("decode.step.max_s")),
    Column("tokens /s", _of("decode.tokens_per_s", lambda value: _number(value, 1))),
    Column("kernel", lambda row: ", ".join(sorted({ran.kernel for ran in row.ran if ran.phase == "decode"})) or "-"),
    Column("RMS /eager", _of("decode.accuracy.rms_ratio")),
    Column("ok", _of("decode.accuracy.passed", _mark)),
)

_ACCURACY_COLUMNS = (
    _ATTN,
    Column("MSE", _of("accuracy.mse", _small)),
    Column("cosine", _of("accuracy.cosine", lambda value: _number(value, 6))),
    Column("max abs", _of("accuracy.max_abs", _small)),
    Column("worst row", _of("accuracy.worst_row", _place)),
    Column("its RMS /eager's", _of("accuracy.worst_row_ratio")),
    Column("RMS", _of("accuracy.rms_error", _small)),
    Column("RMS /eager", _of("accuracy.rms_ratio")),
    Column("ok", _of("accuracy.passed", _mark)),
)
