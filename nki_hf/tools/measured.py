"""A user's own measurements: rows of a CSV file beside what the model says of the same kernel, shape and chip.

Columns, in any order, named in the first line: `chip` (trn1, trn2, trn3), `kernel` (one of ours, e.g. flash_prefill, or a
subject of the ladder), `shape` (for our kernels as `nki_hf bench --shape` takes it, with `lnc=2` for two cores; for a subject
its size), `us` (microseconds on the device, without the host) and, optional, `versions` (any text).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nki_hf.chips import get_chip
from nki_hf.chips.laws import without
from nki_hf.chips.measurements import error_band
from nki_hf.timing.schedule import schedule
from nki_hf.tools.error_bands import family_of
from nki_hf.tools.input_files import check_regular
from nki_hf.tools.latency import attention_us
from nki_hf.tools.shape import problem_of
from nki_hf.tools.subjects import attention_kernels, events_of

__all__ = ["compared", "read_rows"]

_COLUMNS = ("chip", "kernel", "shape", "us")


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, checked.

    Raises:
      ValueError: it cannot be read, lacks a column, has no rows, or a row's chip or time is none; the message says which.
    """
    try:
        check_regular(path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeError, csv.Error) as error:
        raise ValueError(f"measured={path} cannot be read: {error}.") from None
    if not lines:
        raise ValueError(f"measured={path} has no rows: give a line of column names ({', '.join(_COLUMNS)}) and one per row.")
    missing = [name for name in _COLUMNS if name not in lines[0]]
    if missing:
        raise ValueError(f"measured={path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}.")
    rows = []
    for number, line in enumerate(lines, 2):
        row = {name: (line.get(name) or "").strip() for name in (*_COLUMNS, "versions")}
        try:
            us = float(row["us"])
            get_chip(row["chip"])
        except ValueError as error:
            raise ValueError(f"measured={path}, line {number}: {error}") from None
        if not (math.isfinite(us) and us > 0):
            raise ValueError(f"measured={path}, line {number}: us={row['us']} is no time: it is a number above 0.")
        rows.append(row)
    return rows


def compared(rows: Sequence[dict[str, str]], off: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Each row with `simulated_us`, `error` and the `band` of its family's published rows, laws of names in `off` left out.

    Raises:
      ValueError, UnsupportedProblem: a kernel, a shape or a law is not known, or the kernel does not take the shape.
    """
    found = []
    for row in rows:
        chip = without(get_chip(row["chip"]), *off)
        if row["kernel"] in attention_kernels():
            words = [word.strip() for word in row["shape"].split(",")]
            lnc = 2 if "lnc=2" in words else 1
            problem = problem_of(",".join(word for word in words if word not in ("lnc=1", "lnc=2")))
            us = attention_us(problem, chip, lnc, kernel=row["kernel"]).us
        elif row["shape"].isdecimal():
            us = schedule(events_of(row["kernel"], int(row["shape"]), get_chip(row["chip"])), chip).total_ns / 1e3
        else:
            raise ValueError(f"shape={row['shape']!r} is not a size of {row['kernel']}: it is a whole number.")
        found.append({
            **row, "us": float(row["us"]), "simulated_us": us, "error": us / float(row["us"]) - 1,
            "band": error_band(family_of(row["kernel"]), row["chip"]),
        })  # fmt: skip
    return found
