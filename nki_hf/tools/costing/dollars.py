"""Dollars of attention: one row per time, instance and price. Plain arithmetic; every assumption is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nki_hf.chips.prices import Instance, Price
from nki_hf.tools.costing.times import CallTime

__all__ = ["CostRow", "cost_rows", "dollars_per_pflop"]


@dataclass(frozen=True, kw_only=True)
class CostRow:
    """What attention costs on one instance at one price.

    Attributes:
      time: the call's time.
      instance, price: what is paid; the whole instance is, whatever is used of it.
      cores: physical cores that work, each group of `time.lnc` on calls of its own.
      per_million_tokens: US dollars for a million query tokens, all layers.
      per_pflop: US dollars for 10**15 operations on visible keys.
      span: what the two are multiplied by if the model errs as much as on its best and its worst measured row; None if that
        is not known, or the time is measured.
    """

    time: CallTime
    instance: Instance
    price: Price
    cores: int
    per_million_tokens: float
    per_pflop: float
    span: tuple[float, float] | None


def dollars_per_pflop(dollars_an_hour: float, tflops: float) -> float:
    """US dollars for 10**15 operations at a rate that an hour's price keeps up."""
    return dollars_an_hour / 3600 / tflops * 1e3


def cost_rows(
    times: Sequence[CallTime], known: Sequence[Instance], *, layers: int = 1, cores: int | None = None
) -> list[CostRow]:
    """A row for each time on each instance of its chip at each of its prices.

    Args:
      times: what a call takes.
      known: instances with prices; those of other chips, and those without a price, have no rows.
      layers: attention calls of that kind that a token goes through.
      cores: physical cores that work; None = all that whole calls fill. Instances with fewer cores have no rows.

    Raises:
      ValueError: `cores` is not a multiple of a call's cores.
    """
    rows = []
    for time in times:
        if cores is not None and cores % time.lnc:
            raise ValueError(
                f"cores={cores} are not whole calls: one on {time.chip} takes {time.lnc}; give a multiple, or --lnc 1."
            )
        for instance in known:
            used = instance.cores - instance.cores % time.lnc if cores is None else cores
            if instance.chip != time.chip or not 0 < used <= instance.cores:
                continue
            calls_per_s = used / time.lnc / (time.us * 1e-6)
            for price in instance.prices:
                rows.append(
                    CostRow(
                        time=time,
                        instance=instance,
                        price=price,
                        cores=used,
                        per_million_tokens=price.dollars / 3600 / (calls_per_s * time.tokens) * 1e6 * layers,
                        per_pflop=dollars_per_pflop(price.dollars, calls_per_s * time.flops / 1e12),
                        span=_span(time),
                    )
                )
    return rows


def _span(time: CallTime) -> tuple[float, float] | None:
    """True over simulated time: error = simulated / measured - 1."""
    return None if time.band is None else (1 / (1 + time.band[1]), 1 / (1 + time.band[0]))
