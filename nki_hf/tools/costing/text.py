"""The text of `nki_hf cost`, and its JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nki_hf.chips.prices import Instance, economics
from nki_hf.tools.costing.dollars import CostRow, dollars_per_pflop
from nki_hf.tools.costing.times import CallTime
from nki_hf.tools.error_bands import band_of
from nki_hf.tools.screen import Screen

__all__ = ["NOT_IN_IT", "SLIP", "as_json", "show"]

NOT_IN_IT = (
    "Not in it: the rest of the model (projections, MLP, the head), the host and its dispatch, what cores take from each "
    "other (all of them are taken to run at the speed of one alone), idle hours, disks, traffic, taxes."
)
LEGEND = (
    "$/Mtok: dollars for a million query tokens. Band: times that, if the model errs as on its best and worst measured row. "
    "block: an EC2 capacity block; 3-year: effective, by the hour. Date: when the price was read. All figures: --json."
)
SLIP = (
    "What slips there: 1.33 $ is about the on-demand price of trn1.2xlarge, not a spot price; its rate is that of both cores, "
    "its utilisation elsewhere that of one core over the peak of two. The A100 row divides the price of eight GPUs by the "
    "rate of one: 23 / 0.115 = 200 TFLOP/s, 64 % of one A100. Per GPU it is {fair:.4f} $ per TFLOP/s and hour, "
    "{pflop:.4f} $ per PFLOP: less than its trn1, not 3.7 times as much."
)


def show(times: Sequence[CallTime], rows: Sequence[CostRow], known: Sequence[Instance], layers: int, screen: Screen) -> None:
    """Print times, costs, what is not in them, and the published table beside."""
    say = screen.say
    for time in times:
        mark = "~" if time.simulated else ""
        kind = "simulated" if time.simulated else "measured (yours)"
        cores = f"{time.lnc} core{'s' * (time.lnc > 1)}"
        say(
            f"{time.what} on {time.chip}: {mark}{time.us:,.1f} µs a call, {kind}, {time.kernel}, {cores}, "
            f"{time.tflops:,.1f} TFLOP/s on visible keys, {time.of_peak:.0%} of peak"
        )
        if time.simulated:
            say(band_of(time.kernel, time.chip), indent=2)
    say("")
    kind = " or ".join(sorted({"sim" if time.simulated else "measured" for time in times}))
    head = ("instance", "$/h", "price", "cores", f"$/Mtok ({kind})", f"$/PFLOP ({kind})", "band")
    title = f"dollars of attention, {layers:,} layer{'s' * (layers > 1)}"
    for what in (whats := dict.fromkeys(time.what for time in times)):  # own times may be of several calls
        cells = [
            [
                row.instance.name,
                f"{row.price.dollars:,.4g}",
                _price(row),
                f"{row.cores}/{row.instance.cores}",
                _figures(row.per_million_tokens),
                _figures(row.per_pflop),
                _span(row),
            ]
            for row in sorted(rows, key=lambda row: row.per_pflop)
            if row.time.what == what
        ]
        if cells:
            screen.table(head, cells, title=f"{title}, {what}" if len(whats) > 1 else title, left=(0, 2))
    say(LEGEND)
    shown = {row.instance.name for row in rows}
    silent = [item.name for item in known if item.modelled and item.prices and item.name not in shown]
    if silent:
        say(f"No row: {', '.join(silent)}: no time of its chip, or fewer cores than were asked for.")
    unpriced = [item.name for item in known if not item.prices and item.modelled]
    if unpriced:
        say(f"No price was found for {', '.join(unpriced)}: give yours, e.g. --price {unpriced[0]}=50.")
    gpus = [(item, price) for item in known if not item.modelled for price in item.prices]
    if gpus:
        say(
            "GPUs are not simulated; at their full bfloat16 peak, which no attention reaches, they would cost: "
            + "; ".join(
                f"{item.name} ({item.accelerators} {item.chip}, {price.dollars:g} $/h, {price.kind}, {price.date}) "
                f"{dollars_per_pflop(price.dollars, item.peak_tflops):.4f} $ per PFLOP"
                for item, price in gpus
            )
            + "."
        )
    say(NOT_IN_IT)
    say("")
    say("Beside it, published in a blog post of 2026 (dollars per attention TFLOP/s and hour):")
    for line in economics():
        say(
            f"{line.what}: {line.dollars:g} $/h, called {line.called}; {line.dollars_per_tflops_hour:g}, which is "
            f"{line.dollars_per_pflop:.4f} $ per PFLOP",
            indent=2,
        )
    gpu = economics()[1]
    say(SLIP.format(fair=gpu.dollars_per_tflops_hour / 8, pflop=gpu.dollars_per_pflop / 8))


def as_json(rows: Sequence[CostRow], layers: int) -> dict[str, Any]:
    """Everything of the text as plain JSON types."""
    return {
        "layers": layers,
        "rows": [
            {
                "instance": row.instance.name, "chip": row.time.chip, "what": row.time.what, "kernel": row.time.kernel,
                "us": row.time.us, "simulated": row.time.simulated, "of_peak": row.time.of_peak, "cores_used": row.cores,
                "cores": row.instance.cores, "cores_a_call": row.time.lnc, "dollars_an_hour": row.price.dollars,
                "price_kind": row.price.kind, "price_date": row.price.date, "price_source": row.price.source,
                "dollars_per_million_tokens": row.per_million_tokens, "dollars_per_attention_pflop": row.per_pflop,
                "times_if_the_model_errs_as_it_did": row.span,
            }
            for row in rows
        ],
        "not_in_it": NOT_IN_IT,
        "published": [
            {"what": line.what, "dollars_an_hour": line.dollars, "called": line.called,
             "dollars_per_tflops_hour": line.dollars_per_tflops_hour, "dollars_per_pflop": line.dollars_per_pflop}
            for line in economics()
        ],
    }  # fmt: skip


def _price(row: CostRow) -> str:
    return f"{_SHORT.get(row.price.kind, row.price.kind)} {row.price.date.removeprefix('20').strip('-')}".rstrip()


_SHORT = {"capacity block": "block"}


def _figures(value: float) -> str:
    """Three significant figures without an exponent: 0.0000222."""
    return f"{value:,.{max(0, 2 - math.floor(math.log10(value)))}f}"


def _span(row: CostRow) -> str:
    if not row.time.simulated:
        return ""
    return "not known" if row.span is None else f"x{row.span[0]:.2f}-{row.span[1]:.2f}"
