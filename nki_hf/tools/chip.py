"""`nki_hf chip`: the hardware numbers of a chip, each with unit, source and confidence."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from nki_hf.chips import CHIPS, get_chip
from nki_hf.tools.screen import Screen

__all__ = ["command", "run"]


def run(name: str) -> list[dict[str, Any]]:
    """Rows `name, value, unit, confidence, source` of every number of chip `name`."""
    return [
        {"name": key, "value": param.value, "unit": param.unit, "confidence": param.confidence, "source": param.source}
        for key, param in get_chip(name)
    ]


def command(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(CHIPS)}.")] = "trn2",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Print every hardware number of a chip with unit, source and confidence."""
    rows = run(name)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    screen = Screen()
    screen.say(f"{name}: {len(rows)} numbers; each with unit, confidence and source")
    for row in rows:
        screen.say("", f"{row['name']} = {row['value']:,g} {row['unit']} ({row['confidence']})")
        screen.say(row["source"], indent=4)
