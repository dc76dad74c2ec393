"""How a record is given to the user: exactly one JSON, or lines; and the exit code."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import typer

from nki_hf.observers.short_path import short_path
from nki_hf.tools.judging.line_words import line_words
from nki_hf.tools.output_files import whole_file, writing
from nki_hf.tools.screen import Screen

__all__ = ["give", "show"]


def give(record: dict[str, Any], json_file: str) -> NoReturn:
    """Write the record to a file, or print it (`-`) or its lines (empty), and end with exit code 0 if it passed, else 1."""
    text = json.dumps(record, indent=1, allow_nan=False)
    if json_file == "-":
        print(text)
    else:
        if json_file:
            with writing(json_file, "json"), whole_file(json_file) as file:
                file.write((text + "\n").encode())
        show(record, Screen())
    raise typer.Exit(0 if record["passed"] else 1)


def show(record: dict[str, Any], screen: Screen) -> None:
    """The record in lines."""
    say = screen.say
    say(record["sentence"])
    for finding in record["findings"]:
        place = f" ({short_path(finding['file'])}:{finding['line']})" if finding["file"] else ""
        limit = f", {finding['limit']}" if finding["limit"] else ""
        say(f"  {finding['stage']}: {finding['message']}{limit}{place}")
    for row in record["times"]:
        if row["sentence"] not in record["sentence"]:
            say(f"  {row['sentence']}")
        if row["speedup"]:
            say(f"    {row['speedup']:.2f} times as fast as --against ({row['against_us']:,.1f} us)")
        for hint in row["hints"]:
            at = line_words(record["file"], hint["file"], hint["line"])
            say(f"    up to {hint['gain_us']:,.1f} us: {at}: {hint['text']}")
    for warning in record["warnings"][:8]:
        say(f"  warning: {warning}")
    for stream in ("stdout", "stderr"):
        if record["printed"].get(stream):
            say(f"  the kernel's own {stream}: {record['printed'][stream][:400]}")
    say("PASS" if record["passed"] else "FAIL")
