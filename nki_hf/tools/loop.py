"""`nki_hf loop`: a search for a fast kernel by a command of yours: it writes kernels, the judge says what they are worth."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from nki_hf.tasks import load_task
from nki_hf.tools.judging.layouts import parsed
from nki_hf.tools.judging.named_kernels import named
from nki_hf.tools.progress import working
from nki_hf.tools.screen import Screen
from nki_hf.tools.searching.agent import words_of
from nki_hf.tools.searching.clock import Clock
from nki_hf.tools.searching.looping import loop
from nki_hf.tools.searching.options import judge_options, round_limit, try_with
from nki_hf.tools.searching.request import remembered
from nki_hf.tools.searching.rounds import best_of
from nki_hf.tools.searching.run import Run
from nki_hf.tools.searching.workers import Workers, processes_of
from nki_hf.tools.tuning.study import source_digest

__all__ = ["command"]

_MOST_ROUNDS = 1_000_000
_HELD = ("agent", "timeout", "rounds", "budget")
"""What may be given anew, and holds from then on."""
_FIXED = ("task", "start", "beam", "tries", "seed", "remember")
_JUDGED = {**{name: name for name in ("layout", "check", "at", "chip", "lnc", "dtype", "rtol")}, "order": "window"}
_ANY = (("seed", -1), ("task", ""), ("start", ""))
"""Values that ask for nothing."""
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def command(
    context: typer.Context,
    run: Annotated[Path, typer.Option(help="Folder of the run; one that holds a run goes on with it.")],
    agent: Annotated[str, typer.Option(help="Command that reads a request (JSON) and writes a kernel; no shell.")] = "",
    task: Annotated[str, typer.Option(help="A task's name, or a file with TASK = Task(...).")] = "",
    rounds: Annotated[int, typer.Option(help="Rounds (calls of the agent) of the whole run.")] = 6,
    beam: Annotated[int, typer.Option(help="Kernels that are worked on at a time: the best so far.")] = 1,
    tries: Annotated[int, typer.Option(help="Rounds per kernel of the beam in one generation.")] = 1,
    budget: Annotated[str, typer.Option(help="Time for the whole run, e.g. 90s, 30m or 2h; empty = no limit.")] = "",
    start: Annotated[str, typer.Option(help="Kernel to start from: FILE.py; judged as round 0.")] = "",
    remember: Annotated[list[Path], typer.Option(help="Folder of an earlier run whose gains are remembered.")] = [],  # noqa: B006
    layout: Annotated[str, typer.Option(help="Axes as the kernels take them, e.g. q=ds,k=ds,v=ds.")] = "",
    check: Annotated[str, typer.Option(help="Sizes whose values are judged, e.g. 512,1024.")] = "",
    at: Annotated[str, typer.Option(help="Sizes that are timed, e.g. 4096.")] = "",
    chip: Annotated[str, typer.Option(help="Chips, e.g. trn1,trn2.")] = "",
    lnc: Annotated[int, typer.Option(help="Cores of the launch, 1 or 2.")] = 1,
    dtype: Annotated[str, typer.Option(help="Element type of the run; default: the task's.")] = "",
    rtol: Annotated[float, typer.Option(help="Allowed relative error of a row; 0 = from an ideal kernel.")] = 0.0,
    order: Annotated[str, typer.Option(help="program, or the window of the modelled compiler, e.g. 64.")] = "64",
    timeout: Annotated[float, typer.Option(help="Seconds that the agent has for a round.")] = 600.0,
    judge_timeout: Annotated[float, typer.Option(help="Seconds for each process of a judgement.")] = 60.0,
    processes: Annotated[int, typer.Option(help="Rounds at a time; 0 = one per core.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of what rounds are reminded of and judged on; -1 = a new one.")] = -1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per round.")] = False,
) -> None:
    """Search for a fast kernel: each round your command writes a kernel and the judge says what it is worth.

    The command and the kernels run with all of your rights. A round whose command hangs, dies or writes junk costs its
    own time. A run that was interrupted or killed goes on with the same --run; agent, rounds, budget and the limits of time may
    be given anew, and hold from then on. What else makes the run stays as it was: another value is refused.

    Exit code 0: a kernel passes; 1: none does; 2: wrong use.
    """
    if not 0 <= rounds <= _MOST_ROUNDS:
        raise ValueError(f"rounds={rounds} is no number of rounds: it is 0 to {_MOST_ROUNDS:,}.")
    if not 1 <= beam <= 1000 or not 1 <= tries <= 1000:
        raise ValueError(f"beam={beam}, tries={tries}: each is 1 to 1,000.")
    if not 0 < timeout <= 86_400:
        raise ValueError(f"timeout={timeout} is no time: it is above 0 and at most 86,400 s.")
    if not -1 <= seed < 1 << 31:
        raise ValueError(f"seed={seed} is no seed: it is 0 to 2,147,483,647; -1 = a new one.")
    _seconds(budget)
    count = processes_of(processes)
    given = {name for name in context.params if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"}
    words = words_of(agent) if "agent" in given else []
    folder = Run(run)
    known = folder.settings
    if known is None:
        folder.check_new()
        if not words or not task:
            raise ValueError(f"run={run} has no run yet: a new one needs --agent and --task.")
    options = judge_options(
        layout=layout, check=check, at=at, chip=chip, lnc=lnc, dtype=dtype, rtol=rtol, order=order, timeout=judge_timeout
    )
    if task:
        try_with(task, options)
    asked: dict[str, Any] = {
        "agent": words,
        "rounds": rounds,
        "budget": budget,
        "task": _anywhere(task),
        "beam": beam,
        "tries": tries,
        "judge": options,
        "timeout": timeout,
        "start": _source(start, task) if start else "",
        "remember": [str(path.resolve()) for path in remember],
        "seed": seed,
    }
    if known is None:
        parsed(layout, load_task(task))
    asked["task_digest"] = _digest(asked["task"])
    asked["folder"] = os.getcwd()
    screen = Screen()
    total = (known or {}).get("rounds", rounds) if "rounds" not in given else rounds
    with working(f"nki_hf loop in {run}", total or None) as work, Workers(count) as workers:
        if known is None:
            _try(task, options, workers)
        with folder.held():
            settings = folder.settings
            if settings is None:
                asked["seed"] = secrets.randbits(31) if seed == -1 else seed
                asked["remembered"] = remembered([_other(path) for path in remember])
                folder.begin(asked)
                settings = asked
            else:
                before, settings = settings, _same(run, settings, asked, given)
                folder.check()
                if settings != before:  # written when nothing is left that refuses the command
                    for sentence in _changes(before, settings):
                        print(sentence, file=sys.stderr)
                    folder.begin(settings)
            try_with(settings["task"], settings["judge"])
            allowed = _seconds(settings["budget"])

            def say(line: Mapping[str, Any]) -> None:
                work.advance(f"after round {line['round']}")
                if as_json:
                    print(json.dumps(line), flush=True)
                else:
                    screen.say(f"round {line['round']}: {line['sentence']}")

            done = folder.rounds(mend=True)
            least = max((item["clock_s"] for item in done), default=0.0)
            with Clock(folder.clock, least) as clock:
                why = loop(folder, settings, workers, rounds=settings["rounds"], budget=allowed, clock=clock, say=say)
            best = best_of(folder.rounds())
    if not as_json:
        screen.say(f"{why}.")
        if best is not None:
            screen.say(f"best: round {best['round']}, {folder.kernel(best['round'])}: {best['sentence']}")
            screen.line(f"nki_hf rank {shlex.quote(str(run))} shows the whole run")
        screen.say("PASS" if best else "FAIL")
    raise typer.Exit(0 if best else 1)


def _same(run: Path, settings: dict[str, Any], asked: Mapping[str, Any], given: set[str]) -> dict[str, Any]:
    """The settings of a run that goes on, with those of `_HELD` and the judge's limit that are `given` by name.

    Raises:
      ValueError: what makes the run comparable is given and another, or its task's file is another by now.
    """
    found = {**settings, "judge": dict(settings["judge"])}
    for name in _HELD:
        found[name] = asked[name] if name in given else settings.get(name, asked[name])
    if "agent" in given:
        found["folder"] = asked["folder"]
    if "judge_timeout" in given:
        found["judge"]["timeout"] = asked["judge"]["timeout"]
    pairs = {name: (asked[name], settings.get(name, asked[name])) for name in _FIXED}
    pairs |= {name: (asked["judge"][key], settings["judge"][key]) for name, key in _JUDGED.items()}
    digest, own_task = settings.get("task_digest", ""), settings["task"]
    if "task" in given and digest and asked["task_digest"] == digest and _entry(asked["task"]) == _entry(own_task):
        found["task"] = asked["task"]  # the same contents, wherever they lie
        pairs["task"] = (own_task, own_task)
    for name, (value, own) in pairs.items():
        if name in given and value != own and (name, value) not in _ANY:
            shown = "another kernel" if name == "start" else f"{value!r}"
            raise ValueError(f"{name}={shown} is not that of run={run}, which goes on as it began: give another --run.")
    if digest and _digest(found["task"]) != digest:
        what = "the file or what it imports is another" if Path(_file(found["task"])).is_file() else "the file is gone"
        raise ValueError(
            f"task={found['task']} is not what it was when run={run} began: {what}, and its rounds would not compare: "
            "restore it (or give --task with the same file elsewhere), or give another --run."
        )
    return found


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """A sentence for each setting that holds from now on and was another one."""
    pairs = [(name, before[name], after[name]) for name in _HELD if name in before]
    pairs.append(("judge_timeout", before["judge"]["timeout"], after["judge"]["timeout"]))
    return [f"{name}={_shown(new)} from now on; it was {_shown(old)}." for name, old, new in pairs if old != new]


def _shown(value: Any) -> str:
    return shlex.join(value) if isinstance(value, list) else f"{value}" or "no limit"


def _file(task: str) -> str:
    """The file of a task; empty for a task of ours."""
    file, separator, _ = task.partition(".py")
    return file + separator if separator else ""


def _entry(task: str) -> str:
    """Which of its file's tasks it is."""
    return task.removeprefix(_file(task)).removeprefix(":") or "TASK"


