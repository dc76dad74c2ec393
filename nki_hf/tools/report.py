"""`nki_hf report`: where the simulated time of a kernel goes, as tables, JSON or one HTML page."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from nki_hf.chips import get_chip
from nki_hf.observers.gains import quick_gains
from nki_hf.observers.report import ESTIMATED, LONGER, facts, gain_text
from nki_hf.sim.uncollected import uncollected
from nki_hf.tasks import load_task
from nki_hf.timing.schedule import Schedule
from nki_hf.tools.error_bands import family_of
from nki_hf.tools.judging.programs import UNCHECKED
from nki_hf.tools.judging.reasons import reasons, sentence
from nki_hf.tools.judging.request import split
from nki_hf.tools.judging.times import least_us
from nki_hf.tools.modelled import (
    AT_HELP,
    FILE_HELP,
    KERNEL,
    KERNEL_HELP,
    LAYOUT_HELP,
    TASK_HELP,
    ModelRequest,
    asked_for,
    scheduled_within,
    stream,
    window_of,
)
from nki_hf.tools.output_files import check_writable, whole_file, writing
from nki_hf.tools.pages.report_page import Side, report_page
from nki_hf.tools.progress import Work, working
from nki_hf.tools.screen import Screen
from nki_hf.tools.shape import SHAPE_HELP
from nki_hf.tools.subjects import SUBJECTS, own_kernels

__all__ = ["command", "show", "side_of"]


def show(side: Side, screen: Screen) -> None:
    """Print the verdict, the engine table, the longest lines of the critical path and the working set."""
    found = side.facts
    cores = len({row["core"] for row in found["engines"]}) > 1
    screen.say(f"{side.title}: {sentence(side.reasons, side.file)}", "")
    rows = []
    for row in found["engines"]:
        most = max(row["waiting"], key=lambda name: row["waiting"][name])
        waits = sum(row["waiting"].values())
        rows.append(
            [
                _named(row, row["engine"], cores),
                f"{row['instructions']:,}",
                f"{row['active']:.1%}",
                f"{waits:.1%}",
                most if waits else "",
                gain_text(row),
            ]
        )
    for row in found["dma"]:
        rows.append([_named(row, "dma", cores), f"{row['transfers']:,}", f"{row['active']:.1%}", "", "", gain_text(row)])
    head = ("engine", "instructions", "active", "waits", "most for", "µs gained")
    if rows:
        screen.table(head, rows, title="engines, % of the simulated time, and µs gained if one took no time", left=(0, 4))
    if any(row["gain_us"] < 0 for row in (*found["engines"], *found["dma"])):
        screen.say(LONGER)
    if any(row["gain_estimated"] for row in (*found["engines"], *found["dma"])):
        screen.say(ESTIMATED)
    path = [
        [
            f"{row['engine']} {row['opcode']}".strip(),
            _last(row["source"]),
            f"{row['count']:,}",
            f"{row['us']:,.1f}",
            f"{row['share']:.1%}",
        ]
        for row in found["path"][:8]
    ]
    if rows:
        screen.say("")
    screen.table(("instruction", "line", "times", "µs (sim)", "share"), path, title="critical path by kernel line", left=(0, 1))
    for row in found["working_set"]:
        high, capacity = row["high_water_bytes"], row["capacity_bytes"]
        where = f" of core {row['core']}" if cores else ""
        title = (
            f"{row['space']}{where}, where it is fullest and before spills: {high:,} of {capacity:,} B per partition "
            f"({high / capacity:.1%})"
        )
        tiles = [
            [
                tile["name"],
                _last(tile["source"]),
                f"{tile['bytes']:,}",
                f"{tile['live']:,}",
                f"{tile['total_bytes']:,}",
                f"{tile['total_bytes'] / capacity:.1%}",
            ]
            for tile in row["tiles"]
        ]
        screen.say("")
        screen.table(("tile", "line", "B per partition", "live at once", "total B", "share"), tiles, title=title, left=(0, 1))
    screen.say("")
    for row in found["memory"]:
        where = f"core {row['core']}: " if cores else ""
        screen.say(f"{where}as scheduled, {row['space']} holds at most {row['kib']:,.1f} KiB per partition at once")
    screen.say(found["achieved"] + (f". {found['spills']}" if found["spills"] else ""))
    for hint in side.reasons["hints"]:
        gain = f"up to {hint['gain_us']:,.1f} us: " if hint["gain_us"] else ""
        screen.say(f"{gain}{_last(hint['file'])}:{hint['line']}: {hint['text']}")


def side_of(asked: ModelRequest, *, window: int | None, overflow: str = "spill", work: Work | None = None) -> Side:
    """What a report says about a kernel; raises as `modelled.stream` and `modelled.scheduled_within` do."""
    step = Work("", None) if work is None else work
    step.begin(f"tracing {asked}")
    events = stream(asked)
    step.advance(f"scheduling {len(events):,} instructions of {asked}")
    scheduled = scheduled_within(events, get_chip(asked.chip), window=window, overflow=overflow)
    step.advance(f"scheduling them with each engine free, of {asked}")
    saved, estimated = quick_gains(scheduled)
    found = facts(scheduled, events, asked.useful_flops, saved_ns=saved, estimated=estimated)
    step.advance()
    why = {**reasons(scheduled, events, saved_ns=saved), **_against_the_chip(asked, scheduled)}
    return Side(
        title=str(asked), scheduled=scheduled, facts=found, reasons=why, file=split(asked.kernel, "")[0] if asked.task else ""
    )


def _against_the_chip(asked: ModelRequest, scheduled: Schedule) -> dict[str, Any]:
    """Size, what no kernel can be below on the chip, and the share of it, where a task says what is asked for."""
    if not asked.task:
        return {}
    if not scheduled.events:  # it has not done what was asked for
        return {"size": asked.seqlen}
    task = load_task(asked.task)
    arrays = [(name, shape, kind) for name, (shape, kind) in task.shapes(asked.seqlen, task.dtype).items()]
    least = least_us(task, {"size": asked.seqlen, "arrays": arrays}, scheduled.chip, asked.lnc)
    return {"size": asked.seqlen, "least_us": least, "score": min(1.0, least * 1e3 / scheduled.total_ns)}


def command(
    kernel_file: Annotated[str, typer.Argument(help=FILE_HELP)] = "",
    kernel: Annotated[str, typer.Option(help=KERNEL_HELP)] = KERNEL,
    seqlen: Annotated[int, typer.Option(help="Keys (and queries) of a ladder rung.")] = 1024,
    shape: Annotated[str, typer.Option(help=SHAPE_HELP)] = "",
    task: Annotated[str, typer.Option(help=TASK_HELP)] = "",
    layout: Annotated[str, typer.Option(help=LAYOUT_HELP)] = "",
    at: Annotated[int, typer.Option(help=AT_HELP)] = 0,
    const: Annotated[list[str], typer.Option(help="A constant of the kernel file: NAME=VALUE.")] = [],  # noqa: B006
    chip: Annotated[str, typer.Option(help="trn1, trn2 or trn3.")] = "trn2",
    order: Annotated[str, typer.Option(help="program, or the window of the modelled compiler, e.g. 64.")] = "64",
    overflow: Annotated[str, typer.Option(help="Tiles that do not fit: spill (as a compiler would) or error.")] = "spill",
    against: Annotated[str, typer.Option(help="Another kernel to stand beside this one: FILE.py, or a name such as v7.")] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write one self-contained page, a .html file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Say where the simulated time of a kernel goes: engines, waits, critical path, DMA, working set, roofline.

    It takes kernels of this package by name, or a kernel file with a task: the file is Python and runs with all of your
    rights, in a process of its own that is limited in time and memory.

    Exit code 1: the kernel file fails.
    """
    asked = asked_for(kernel_file, task, layout, at, const, kernel=kernel, seqlen=seqlen, shape=shape, chip=chip)
    if output is not None:  # a page that cannot be written is known before anything is simulated
        if output.suffix not in (".html", ".htm"):
            raise ValueError(f"output={output} is not a page: its name ends in .html or .htm.")
        check_writable(output)
    window = window_of(order)
    other = _beside(asked, against) if against else None
    with working("nki_hf report", 3 * (1 + (other is not None))) as work, uncollected():
        side = side_of(asked, window=window, overflow=overflow, work=work)
        beside = None if other is None else side_of(other, window=window, overflow=overflow, work=work)
        if beside is not None and side.title == beside.title and asked.task:
            ours, theirs = _told_apart(asked.kernel, against)
            side = replace(side, title=f"{ours} {asked.seqlen}")
            beside = replace(beside, title=f"{theirs} {asked.seqlen}")
        if output is not None:
            unlike = "" if other is None else _unlike(asked, other)
            notes = (
                *[unlike] * bool(unlike),
                *[UNCHECKED] * bool(asked.task),
                _capital(f"{asked.band}."),
                f"Made by {_words(asked, against)}",
            )
            text = report_page(side, beside, notes=notes)
            with writing(output), whole_file(output) as file:
                file.write(text.encode())
    if as_json:
        print(json.dumps({"band": asked.band, **side.facts}, indent=1))
        return
    screen = Screen()
    show(side, screen)
    if beside is not None:
        ratio = beside.reasons["us"] / side.reasons["us"]
        screen.say("", f"{ratio:,.2f} times as fast as {beside.title}: {sentence(beside.reasons, beside.file)}")
        if other is not None and _unlike(asked, other):
            screen.say(_unlike(asked, other))
    if asked.task:
        screen.say(UNCHECKED)
    screen.say(asked.band)
    if output is not None:
        screen.say(f"wrote {output}")


