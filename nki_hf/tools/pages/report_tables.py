"""Tables of a report's page: engines, DMA, the working set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from nki_hf.observers.report import ESTIMATED, LONGER, gain_text
from nki_hf.observers.timing import WAITS
from nki_hf.tools.pages.shell import long_cell

__all__ = ["source_name", "table", "tables_sections"]

_DMA_COLUMNS = ("core", "transfers", "MiB", "GB/s", "of GB/s", "engines busy", "µs less if free")


_TILE_COLUMNS = ("tile", "memory", "line", "B a partition", "live at once", "total B", "of capacity")


def tables_sections(found: Mapping[str, Any], of: str) -> str:
    """The tables of the facts of observers/report.py; `of` is added to their titles. Empty where nothing ran."""
    if not found["instructions"]:
        return ""
    head = ["engine", "instructions", "active", *[f"waits: {wait}" for wait in WAITS], "idle", "µs less if free"]
    rows = [
        [
            _core(row, found, row["engine"]),
            f"{row['instructions']:,}",
            f"{row['active']:.1%}",
            *[f"{row['waiting'][wait]:.1%}" if row["waiting"][wait] else "" for wait in WAITS],
            f"{row['idle']:.1%}",
            gain_text(row),
        ]
        for row in found["engines"]
    ]
    dma = [
        [
            _core(row, found, "dma"),
            f"{row['transfers']:,}",
            f"{row['mib']:,.2f}",
            f"{row['gb_per_s']:,.1f}",
            f"{row['peak_gb_per_s']:,.0f}",
            f"{row['active']:.1%}",
            gain_text(row),
        ]
        for row in found["dma"]
    ]
    tiles: list[list[str]] = []
    for item in found["working_set"]:
        for tile in item["tiles"]:
            tiles.append(
                [
                    tile["name"],
                    _core(item, found, item["space"]),
                    source_name(tile["source"]),
                    f"{tile['bytes']:,}",
                    f"{tile['live']:,}",
                    f"{tile['total_bytes']:,}",
                    f"{tile['total_bytes'] / item['capacity_bytes']:.1%}",
                ]
            )
        high, capacity = item["high_water_bytes"], item["capacity_bytes"]
        tiles.append(
            ["all", _core(item, found, item["space"]), "", "", "", f"{high:,} of {capacity:,}", f"{high / capacity:.1%}"]
        )
    gains = (*found["engines"], *found["dma"])
    said = [LONGER] if any(row["gain_us"] < 0 for row in gains) else []
    said += [ESTIMATED] if any(row["gain_estimated"] for row in gains) else []
    longer = "".join(f'<p class="quiet small">{escape(text)}</p>' for text in said)
    achieved = f"{_capital(found['achieved'])}."
    return (
        f'<section><h2>Engines{of}, % of the time</h2><div class="wide">{table(head, rows)}</div>{longer}</section>'
        f"{_folded(f'DMA{of}', table(_DMA_COLUMNS, dma), achieved)}"
        f"{_folded(f'Working set{of} where each memory is fullest, before spills', table(_TILE_COLUMNS, tiles))}"
    )


def _folded(title: str, table: str, note: str = "") -> str:
    said = f'<p class="quiet small">{escape(note)}</p>' if note else ""
    return f'<section><details><summary><b>{title}</b></summary><div class="wide">{table}</div>{said}</details></section>'


def _core(row: Mapping[str, Any], found: Mapping[str, Any], name: str) -> str:
    cores = {item["core"] for item in found["engines"]}
    return f"{row['core']}: {name}" if len(cores) > 1 else name


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that a narrow screen shows as one block per row."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-name="{escape(name)}"{long_cell(cell)}>{escape(cell)}</td>' for name, cell in zip(head, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f'<table class="stack"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def source_name(source: str) -> str:
    """File and line without the folder."""
    return source.rsplit("/", 1)[-1]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
