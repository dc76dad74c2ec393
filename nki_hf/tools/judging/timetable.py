"""The simulated latency of a kernel file at several sizes on several chips, as a table or JSON (`nki_hf bench FILE.py`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from nki_hf.chips import get_chip
from nki_hf.tools.cores import check_cores
from nki_hf.tools.judging.line_words import line_words
from nki_hf.tools.judging.overflows import overflow_warnings
from nki_hf.tools.judging.programs import UNCHECKED, failing, launched, recorded
from nki_hf.tools.judging.request import split
from nki_hf.tools.judging.times import sentence, timed
from nki_hf.tools.progress import working
from nki_hf.tools.screen import Screen

__all__ = ["command", "rows"]


def rows(
    path: str,
    task: str,
    sizes: Sequence[int],
    chips: Sequence[str],
    *,
    lnc: int,
    layout: str = "",
    constants: Mapping[str, Any] | None = None,
    window: int | None,
) -> list[dict[str, Any]]:
    """One row of a record's `times` per size and chip; arguments and errors as `recorded`."""
    made = [get_chip(name) for name in chips]
    check_cores(lnc, chips)
    found = recorded(path, task, sizes, made, lnc=lnc, layout=layout, constants=constants)
    times = []
    for asked, played in zip(found.launches, found.played, strict=True):
        made_of = launched(found, asked, played)
        chip = get_chip(asked["chip"])
        with failing():
            row = timed(found.task, asked, played, chip, lnc, dtype=found.dtype, window=window, launched=made_of)
        times.append({**row, "sentence": sentence(row, found.file), "kernel": found.kernel, "task": found.task.name})
    return times


def command(
    path: str,
    task: str,
    sizes: Sequence[int],
    chips: Sequence[str],
    *,
    lnc: int,
    layout: str,
    constants: Mapping[str, Any],
    window: int | None,
    as_json: bool,
) -> None:
    """Print the rows."""
    with working(f"nki_hf bench of {path} on {task}"):
        found = rows(path, task, sizes, chips, lnc=lnc, layout=layout, constants=constants, window=window)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    table = Table(
        "size",
        "chip",
        "cores",
        "µs (sim)",
        "no kernel below µs (sim)",
        "of that",
        "active longest",
        "gain if free, µs (sim)",
        title=f"{found[0]['kernel']} on {task}: simulated, not measured",
    )
    file, _ = split(path, "")
    for row in found:
        at = row["bottleneck"] or {"engine": "", "file": "", "line": 0, "gain_us": 0.0}
        table.add_row(
            f"{row['size']:,}",
            row["chip"],
            str(lnc),
            f"{row['us']:,.1f}",
            f"{row['least_us']:,.1f}",
            f"{row['score']:.0%}",
            f"{at['engine']}, {line_words(file, at['file'], at['line'])}",
            f"{at['gain_us']:,.1f}",
        )
    screen = Screen()
    screen.show(table)
    for band in dict.fromkeys(row["band"] for row in found):
        screen.say(f"error on measured rows: {band}")
    for words in overflow_warnings(found):
        screen.say(words)
    screen.say(UNCHECKED)