def _told_apart(one: str, other: str) -> tuple[str, str]:
    """Two files of one name, each with as many of its folders as tell them apart."""
    ours, theirs = (Path(os.path.abspath(name)).parts for name in (one, other))
    if ours == theirs:
        return Path(one).name, Path(other).name
    alike = next(count for count, (a, b) in enumerate(zip(reversed(ours), reversed(theirs), strict=False)) if a != b)
    return "/".join(ours[-alike - 1 :]), "/".join(theirs[-alike - 1 :])


def _beside(asked: ModelRequest, name: str) -> ModelRequest:
    """What stands beside: another file on the same task, the same problem, or, of a rung, its own task at as many keys."""
    if name.partition(":")[0].endswith(".py"):
        if not asked.task:
            raise ValueError(
                f"against={name} is a kernel file: it is compared on a task, FILE.py --task NAME --against {name}."
            )
        return replace(asked, kernel=name, constants=())
    if name not in (*own_kernels(), *SUBJECTS):
        raise ValueError(
            f"against={name!r} is not known: it is FILE.py with --task, or one of {', '.join((*own_kernels(), *SUBJECTS))}."
        )
    rung = name in SUBJECTS
    seqlen = asked.problem.seqlen_kv if asked.own else asked.seqlen
    if rung and seqlen % SUBJECTS[name].multiple:
        multiple, option = SUBJECTS[name].multiple, "at" if asked.task else "shape" if asked.shape else "seqlen"
        raise ValueError(f"against={name} has no size {seqlen}: it takes multiples of {multiple}; give such a --{option}.")
    if asked.task or rung:
        ours = load_task(asked.task).family or asked.task if asked.task else family_of(asked.kernel)
        theirs = family_of(name)
        if ours != theirs and not ("attention" in ours and "attention" in theirs):
            raise ValueError(f"against={name} computes something else: it is {theirs}, {_work_of(asked)} is {ours}.")
    if asked.task:
        shapes = (f"sq={seqlen}", f"sq={seqlen},causal") if not rung else ("",)
        found = [ModelRequest(kernel=name, seqlen=seqlen, shape=shape, chip=asked.chip) for shape in shapes]
        return next((other for other in found if other.useful_flops == asked.useful_flops), found[0])
    return replace(asked, kernel=name, seqlen=seqlen, shape="" if rung else asked.shape)


