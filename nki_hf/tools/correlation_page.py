"""The page docs/correlation.md, made of the rows as they were last written."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from nki_hf.chips.laws import LAWS
from nki_hf.chips.measurements import FAMILIES, MEASUREMENTS, STANDINGS
from nki_hf.tools.correlation_rows import DEFAULT_ORDER, Row, misranked, summary

__all__ = ["markdown"]

_TITLES = {
    "fitted": "Fitted: they took part in the fit, so their agreement is no evidence",
    "seen": "Seen: known when a constant, a law or a rule was chosen by hand; weak evidence",
    "unseen": "Unseen: nothing was chosen after them",
}


def markdown(rows: Sequence[Row], fitted: Mapping[str, float]) -> str:
    """The page docs/correlation.md."""
    lines = [
        "# Simulated against measured",
        "",
        "Written by `nki_hf correlate --write docs/correlation.md` (rows of public kernels: `tools/public_kernels.py",
        "--write`); do not edit. Measured columns are published latencies, simulated ones come from the timing model in",
        f"{DEFAULT_ORDER}, the default order; errors are simulated / measured - 1. *First* is the error when the row was first",
        "compared, before any law was chosen after it: the better guide to the next kernel. Sources:",
        "`nki_hf/chips/measurements.py`.",
        "",
        "| family | chip | rows | median | band | first, median | first, worst |",
        "|---|---|---:|---:|---|---:|---:|",
    ]
    for family in FAMILIES:
        for name in ("trn1", "trn2", "trn3"):
            chosen = [row for row in rows if row.measurement.family == family and row.measurement.chip == name]
            if not chosen:
                lines.append(f"| {family} | {name} | none |  | no measured rows |  |  |")
                continue
            first = [abs(r.measurement.first_error) for r in chosen if r.measurement.first_error is not None]
            lines.append(
                f"| {family} | {name} | {len(chosen)} | {summary(chosen)['median']:.1%} | "
                f"{min(r.error for r in chosen):+.0%} .. {max(r.error for r in chosen):+.0%} | "
                + (f"{statistics.median(first):.0%} | {max(first):.0%} |" if first else " |  |")
            )
    wrong = ", ".join(misranked(rows)) or "none"
    lines += ["", f"Pairs of one length that the model ranks wrongly (ladder, 3 % apart or more): {wrong}."]
    for standing in STANDINGS:
        chosen = [row for row in rows if row.measurement.standing == standing]
        lines += ["", f"## {_TITLES[standing]}", ""]
        if not chosen:
            lines.append("None.")
            continue
        found = summary(chosen)
        lines += [
            f"{found['rows']} rows: median {found['median']:.1%}, worst {found['worst']:+.1%} ({found['worst_row']}).",
            "",
            "| kernel | size | chip | measured us | simulated us | error | first | program order |",
            "|---|---:|---|---:|---:|---:|---:|---:|",
        ]
        for row in chosen:
            m = row.measurement
            first_error = "" if m.first_error is None else f"{m.first_error:+.0%}"
            program = f"{row.program_us / m.us - 1:+.1%}" if row.program_us else ""
            shape = f", {m.shape}" if m.shape else ""
            lines.append(
                f"| {m.subject}{shape} | {m.size:,} | {m.chip} | {m.us:,.0f} | {row.us:,.0f} | {row.error:+.1%} | "
                f"{first_error} | {program} |"
            )
    lines += ["", "## What each law does", ""]
    lines += ["Errors with all laws, and without one of them, where it changes the row by 0.5 % or more.", ""]
    lines += [f"* `{name}`: {law.text}." for name, law in LAWS.items()]
    lines += ["", "| kernel | size | chip | all laws | " + " | ".join(LAWS) + " |", "|---|---:|---|---:|" + "---:|" * len(LAWS)]
    for row in rows:
        m, off = row.measurement, row.without or {}
        cells = {name: f"{us / m.us - 1:+.0%}" for name, us in off.items() if abs(us / row.us - 1) >= 0.005}
        if cells:
            shape = f", {m.shape}" if m.shape else ""
            every = " | ".join(cells.get(name, "") for name in LAWS)
            lines.append(f"| {m.subject}{shape} | {m.size:,} | {m.chip} | {row.error:+.0%} | {every} |")
    lines += ["", "## Fitted constants", ""]
    lines += [f"On trn1 `{name}` = {value:g}." for name, value in fitted.items()]
    notes = [f"* {m.subject} {m.size:,}: {m.note}." for m in MEASUREMENTS if m.note]
    for informed in dict.fromkeys(m.informed for m in MEASUREMENTS if m.informed):
        named = dict.fromkeys(f"{m.subject}" for m in MEASUREMENTS if m.informed == informed)
        notes.append(f"* {', '.join(named)} were known when these were chosen by hand: {informed}.")
    return "\n".join([*lines, "", "## Notes", "", *notes, ""])
