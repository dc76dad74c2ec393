"""`nki_hf rank DIR`: the kernels of a folder, or the rounds of a run, best first, and the picture of the journey."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from nki_hf.chips import get_chip
from nki_hf.errors import require
from nki_hf.tasks import load_task
from nki_hf.tools.error_bands import task_band
from nki_hf.tools.judging.tried_task import try_task
from nki_hf.tools.output_files import check_writable, whole_file, writing
from nki_hf.tools.progress import working
from nki_hf.tools.screen import Screen
from nki_hf.tools.searching.candidates import candidates
from nki_hf.tools.searching.facts import failed_record, times_of
from nki_hf.tools.searching.options import judge_options, round_limit, try_with
from nki_hf.tools.searching.picture import FORMATS, ladder_lines, picture
from nki_hf.tools.searching.run import Run
from nki_hf.tools.searching.workers import Workers, processes_of

__all__ = ["command"]

_MOST_FILES = 10_000
_JUDGED = ("task", "layout", "check", "at", "chip", "lnc", "dtype", "rtol", "timeout", "order", "seed")
"""Options of judging now."""


def command(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Folder of kernel files, or the --run folder of a loop.")],
    task: Annotated[str, typer.Option(help="The task of kernel files; a run knows its own.")] = "",
    layout: Annotated[str, typer.Option(help="Axes as the kernels take them, e.g. q=ds,k=ds,v=ds.")] = "",
    check: Annotated[str, typer.Option(help="Sizes whose values are judged, e.g. 512,1024.")] = "",
    at: Annotated[str, typer.Option(help="Sizes that are timed, e.g. 4096.")] = "",
    chip: Annotated[str, typer.Option(help="Chips, e.g. trn1,trn2.")] = "",
    lnc: Annotated[int, typer.Option(help="Cores of the launch, 1 or 2.")] = 1,
    dtype: Annotated[str, typer.Option(help="Element type of the run; default: the task's.")] = "",
    rtol: Annotated[float, typer.Option(help="Allowed relative error of a row; 0 = from an ideal kernel.")] = 0.0,
    timeout: Annotated[float, typer.Option(help="Seconds for each process of a judgement.")] = 60.0,
    order: Annotated[str, typer.Option(help="program, or the window of the modelled compiler, e.g. 64.")] = "64",
    processes: Annotated[int, typer.Option(help="Kernels judged at a time; 0 = one per core.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the inputs; -1 = a new one.")] = -1,
    image: Annotated[Path | None, typer.Option("--picture", help="Write the journey's picture, a .png or .svg file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Rank kernels: those of a folder are judged now (in the order of their names), a run's rounds have been.

    Exit code 0: a kernel passes; 1: none does; 2: wrong use.
    """
    if not folder.is_dir():
        raise ValueError(f"folder={folder} is not a folder: give one with kernel files, or the --run of a loop.")
    if image is not None:
        if image.suffix[1:] not in FORMATS:
            raise ValueError(f"picture={image} is no picture: its name ends in .png or .svg.")
        check_writable(image, "picture")
        require("nki_hf rank --picture", "plot", "matplotlib")
    settings, parts = Run(folder).settings, list[Path]()
    if settings is not None:
        given = [name for name in _JUDGED if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"]
        if given and (given != ["task"] or settings["task"] not in (task, str(Path(task).absolute()))):
            anew = shlex.join(["nki_hf", "rank", str(folder / "kernels"), "--task", settings["task"]])
            raise ValueError(
                f"{', '.join(given)}: the rounds of run={folder} were judged with the run's own options: leave these out, or "
                f"rank its kernels anew: {anew}."
            )
        Run(folder).check()
        task = settings["task"]
        rows = [_of_round(item) for item in Run(folder).rounds()]
    else:
        if not task:
            raise ValueError(f"folder={folder} holds no run of a loop: give the --task of its kernels.")
        options = judge_options(
            layout=layout,
            check=check,
            at=at,
            chip=chip,
            lnc=lnc,
            dtype=dtype,
            rtol=rtol,
            timeout=timeout,
            order=order,
            seed=seed,
        )
        try_with(task, options)
        files, parts = candidates(folder, task)
        if not files or len(files) > _MOST_FILES:
            raise ValueError(f"folder={folder} has {len(files)} kernel files (*.py): it needs 1 to {_MOST_FILES:,}.")
        rows = _judged(folder, files, task, options, processes_of(processes))
    ranked = sorted(rows, key=lambda row: (not row["passed"], -row["score"], row["number"]))
    if image is not None:
        panels = _panels(rows, task)
        if not panels:
            raise ValueError(f"picture={image}: no kernel passes, there is nothing to draw.")
        with writing(image, "picture"), whole_file(image) as file:
            file.write(picture(panels, f"{Path(task).name}: simulated, not measured", image.suffix[1:]))
    if as_json:
        left_out = [path.name for path in parts]
        print(json.dumps({"task": task, "bands": _bands(ranked, task), "kernels": ranked, "not_ranked": left_out}, indent=1))
    else:
        _show(ranked, task, Screen())
        if parts:
            Screen().say(f"not ranked, the task or modules without a kernel: {', '.join(path.name for path in parts)}")
        if image is not None:
            Screen().say(f"wrote {image}")
    raise typer.Exit(0 if any(row["passed"] for row in rows) else 1)


def _of_round(item: dict[str, Any]) -> dict[str, Any]:
    name = f"round {item['round']}" + (f" (from {item['parent']})" if item["parent"] is not None else "")
    return {"number": item["round"], "name": name, **{key: item[key] for key in ("passed", "score", "us", "sentence")}}


def _judged(folder: Path, files: list[Path], task: str, options: dict[str, Any], processes: int) -> list[dict[str, Any]]:
    jobs = [{"kind": "judge", "path": str(path), "task": task, "options": options} for path in files]
    rows: list[dict[str, Any]] = []
    with working(f"nki_hf rank of {folder}", len(files)) as work, Workers(min(processes, len(files))) as workers:
        for number, answer in workers.run(jobs, round_limit(options)):
            work.advance(f"after {files[number].name}")
            record = answer.get("record") or failed_record(str(files[number]), task, answer.get("error", "no answer"))
            rows.append(
                {
                    "number": number,
                    "name": files[number].name,
                    "passed": record["passed"],
                    "score": record["score"],
                    "us": times_of(record),
                    "sentence": record["sentence"],
                }
            )
    return sorted(rows, key=lambda row: row["number"])


def _panels(rows: list[dict[str, Any]], task: str) -> list[dict[str, Any]]:
    cases = dict.fromkeys(case for row in rows for case in row["us"])
    found = []
    for case in cases:
        chip, _, size = case.partition("@")
        points = [(row["number"], row["us"].get(case)) for row in rows]
        lines = ladder_lines(task, int(size), get_chip(chip).name)
        found.append({"title": f"{chip}, size {int(size):,}", "points": points, "lines": lines})
    return found


def _bands(ranked: list[dict[str, Any]], task: str) -> dict[str, str]:
    """The error band of the times on each chip."""
    chips = sorted({case.partition("@")[0] for row in ranked for case in row["us"]})
    try:
        try_task(task)
        found = load_task(task)
    except ValueError as error:  # a run's rounds have been judged: their table does not need the task's file
        return dict.fromkeys(chips, f"the error band of these times is not known: {error}")
    return {chip: task_band(found, chip) for chip in chips}


def _show(ranked: list[dict[str, Any]], task: str, screen: Screen) -> None:
    cases = list(dict.fromkeys(case for row in ranked for case in row["us"]))
    best = ranked[0]["score"] if ranked and ranked[0]["passed"] else 0.0
    rows = []
    for place, row in enumerate(ranked, 1):
        times = [f"{row['us'][case]:,.1f}" if case in row["us"] else "" for case in cases]
        share = f"{row['score'] / best:.0%}" if row["passed"] and best else ""
        verdict = "pass" if row["passed"] else row["sentence"].partition(":")[0]
        rows.append([f"{place} {row['name']}" if row["passed"] else row["name"], *times, f"{row['score']:.3f}", share, verdict])
    head = ["kernel", *(f"{case} us (sim)" for case in cases), "score", "of the best", "verdict"]
    screen.table(head, rows, title=f"{Path(task).name}: simulated, not measured", left=(0, len(head) - 1))
    for row in ranked:
        if not row["passed"]:
            screen.say(f"{row['name']}: {row['sentence']}")
    for band in dict.fromkeys(_bands(ranked, task).values()):
        screen.say(band)
