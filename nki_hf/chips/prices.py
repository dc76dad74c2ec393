"""Prices of instances, US dollars an hour: one data file with kind, date and source of each, and a user's own in its place."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from nki_hf.chips import CHIPS, get_chip

__all__ = ["PRICES", "Economics", "Instance", "Price", "economics", "instances", "parse_prices", "with_own"]

PRICES = Path(__file__).parent / "prices.json"
"""The data file."""

OWN = "own"
"""The kind of a price that the user gave as an option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars an hour for a whole instance.

    Attributes:
      dollars: the price.
      kind: on demand, 3-year (effective, by the hour), capacity block, spot, own, or any other word of a user's file.
      date: year and month it was read, or the year alone.
      source: where.
    """

    dollars: float
    kind: str
    date: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance type.

    Attributes:
      name: as AWS names it.
      chip: the chip of this package that it is modelled as, or the name of a GPU, which is not modelled. inf2 has the
        NeuronCore of trn1.
      accelerators: how many.
      cores: physical cores of all of them; 0 of a GPU.
      peak_tflops: dense bfloat16 peak of all of them.
      prices: what is known; empty if none is published.
    """

    name: str
    chip: str
    accelerators: int
    cores: int
    peak_tflops: float
    prices: tuple[Price, ...]

    @property
    def modelled(self) -> bool:
        """True if its chip has a timing model."""
        return self.chip in CHIPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Economics:
    """A published row of dollars per attention rate.

    Attributes:
      what: the accelerator.
      dollars: an hour.
      called: the kind of price, in the source's words.
      tflops: the attention rate that it is divided by.
      dollars_per_tflops_hour: the source's result.
    """

    what: str
    dollars: float
    called: str
    tflops: float
    dollars_per_tflops_hour: float

    @property
    def dollars_per_pflop(self) -> float:
        """The same in dollars per 10**15 operations: a TFLOP/s for an hour is 3.6 of them."""
        return self.dollars_per_tflops_hour / 3.6


@cache
def instances() -> tuple[Instance, ...]:
    """All instance types of the data file."""
    return tuple(_instance(item) for item in _file()["instances"])


@cache
def economics() -> tuple[Economics, ...]:
    """The published table of economics that costs are set beside."""
    return tuple(Economics(**row) for row in _file()["economics"]["rows"])


def parse_prices(text: bytes, path: Path) -> tuple[Instance, ...]:
    """Instances of a user's file: the format of `PRICES`, of which only `instances` is read; `path` is for messages.

    Raises:
      ValueError: it is no such file, or an entry lacks something or means nothing; the message says which.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"prices={path} cannot be read as JSON: {_first_line(error)}.") from None
    entries = body.get("instances") if isinstance(body, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f'prices={path} has no list "instances": write the file as {PRICES.name} of the package is written.')
    found = []
    for number, item in enumerate(entries, 1):
        try:
            found.append(_instance(item))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else _first_line(error)
            raise ValueError(f"prices={path}, instance {number}: {what}.") from None
    return tuple(found)


def with_own(known: Sequence[Instance], given: Iterable[str]) -> tuple[Instance, ...]:
    """`known` with the prices of `NAME=DOLLARS` in place of what was known of these instances.

    Raises:
      ValueError: a text is no such pair, the name is not known, or the price is no price.
    """
    found = {item.name: item for item in known}
    own: set[str] = set()
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or name not in found:
            raise ValueError(f"price={text!r} is not NAME=DOLLARS with NAME one of {', '.join(found)}.")
        if name in own:
            raise ValueError(f"price={text!r} is the second of {name}: give one, or both in a file, --prices own.json.")
        own.add(name)
        try:
            dollars = _dollars(value)
        except ValueError as error:
            raise ValueError(f"price={text!r}: {error}.") from None
        found[name] = replace(found[name], prices=(Price(dollars=dollars, kind=OWN, date="-", source="--price"),))
    return tuple(found.values())


_LEAST, _MOST = 1e-3, 1e6
"""Dollars an hour, and TFLOP/s of a GPU, below and beyond which a number is a slip of the pen."""


@cache
def _file() -> dict[str, Any]:
    return dict(json.loads(PRICES.read_text(encoding="utf-8")))


def _instance(item: Any) -> Instance:
    if not isinstance(item, dict):
        raise ValueError(f"{str(item)[:40]!r} is no instance: it is an object with name, accelerators, prices")
    name, count = _text(item, "name"), _count(item["accelerators"])
    if not isinstance(item["prices"], list) or not all(isinstance(p, dict) for p in item["prices"]):
        raise ValueError(f"prices={str(item['prices'])[:40]} is no list of objects with dollars, kind, date, source")
    prices = tuple(
        Price(dollars=_dollars(p["dollars"]), kind=_text(p, "kind"), date=_text(p, "date"), source=_text(p, "source"))
        for p in item["prices"]
    )
    if "gpu" in item:
        peak = _dollars(item["peak_tflops"]) * count
        return Instance(name=name, chip=_text(item, "gpu"), accelerators=count, cores=0, peak_tflops=peak, prices=prices)
    chip, cores = get_chip(_text(item, "chip")), _count(item["cores"])
    peak = cores * float(chip.tensor_peak_tflops)
    return Instance(name=name, chip=chip.name, accelerators=count, cores=cores, peak_tflops=peak, prices=prices)


def _dollars(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not _LEAST <= number <= _MOST:
        raise ValueError(
            f"{str(value)[:40]!r} is no price: it is US dollars an hour, a plain number such as 1.34, from {_LEAST:g} to "
            f"{_MOST:,.0f}"
        )
    return number


def _text(item: dict[str, Any], name: str) -> str:
    if not isinstance(item[name], str) or not item[name].strip():
        raise ValueError(f"{name}={str(item[name])[:40]} is no text")
    return str(item[name])


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_000_000:
        raise ValueError(f"{str(value)[:40]!r} is no count: it is a whole number from 1 on")
    return value


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(".")
