"""`nki_hf lint`: which NKI versions take the kernels, by what they are known to reject."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nki_hf.tools.judging.judgement import judge
from nki_hf.tools.judging.output import give
from nki_hf.tools.kernel_lint import KERNELS, RULES, VERSIONS, Row, lint
from nki_hf.tools.screen import Screen

__all__ = ["command", "lines", "markdown"]


def lines(rows: list[Row]) -> list[str]:
    """One line per kernel module: what it breaks in which NKI versions, or that nothing public refuses it."""
    found = []
    for row in rows:
        versions: dict[str, list[str]] = {}
        for version in row.findings:
            versions.setdefault(_cell([row], version), []).append(version)
        said = [f"{cell} in {', '.join(names)}" for cell, names in versions.items()]
        if len(versions) == 1:
            said = [f"{cell} in any of {', '.join(names)}" for cell, names in versions.items()]
        found.append(f"{row.file} ({', '.join(row.kernels) or 'shared parts'}): {'; '.join(said)}")
    return found


def markdown(rows: list[Row]) -> str:
    """Two Markdown tables for the documentation: kernels by version (a folder in one line), and the rules by version."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        folder = row.file.partition("/")[0]
        groups.setdefault(f"{folder}/" if "/" in row.file else row.file, []).append(row)
    lines = [f"| kernels | {' | '.join(VERSIONS)} |", f"|{'---|' * (1 + len(VERSIONS))}"]
    for name, members in groups.items():
        cells = [_cell(members, version) for version in VERSIONS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", f"| rule | {' | '.join(VERSIONS)} | why |", f"|{'---|' * (2 + len(VERSIONS))}"]
    for rule in RULES.values():
        cells = [rule.word if version in rule.versions else "" for version in VERSIONS]
        lines.append(f"| {rule.name} | {' | '.join(cells)} | {rule.why} |")
    return "\n".join(lines)


def command(
    path: Annotated[Path, typer.Argument(help="A kernel's file or a folder of kernels.")] = KERNELS,
    version: Annotated[list[str] | None, typer.Option(help=f"Any of {', '.join(VERSIONS)}; repeatable.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of the documentation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    task: Annotated[str, typer.Option(help="Run the kernel FILE.py or FILE.py:NAME on shapes of a task, too; see judge.")] = "",
    layout: Annotated[str, typer.Option(help="Axes as the kernel file takes them, with --task.")] = "",
) -> None:
    """Check kernel source against what NKI 0.3 to 0.7 are known to reject. The files are read, never run.

    With --task the kernel's Python runs once per size of the task on shapes alone, in a process of its own: what only a run
    shows (missing arguments, names made at run time) is found, too, and the result is judge's record up to its stage lint.
    """
    if task:
        if version or as_markdown:
            raise ValueError("task runs the kernel of one file: leave out --version and --markdown.")
        give(judge(path, task, layout=layout, until="lint"), "-" if as_json else "")
    if layout:
        raise ValueError(f"layout={layout!r} describes arrays of a task: give --task NAME with it.")
    rows = lint(path, tuple(version) if version else VERSIONS)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    elif as_markdown:
        print(markdown(rows))
    else:
        screen = Screen()
        screen.say("NKI front ends, static checks by what is public:", *lines(rows), "")
        findings = sorted({finding for row in rows for group in row.findings.values() for finding in group})
        for found in findings:
            word = "" if RULES[found.rule].refused else f"{RULES[found.rule].word}, "
            ways = "" if found.sure else ", by conditions that the source leaves open"
            line = f"{found.file}:{found.line}: {word}{found.rule}: {found.message}{ways} ({RULES[found.rule].why})"
            screen.line(line)
        clean = sum(row.clean for row in rows)
        said = f"{clean} of {len(rows)} modules break none of {len(RULES)} rules"
        screen.say(f"{said}: not refused by what is public. No compiler has run.")
    raise typer.Exit(0 if all(row.clean for row in rows) else 1)


def _cell(rows: Sequence[Row], version: str) -> str:
    """Which rules the version breaks, and which modules it never meets."""
    rules = sorted({finding.rule for row in rows for finding in row.findings[version]})
    later = [row for row in rows if VERSIONS.index(row.since) > VERSIONS.index(version)]
    if later and len(later) == len(rows):
        return f"used from {later[0].since} on"
    unmet = [f"{row.file.rpartition('/')[2]} from {row.since} on" for row in later]
    return ", ".join([*(rules or ["not refused"]), *unmet])