def _anywhere(task: str) -> str:
    """The task with its file's full path, so that it is found from every folder."""
    file = _file(task)
    return str(Path(file).absolute()) + task.removeprefix(file) if file else task


def _digest(task: str) -> str:
    """Of a task's file and what it imports; empty for a task of ours."""
    file = _file(task)
    return "" if not file else source_digest(Path(file)) if Path(file).is_file() else "gone"


def _try(task: str, options: dict[str, Any], workers: Workers) -> None:
    """Options that mean nothing are found out before an agent is asked: by judging a file that is empty."""
    with tempfile.TemporaryDirectory(prefix="nki_hf_loop_") as folder:
        path = Path(folder) / "empty.py"
        path.write_text("")
        list(workers.run([{"kind": "judge", "path": str(path), "task": task, "options": options}], round_limit(options)))


def _source(start: str, task: str) -> str:
    if not task:
        raise ValueError("start is a kernel of a task: give --task too.")
    item = named(start, task)
    if not item.path.endswith(".py"):
        raise ValueError(f"start={start!r} is not a file: give FILE.py with one kernel.")
    return Path(item.path).read_text(encoding="utf-8", errors="replace")


def _other(path: Path) -> Run:
    if Run(path).settings is None:
        raise ValueError(f"remember={path} is not the folder of a run: give one that nki_hf loop --run has made.")
    return Run(path)


def _seconds(text: str) -> float | None:
    if not text:
        return None
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smh]?)", text, re.ASCII)
    if not match:
        raise ValueError(f"budget={text!r} is no time: write 90s, 30m or 2h.")
    if not float(match[1]):
        raise ValueError(f"budget={text!r} leaves no time: it is above 0; empty = no limit.")
    return float(match[1]) * _UNITS[match[2]]
