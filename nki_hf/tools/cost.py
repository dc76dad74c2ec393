"""`nki_hf cost`: what attention costs on each instance type, from simulated or measured times and dated prices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from nki_hf.chips import CHIPS, get_chip
from nki_hf.chips.prices import Instance, instances, parse_prices, with_own
from nki_hf.tools.bench_rows import check_shape_length
from nki_hf.tools.cores import check_cores
from nki_hf.tools.costing.dollars import cost_rows
from nki_hf.tools.costing.text import as_json, show
from nki_hf.tools.costing.times import measured_times, simulated_times
from nki_hf.tools.input_files import check_regular
from nki_hf.tools.modelled import window_of
from nki_hf.tools.progress import working
from nki_hf.tools.screen import Screen
from nki_hf.tools.shape import SHAPE_HELP, problem_of

__all__ = ["command"]

SHAPE = "hq=16,hkv=8,sq=4096,causal"
"""Attention of Qwen3-0.6B at 4,096 tokens."""
_MOST = 1_000_000


def command(
    shape: Annotated[str, typer.Option(help=SHAPE_HELP)] = SHAPE,
    layers: Annotated[int, typer.Option(help="Attention layers of the model.")] = 1,
    chip: Annotated[str, typer.Option(help="trn1 (also inf2), trn2 or trn3; default: all that have a price.")] = "",
    lnc: Annotated[int | None, typer.Option(help="Cores of one call, 1 or 2; default is each chip's own.")] = None,
    cores: Annotated[int | None, typer.Option(help="Physical cores that work; default is all of the instance.")] = None,
    price: Annotated[list[str], typer.Option(help="Your price, dollars an hour: trn2.3xlarge=1.90.")] = [],  # noqa: B006
    prices: Annotated[Path | None, typer.Option(help="A JSON file of instances and prices in place of ours.")] = None,
    measured: Annotated[Path | None, typer.Option(help="Measured times: a CSV file as of correlate.")] = None,
    order: Annotated[str, typer.Option(help="program, or the window of the modelled compiler, e.g. 64.")] = "64",
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what attention costs: dollars per million tokens and per PFLOP on each instance type.

    It reads no prices from anywhere: those that come with the package have a date each, yours replace them.
    """
    window, problem = window_of(order), problem_of(shape)
    for name, value in (("layers", layers), ("cores", cores)):
        if value is not None and not 1 <= value <= _MOST:
            raise ValueError(f"{name}={value} is not a number of {name}: it is 1 or more, and at most {_MOST:,}.")
    known = with_own(instances() if prices is None else _own(prices), price)
    if chip:
        given = {text.partition("=")[0] for text in price}
        other = next((item for item in known if item.name in given and item.chip != get_chip(chip).name), None)
        if other is not None:
            raise ValueError(f"price={other.name} is not used with chip={chip}: it has {other.chip}; leave one of them out.")
        known = tuple(item for item in known if item.chip == get_chip(chip).name)
    priced = [name for name in CHIPS if any(item.chip == name and item.prices for item in known)]
    if measured is not None:
        own = {"shape": "" if shape == SHAPE else shape, "lnc": lnc, "order": "" if order == "64" else order}
        said = next((name for name, value in own.items() if value), None)
        if said is not None:
            why = f"{said}={own[said]} is not used with measured={measured}, whose rows say what was measured"
            raise ValueError(f"{why}; leave one of them out.")
        times = measured_times(measured)
    else:
        if not priced:
            raise ValueError(f"no price is known{f' for {chip}' if chip else ''}: give one, --price INSTANCE=DOLLARS.")
        check_cores(lnc, tuple(priced))
        for name in priced:
            check_shape_length(problem, get_chip(name), lnc)
        with working(f"nki_hf cost of {shape}", len(priced)) as work:
            times = simulated_times(problem, priced, what=shape, lnc=lnc, window=window, work=work)
    rows = cost_rows(times, known, layers=layers, cores=cores)
    if not rows:
        raise ValueError("no instance with a price fits: fewer --cores, another --chip, or your own --price or --prices.")
    if json_:
        print(json.dumps(as_json(rows, layers), indent=1))
        return
    show(times, rows, known, layers, Screen())


def _own(path: Path) -> tuple[Instance, ...]:
    try:
        check_regular(path)
        return parse_prices(path.read_bytes(), path)
    except OSError as error:
        raise ValueError(f"prices={path} cannot be read ({error.strerror or error}).") from None