def _work_of(asked: ModelRequest) -> str:
    return f"task {Path(asked.task).name}" if asked.task else asked.kernel


def _unlike(asked: ModelRequest, other: ModelRequest) -> str:
    """A sentence if two kernels are not asked for the same number of operations, e.g. one of them causal; else nothing."""
    ours, theirs = asked.useful_flops, other.useful_flops
    if ours == theirs:
        return ""
    return (
        f"They do not do the same work: {asked} is asked for {ours / 1e9:,.3g} billion operations, {other} for "
        f"{theirs / 1e9:,.3g}; the ratio of the times is not that of two kernels for one task."
    )


def _words(asked: ModelRequest, against: str) -> str:
    """The command that makes the page again, without the options that do not change what it says of a kernel."""
    size = ["--shape", asked.shape] if asked.shape else ["--seqlen", str(asked.seqlen)]
    words = ["nki_hf", "report", "--kernel", asked.kernel, *size, "--chip", asked.chip]
    file_name, other = Path(asked.kernel).name, Path(against).name
    if asked.task and file_name == other:
        file_name, other = _told_apart(asked.kernel, against)
    if asked.task:
        file = [file_name, "--task", Path(asked.task).name, "--at", str(asked.seqlen)]
        words = ["nki_hf", "report", *file, *(["--layout", asked.layout] if asked.layout else []), "--chip", asked.chip]
    return shlex.join([*words, *(["--against", other] if against else []), "-o", "page.html"])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _named(row: dict[str, Any], name: str, cores: bool) -> str:
    return f"{row['core']}: {name}" if cores else name


def _last(source: str) -> str:
    """A path's last part, with its line."""
    return source.rsplit("/", 1)[-1]
