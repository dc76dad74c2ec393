"""`nki_hf tune`: the constants of a kernel with which it is fastest on a chip, simulated; without a device."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from nki_hf.chips import CHIPS, get_chip
from nki_hf.tasks import load_task
from nki_hf.tools.judging.named_kernels import named
from nki_hf.tools.judging.times import TURNS_OF_INPUTS
from nki_hf.tools.modelled import window_of
from nki_hf.tools.progress import working
from nki_hf.tools.screen import Screen
from nki_hf.tools.searching.options import judge_options, round_limit, try_with
from nki_hf.tools.searching.workers import Workers, processes_of
from nki_hf.tools.shape import SHAPE_HELP
from nki_hf.tools.tuning.cases import file_cases, own_cases
from nki_hf.tools.tuning.own import tunable
from nki_hf.tools.tuning.plan_table import made
from nki_hf.tools.tuning.samplers import SAMPLERS, Sampled
from nki_hf.tools.tuning.search import Tuned, exhaustive, sampled
from nki_hf.tools.tuning.space import key_of, space_of
from nki_hf.tools.tuning.study import cache_folder

__all__ = ["command"]

_JUDGED = 5
"""Of the fastest, how many are judged at most until one passes."""
_SHOWN = 10
_OF_FILES = {"layout", "at", "check", "dtype", "given"}
"""Options that mean nothing to a kernel of ours."""
_SAME = 1e-3
_OLDER = (
    "the judge times a kernel otherwise than the search did: its results are of another kernel, which read what is no longer "
    "there. They were dropped: run the command again (with --storage: give another one)."
)
"""Where a search and the judgement of its fastest differ by more than `_SAME`: both schedule the same instructions, but for
loops that turn by inputs, which each draws its own.
"""

_UNJUDGED = (
    "none of the fastest passes: values are judged at sizes {sizes}, whatever is tuned for. --check gives other sizes, and "
    "--no-judge leaves values out."
)


def command(
    context: typer.Context,
    kernel: Annotated[str, typer.Argument(help=f"FILE.py or FILE.py:NAME, or a kernel of ours: {', '.join(tunable())}.")],
    const: Annotated[list[str], typer.Option(help="Constant and values: NAME=512,1024, NAME=1..3, NAME=2..16:2.")] = [],  # noqa: B006
    task: Annotated[str, typer.Option(help="The task of a file.")] = "",
    shape: Annotated[str, typer.Option(help=f"The problem of a kernel of ours. {SHAPE_HELP}")] = "",
    layout: Annotated[str, typer.Option(help="Axes as the kernel takes them, e.g. q=ds,k=ds,v=ds.")] = "",
    at: Annotated[str, typer.Option(help="Sizes of the task that are tuned for, e.g. 2048,4096.")] = "",
    check: Annotated[str, typer.Option(help="Sizes at which values of the fastest are judged; default: the task's.")] = "",
    chip: Annotated[str, typer.Option(help="Chips, e.g. trn1,trn2; each is tuned for by itself.")] = "",
    lnc: Annotated[int | None, typer.Option(help="Cores, 1 or 2; default: 1 for a file, each chip's own for ours.")] = None,
    dtype: Annotated[str, typer.Option(help="Element type of the run; default: the task's.")] = "",
    given: Annotated[list[str], typer.Option(help="A constant that is not tuned: NAME=VALUE.")] = [],  # noqa: B006
    order: Annotated[str, typer.Option(help="program, or a window; default: 64 for a file, program for ours.")] = "",
    sampler: Annotated[str, typer.Option(help=f"exhaustive, or one of optuna's: {', '.join(SAMPLERS)}.")] = "exhaustive",
    trials: Annotated[int, typer.Option(help="Results that a sampler's study is to have.")] = 60,
    storage: Annotated[str, typer.Option(help="A file or database address that the processes of one study share.")] = "",
    seed: Annotated[int, typer.Option(help="Seed of a sampler; -1 = a new one.")] = -1,
    processes: Annotated[int, typer.Option(help="Processes; 0 = one per core.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds for one trial, and for each process of a judgement.")] = 60.0,
    cache: Annotated[str, typer.Option(help="Folder of results; default: the user's cache folder; off = none.")] = "",
    judged: Annotated[bool, typer.Option("--judge/--no-judge", help="Judge the fastest: values, limits, races.")] = True,
    table: Annotated[bool, typer.Option("--table", help="Print the plan table of a kernel of ours, for its source.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per case.")] = False,
) -> None:
    """Tune the constants of a kernel: each combination is traced on shapes alone and scheduled; the fastest is judged.

    A file is Python: it runs with all of your rights. Exit code 0: tuned; 1: nothing runs, the fastest fail, or the
    judge times them otherwise; 2: wrong use.
    """
    folder = None if cache == "off" else Path(cache) if cache else cache_folder()
    if table:
        with working("nki_hf tune --table"), Workers(processes_of(processes)) as workers:
            print(made(kernel, workers, folder))
        return
    if not const:
        raise ValueError("const: nothing is to be tuned: give --const NAME=VALUES, once for each constant.")
    space = space_of(const)
    if sampler != "exhaustive" and sampler not in SAMPLERS:
        raise ValueError(f"sampler={sampler!r} is not known: it is exhaustive, {', '.join(SAMPLERS)}.")
    if storage and sampler == "exhaustive":
        raise ValueError("storage is that of a sampler's study: give --sampler tpe too.")
    if not 1 <= trials <= 1_000_000:
        raise ValueError(f"trials={trials} is no number of trials: it is 1 to 1,000,000.")
    if not -1 <= seed < 1 << 31:
        raise ValueError(f"seed={seed} is no seed: it is 0 to 2,147,483,647; -1 = a new one.")
    flags = {name for name in context.params if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"}
    unused = sorted(flags & {"trials", "seed"})
    if sampler == "exhaustive" and unused:
        raise ValueError(f"{', '.join(unused)}: of a sampler, and every combination is gone through: give --sampler tpe too.")
    own = kernel in tunable()
    if shape and not task and not own:
        raise ValueError(f"kernel={kernel!r} has no plan constants to tune for a --shape: {', '.join(tunable())} has.")
    if own and flags & _OF_FILES:
        raise ValueError(f"{', '.join(sorted(flags & _OF_FILES))}: of a file; a kernel of ours has its --shape: leave it out.")
    if own == bool(task) or own != bool(shape):
        raise ValueError("a file is tuned for a --task, a kernel of ours for a --shape: give one of them.")
    options = judge_options(
        layout=layout,
        check=check,
        at=at,
        chip=chip,
        lnc=1 if lnc is None else lnc,
        dtype=dtype,
        const=given,
        timeout=timeout,
        order=order or "64",
    )
    twice = sorted(set(space) & set(options["constants"]))
    if twice:
        raise ValueError(f"given: {', '.join(twice)} is tuned (--const) and given (--given): name it once.")
    if own:
        chips = [get_chip(name).name for name in chip.split(",") if name] or list(CHIPS)
        cases = own_cases(kernel, shape, chips, lnc, window_of(order or "program"), space, folder)
    else:
        try_with(task, options)
        item = named(kernel, task, layout)
        cases = file_cases(item, task, options, folder)
    failed = False
    with working(f"nki_hf tune of {kernel}", len(cases)) as work, Workers(processes_of(processes)) as workers:
        for case in cases:
            work.begin(case.label)
            if sampler == "exhaustive":
                found = exhaustive(case, space, workers, timeout)
            else:
                study = Sampled(space, sampler, storage, case.study.name, trials, None if seed == -1 else seed, timeout)
                found = sampled(case, space, study, workers, timeout)
            verdicts: list[dict[str, Any]] = []
            older = False
            if judged and not own:
                base = {"kind": "judge", "path": item.path, "task": task}
                size = int(case.label.partition("@")[2])
                asked = {**options, "layout": item.layout, "at": [size], "chip": [case.job["chip"]]}
                verdicts, older = _judged(found, base, asked, workers)
            if older:
                case.study.forget()
            work.advance()
            failed |= older
            failed |= not found.ranked or bool(verdicts and not verdicts[-1]["passed"])
            if as_json:
                print(json.dumps(_plain(found, verdicts)))
            else:
                _show(found, verdicts, Screen())
            if verdicts and not verdicts[-1]["passed"]:
                sizes = options["check"] or list(load_task(task).check)
                print(f"{case.label}: {_UNJUDGED.format(sizes=', '.join(map(str, sizes)))}", file=sys.stderr)
            if older:
                print(f"{case.label}: {_OLDER}", file=sys.stderr)
    raise typer.Exit(1 if failed else 0)


def _judged(found: Tuned, base: dict[str, Any], options: dict[str, Any], workers: Workers) -> tuple[list[dict[str, Any]], bool]:
    """Verdicts of the fastest, until one passes; and whether one of them was timed otherwise than in the search."""
    verdicts, older = [], False
    for constants, us in found.ranked[:_JUDGED]:
        asked = {**options, "constants": {**options["constants"], **constants}}
        answer = next(workers.run([{**base, "options": asked}], round_limit(options)))[1]
        record = answer.get("record") or {"passed": False, "sentence": answer.get("error", ""), "times": [], "warnings": []}
        times = [row["us"] for row in record["times"]]
        if times and not any(TURNS_OF_INPUTS in warning for warning in record["warnings"]):
            older |= abs(times[0] / us - 1) > _SAME
        verdicts.append(
            {
                "constants": constants,
                "us": us,
                "judged_us": times[0] if times else None,
                "passed": record["passed"],
                "sentence": record["sentence"],
            }
        )
        if record["passed"]:
            break
    return verdicts, older


def _plain(found: Tuned, verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    passed = next((row for row in verdicts if row["passed"]), None)
    best = passed or ({"constants": found.ranked[0][0], "us": found.ranked[0][1]} if found.ranked and not verdicts else None)
    return {
        "case": found.case.label,
        "band": found.case.band,
        "study": found.case.study.name,
        "best": best and best["constants"],
        "us": best and best["us"],
        "start_us": found.start_us,
        "trials": [{"constants": c, **_shown(r)} for c, r in found.rows],
        "reloaded": len(found.known),
        "shared": len(found.shared),
        "not_kept": sorted(found.programs),
        "seconds": found.seconds,
        "judged": verdicts,
    }


def _shown(result: Any) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key in ("us", "floor_us", "pruned", "failed")}


def _show(found: Tuned, verdicts: list[dict[str, Any]], screen: Screen) -> None:
    ranked = found.ranked
    names = list(found.rows[0][0]) if found.rows else []
    rows = [
        [*(str(constants[name]) for name in names), f"{us:,.1f}", f"{us / ranked[0][1]:.3f}"]
        for constants, us in ranked[:_SHOWN]
    ]
    screen.table([*names, "us (sim)", "of the fastest"], rows, title=f"{found.case.label}: simulated, not measured", left=())
    fails = [result["failed"] for _, result in found.rows if "failed" in result]
    here = [result for constants, result in found.rows if key_of(constants) not in found.known | found.shared]
    scheduled, pruned, failed = (sum(word in result for result in here) for word in ("us", "pruned", "failed"))
    others = f", {len(found.shared)} are of the study's other commands" if found.shared else ""
    screen.say(
        f"{len(found.rows)} combinations in {found.seconds:,.1f} s: {scheduled} scheduled, {pruned} ruled out by their "
        f"busiest engine, {failed} failed; {len(found.known)} were known{others}"
    )
    if fails:
        screen.say(f"first failure: {fails[0]}")
    if found.programs:
        screen.say(f"no result is kept: the kernel's file asks for what no result names ({', '.join(sorted(found.programs))})")
    if found.start_us is not None and ranked:
        gain = found.start_us / ranked[0][1] - 1
        best = f"{gain:+.1%}" if gain > 0 else "no gain: the kernel's own constants stay best"
        screen.say(f"without tuning ~ {found.start_us:,.1f} us; tuned ~ {ranked[0][1]:,.1f} us, {best}")
    screen.say(found.case.band)
    for row in verdicts:
        screen.say(f"{row['constants']}: {row['sentence']}")
