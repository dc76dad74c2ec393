"""A user's own measurements: rows of a CSV file beside what the model says of the same kernel, shape and chip.

Columns, in any order, named in the first line: `chip` (trn1, trn2, trn3), `kernel`, `shape`, `us` (microseconds on the device,
without the host) and, optional, `versions` (any text). A kernel is

* one of ours, e.g. flash_prefill: the shape is what `nki_hf bench --shape` takes, with `lnc=2` for two cores;
* a subject of the ladder, e.g. v7: the shape is its size;
* a file of the user's, FILE.py or FILE.py:NAME: the shape is `task=NAME,at=SIZE`, with `lnc=2` for two cores.
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
from nki_hf.tasks import load_task
from nki_hf.timing.schedule import schedule
from nki_hf.tools.error_bands import family_of
from nki_hf.tools.input_files import check_regular
from nki_hf.tools.judging.tried_task import try_task
from nki_hf.tools.latency import attention_us
from nki_hf.tools.modelled import ModelRequest, stream
from nki_hf.tools.shape import problem_of
from nki_hf.tools.subjects import events_of, own_kernels, subject

__all__ = ["compared", "cores_and_words", "read_rows"]

_COLUMNS = ("chip", "kernel", "shape", "us")


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, checked; `where` names the file and the line of each.

    Raises:
      ValueError: it cannot be read, lacks a column, has no rows, or a row's chip or time is none; the message says which.
    """
    try:
        check_regular(path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            lines = [(reader.line_num, line) for line in reader]
    except (OSError, UnicodeError, csv.Error) as error:
        raise ValueError(f"measured={path} cannot be read: {error}.") from None
    if not lines:
        raise ValueError(f"measured={path} has no rows: give a line of column names ({', '.join(_COLUMNS)}) and one per row.")
    names = reader.fieldnames or ()
    missing = [name for name in _COLUMNS if name not in names]
    if missing:
        raise ValueError(
            f"measured={path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}: its first line names the "
            "columns, separated by commas."
        )
    twice = [name for name in (*_COLUMNS, "versions") if list(names).count(name) > 1]
    if twice:
        raise ValueError(f"measured={path} has the column{'s' * (len(twice) > 1)} {', '.join(twice)} twice: name each once.")
    rows = []
    for number, line in lines:
        where = f"measured={path}, line {number}"
        if None in line:  # where DictReader puts what has no column
            raise ValueError(
                f"{where}: {len(names) + len(line[None])} cells for {len(names)} columns: a cell with commas, as a shape has, "
                'stands in quotes, "sq=1024,causal".'
            )
        row = {name: (line.get(name) or "").strip() for name in (*_COLUMNS, "versions")}
        try:
            get_chip(row["chip"])
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if not _is_time(row["us"]):
            raise ValueError(f"{where}: us={row['us']} is no time: it is a number above 0, as in 1234.5.")
        rows.append({**row, "where": where})
    return rows


def _is_time(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and float(text) > 0
    except ValueError:
        return False


def compared(rows: Sequence[dict[str, str]], off: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Each row with `simulated_us`, `error` and the `band` of its family's published rows, laws of names in `off` left out.

    Raises:
      ValueError: a kernel, a shape or a law is not known, the kernel does not take the shape or fails; it names the line.
    """
    for name in off:
        without(get_chip("trn2"), name)  # an unknown one is refused before anything runs
    found = []
    for row in rows:
        try:
            us, family = _simulated(row, off)
        except (ValueError, MemoryError) as error:
            raise ValueError(f"{row['where']}: {error}") from error
        found.append(
            {
                **{name: row[name] for name in (*_COLUMNS, "versions")},
                "us": float(row["us"]),
                "simulated_us": us,
                "error": us / float(row["us"]) - 1,
                "band": error_band(family, row["chip"]),
            }
        )
    return found


def _simulated(row: dict[str, str], off: Sequence[str]) -> tuple[float, str]:
    """Microseconds, and the family whose rows say how sure they are."""
    kernel, chip = row["kernel"], without(get_chip(row["chip"]), *off)
    if kernel in own_kernels():
        lnc, words = cores_and_words(row)
        return attention_us(problem_of(",".join(words)), chip, lnc, kernel=kernel).us, family_of(kernel)
    if kernel.partition(":")[0].endswith(".py"):
        lnc, words = cores_and_words(row)
        given = dict(word.partition("=")[::2] for word in words)
        if set(given) != {"task", "at"} or len(words) != 2 or not given["at"].isdecimal():
            raise ValueError(
                f"shape={row['shape']!r} is none of a kernel file: it is task=NAME,at=SIZE, as in task=softmax,at=4096."
            )
        asked = ModelRequest(kernel=kernel, task=given["task"], seqlen=int(given["at"]), chip=chip.name, lnc=lnc)
        try_task(asked.task, at=(asked.seqlen,))
        task = load_task(asked.task)
        return schedule(stream(asked), chip).total_ns / 1e3, task.family or task.name
    subject(kernel)  # an unknown one is refused by name
    if not row["shape"].isdecimal():
        raise ValueError(f"shape={row['shape']!r} is not a size of {kernel}: it is a whole number, as in 1024.")
    return schedule(events_of(kernel, int(row["shape"]), get_chip(row["chip"])), chip).total_ns / 1e3, family_of(kernel)


def cores_and_words(row: dict[str, str]) -> tuple[int, list[str]]:
    """How many cores a row's shape asks for, and its other words."""
    words = [word.strip() for word in row["shape"].split(",")]
    cores = [word for word in words if word.partition("=")[0] == "lnc"]
    if len(cores) > 1:
        raise ValueError(f"shape={row['shape']!r} says lnc twice: it is given once.")
    if cores and cores[0] not in ("lnc=1", "lnc=2"):
        raise ValueError(f"shape: {cores[0]} is no number of cores: it is lnc=1 or lnc=2.")
    lnc = 2 if "lnc=2" in cores else 1
    if lnc > get_chip(row["chip"]).default_lnc:
        raise ValueError(f"lnc={lnc} is not possible on {row['chip']}: leave it out.")
    return lnc, [word for word in words if word not in cores]
