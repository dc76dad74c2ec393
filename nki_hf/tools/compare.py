"""`nki_hf compare A B`: two kernels of one task side by side: sources, times, engines and critical paths."""

from __future__ import annotations

import ast
import json
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len

from nki_hf.tools.judging.named_kernels import Named, named
from nki_hf.tools.progress import working
from nki_hf.tools.screen import Screen
from nki_hf.tools.searching.facts import beside, failed_record, source_diff
from nki_hf.tools.searching.options import judge_options, round_limit, try_with
from nki_hf.tools.searching.workers import Workers, processes_of

__all__ = ["command"]

_HEADS = 2
"""Lines of a diff with the names of its files, which stay whole."""
_LONGEST = 20
"""Letters of another file's name."""


def command(
    a: Annotated[str, typer.Argument(help="FILE.py, FILE.py:NAME, a rung such as v7, or a kernel of ours.")],
    b: Annotated[str, typer.Argument(help="The other one.")],
    task: Annotated[str, typer.Option(help="A task's name, or a file with TASK = Task(...).")],
    layout: Annotated[str, typer.Option(help="Axes as the kernels take them, e.g. q=ds,k=ds,v=ds.")] = "",
    layout_b: Annotated[str, typer.Option(help="Those of B, where they differ.")] = "",
    check: Annotated[str, typer.Option(help="Sizes whose values are judged, e.g. 512,1024.")] = "",
    at: Annotated[str, typer.Option(help="Sizes that are timed, e.g. 2048,4096.")] = "",
    chip: Annotated[str, typer.Option(help="Chips, e.g. trn1,trn2.")] = "",
    lnc: Annotated[int, typer.Option(help="Cores of the launch, 1 or 2.")] = 1,
    dtype: Annotated[str, typer.Option(help="Element type of the run; default: the task's.")] = "",
    const: Annotated[list[str], typer.Option(help="A constant of one kernel or both: NAME=VALUE.")] = [],  # noqa: B006
    rtol: Annotated[float, typer.Option(help="Allowed relative error of a row; 0 = from an ideal kernel.")] = 0.0,
    timeout: Annotated[float, typer.Option(help="Seconds for each process of a judgement.")] = 60.0,
    order: Annotated[str, typer.Option(help="program, or the window of the modelled compiler, e.g. 64.")] = "64",
    seed: Annotated[int, typer.Option(help="Seed of the inputs; -1 = a new one.")] = -1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare two kernels of a task: the difference of their sources, and per chip and size their times, engines and paths.

    Both are judged first, each in processes of its own. Exit code 0: both pass; 1: one fails; 2: wrong use.
    """
    options = judge_options(
        check=check, at=at, chip=chip, lnc=lnc, dtype=dtype, const=const, rtol=rtol, timeout=timeout, order=order, seed=seed
    )
    try_with(task, options)
    pair = named(a, task, layout), named(b, task, layout_b or layout)
    own = [_constants(item, options["constants"]) for item in pair]
    unknown = sorted(set(options["constants"]) - own[0].keys() - own[1].keys())
    if unknown:
        raise ValueError(f"const: neither {a} nor {b} has a parameter {', '.join(unknown)}: name one that a kernel has.")
    jobs = [
        {
            "kind": "judge",
            "path": item.path,
            "task": task,
            "options": {**options, "layout": item.layout, "constants": constants},
        }
        for item, constants in zip(pair, own, strict=True)
    ]
    with working(f"nki_hf compare of {a} and {b} on {task}"), Workers(min(2, processes_of(0))) as workers:
        answers = dict(workers.run(jobs, round_limit(options)))
    records = [_record(answers[n], pair[n], task) for n in range(2)]
    diff = source_diff(_source(pair[0]), _source(pair[1]), (pair[0].label, pair[1].label))
    rows = beside(*records)
    passed = all(record["passed"] for record in records)
    if as_json:
        sides = {
            key: {"kernel": item.label, **{name: record[name] for name in ("passed", "verdict", "sentence", "score")}}
            for key, item, record in zip("ab", pair, records, strict=True)
        }
        print(json.dumps({**sides, "diff": diff, "rows": rows}, indent=1))
    else:
        _show(pair, records, diff, rows, Screen())
    raise typer.Exit(0 if passed else 1)


def _record(answer: dict[str, Any], item: Named, task: str) -> dict[str, Any]:
    record: dict[str, Any] = answer.get("record") or failed_record(item.path, task, answer.get("error", "no answer"))
    return record


def _file(item: Named) -> str:
    return item.path if item.path.endswith(".py") else item.path.rpartition(":")[0]


def _constants(item: Named, constants: dict[str, Any]) -> dict[str, Any]:
    """Those that a function of the kernel's file may take; the judge names the kernel's own if it lacks one."""
    try:
        tree = ast.parse(_source(item))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return constants  # the judge says what is wrong with the file
    taken = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return {name: value for name, value in constants.items() if name in taken}


def _source(item: Named) -> str:
    return Path(_file(item)).read_text(encoding="utf-8-sig", errors="replace")


def _show(
    pair: tuple[Named, Named], records: list[dict[str, Any]], diff: str, rows: list[dict[str, Any]], screen: Screen
) -> None:
    for number, line in enumerate(diff.splitlines() or ["the sources are the same"]):
        for part in [line] if number < _HEADS else _parts(line, screen.width):
            screen.line(part)
    for key, item, record in zip("AB", pair, records, strict=True):
        screen.line(f"{key} = {item.label}")
        screen.say(f"{key}: {record['sentence']}")
    files = [Path(_file(item)).name for item in pair]
    for row in rows:
        faster = "B" if row["speedup"] >= 1 else "A"
        ratio = max(row["speedup"], 1 / row["speedup"])
        both = f"A ~ {row['a_us']:,.1f}, B ~ {row['b_us']:,.1f} us (sim)"
        screen.say("", f"{row['chip']} at size {row['size']:,}: {both}; {faster} is {ratio:.2f} times as fast")
        screen.table(
            ["engine", "A active", "B active"],
            [(engine["engine"], f"{engine['a']:.1%}", f"{engine['b']:.1%}") for engine in row["engines"]],
        )
        paths = [[_cells(step, file) for step in row[key]] for key, file in zip(("a_path", "b_path"), files, strict=True)]
        heads = [[key, "line", "us (sim)"] for key in "AB"]
        both_heads = [*heads[0], *heads[1]]
        lines = [(*one, *other) for one, other in zip_longest(*paths, fillvalue=("", "", ""))]
        screen.say("critical path by kernel line")
        if screen.fits(both_heads, lines):
            screen.table(both_heads, lines, left=(0, 1, 3, 4))
        else:
            for head, path in zip(heads, paths, strict=True):
                screen.table(head, path, left=(0, 1))
    for band in dict.fromkeys(row["band"] for row in rows):
        screen.say(f"error on measured rows: {band}")
    screen.say("PASS" if all(record["passed"] for record in records) else "FAIL")


def _parts(line: str, width: int) -> list[str]:
    """A line of a diff in pieces that fit; each has the line's sign, and all but the first are indented below it."""
    sign = line[:1] if line[:1] in ("+", "-", " ") else ""
    head, found, rest = "", [], line
    while cell_len(head + rest) > width:
        room = width - len(head)
        while cell_len(rest[:room]) > width - len(head):
            room -= 1
        found.append(head + rest[:room])
        rest, head = rest[room:], f"{sign}    "
    return [*found, head + rest]


def _cells(step: dict[str, Any], own: str) -> tuple[str, str, str]:
    """What, where and how long; of the kernel's own file only the line."""
    file, _, line = step["place"].rpartition(":")
    if file == own:
        return step["what"], line, f"{step['us']:,.1f}"
    if len(file) > _LONGEST:
        file = f"{file[: _LONGEST // 2]}...{file[3 - _LONGEST // 2 :]}"
    return step["what"], f"{file}:{line}" if file else "", f"{step['us']:,.1f}"
