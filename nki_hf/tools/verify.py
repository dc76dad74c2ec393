"""`nki_hf verify`: run a kernel file on generated inputs, and say whether it is right and would be taken by the chip."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from nki_hf.chips import get_chip
from nki_hf.errors import FaultRecord, KernelFault
from nki_hf.observers.accumulation import foreign_accumulation
from nki_hf.observers.capacity import report as capacity_report
from nki_hf.observers.races import Trust, races
from nki_hf.observers.short_path import short_path
from nki_hf.problem import Problem
from nki_hf.settings import settings
from nki_hf.sim import LaunchResult, SimOptions, launch
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.sim.stream.events import Event
from nki_hf.sim.uncollected import uncollected
from nki_hf.testing import DISTRIBUTIONS
from nki_hf.tools.option_values import constant_of, sizes_of
from nki_hf.tools.output_files import check_writable, whole_file, writing
from nki_hf.tools.printable import printable
from nki_hf.tools.program import sentence
from nki_hf.tools.progress import Work, working
from nki_hf.tools.screen import Screen
from nki_hf.tools.shape import LARGEST, SHAPE_HELP, problem_of
from nki_hf.tools.verify_judge import Judgement, judge
from nki_hf.tools.verify_subject import (
    DTYPES,
    LAYOUT,
    ArraySubject,
    AttentionSubject,
    Case,
    UsageError,
    check_call,
    describe,
    load_callable,
    never_ending,
    parameters,
    place_of,
    position,
)

__all__ = ["command", "never_written", "run"]

Array = np.ndarray[Any, Any]

_DTYPE = "bfloat16"
_SHAPES = tuple(f"b=1,hq=2,hkv=1,sq={rows},skv=512,d=64{mask}" for mask in ("", ",causal") for rows in (256, 128, 1))
"""What a kernel is run on that no shape is given for: the first that it takes. Some take one tile of rows, or one row."""
_LAYOUT = ",".join(f"{name}={axes}" for name, axes in LAYOUT.items())
_PROVEN = Trust(addresses=False, hbm=False, indices=False)


def run(
    subject: AttentionSubject | ArraySubject,
    *,
    options: SimOptions | None = None,
    lnc: int = 1,
    seed: int = 0,
    distributions: Sequence[str] = DISTRIBUTIONS,
    work: Work | None = None,
) -> dict[str, Any]:
    """Verify one kernel; `work` is told of each distribution.

    Returns plain JSON types: `passed`, `seed`, `chip`, `lnc`, `cases` (one per distribution, each with the judgement of every
    output or the fault that stopped it), `faults` (records of faults, races and undefined accumulation), `inferred`
    (pairs whose order no public source promises, see docs/races.md; not with `options.third_party`), `capacity` (high-water
    marks), `warnings` (what depends on a choice that public sources leave open, output elements that are written twice, and
    with `options.third_party` the limits that are unsure).
    """
    options = options or SimOptions()
    cases: list[dict[str, Any]] = []
    faults: list[dict[str, Any]] = []
    capacity: list[dict[str, Any]] = []
    inferred: list[dict[str, Any]] = []
    unsure: set[str] = set()
    observed: Future[tuple[Any, ...]] | None = None
    shows = False
    beside = ThreadPoolExecutor(max_workers=1)
    unwritten: list[Array | None] | None = None
    first: LaunchResult | None = None  # whose recorded program runs on the inputs of the other distributions
    for number, (distribution, case) in enumerate(_ahead(subject, distributions, seed)):
        if work is not None:
            work.advance(f"{distribution} inputs", count=number - work.done)
        check_call("kernel", subject.kernel, case.arguments)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                if first is None or first.program is None:
                    recording = replace(options, record=True)
                    result = first = launch(subject.kernel, (), dict(case.arguments), options=recording, lnc=lnc)
                else:
                    result = replace(first, outputs=first.program(arrays_of(case.arguments)))
                again = _failed_tiles(result, case)
                if again:
                    result = launch(subject.kernel, (), {**case.arguments, "exact": again}, options=options, lnc=lnc)
                    unsure.add(f"{distribution}: {len(again):,} query tiles failed the certificate; a second launch names them")
            unsure |= {str(item.message) for item in caught if issubclass(item.category, SimulatorWarning)}
        except KernelFault as fault:
            cases.append({"distribution": distribution, "verdict": "fault", "detail": str(fault), "outputs": []})
            if fault.record.to_dict() not in faults:
                faults.append(fault.record.to_dict())
            continue
        except (Exception, SystemExit) as error:  # whatever the kernel's own code raises is a finding about it
            cases.append({"distribution": distribution, "verdict": "error", "detail": describe(error), "outputs": []})
            file, line = position(error)
            record = FaultRecord(
                kind="error",
                instruction="kernel",
                message=f"the kernel raised {type(error).__name__}: {error}",
                limit="a kernel returns its outputs",
                file=file,
                line=line,
            ).to_dict()
            if record not in faults:
                faults.append(record)
            continue
        if observed is None:  # races and memory follow from the instructions alone, which are the same for every input
            observed = beside.submit(_observed, result.events, options)  # while the kernel runs on other inputs
        if unwritten is None or first is None or first.program is None:  # else it follows from the same instructions
            unwritten = never_written(result)
        cases.append(_judge_case(distribution, result, case, unwritten))
        shows = shows or any(np.any(item.reference) for item in case.expected)
    beside.shutdown()
    if observed is not None:
        certain, inferred, accumulated, capacity = observed.result()
        faults[:0] = certain
        if options.third_party:
            unsure |= {f"{record['message']}, {record['limit']}" for record in accumulated}
        else:
            faults += accumulated
    if cases and not shows and all(case["verdict"] == "pass" for case in cases):
        for entry in cases:
            entry.update(verdict="reference", detail="every reference is all zero: it cannot tell a kernel that does nothing")
    passed = not faults and bool(cases) and all(case["verdict"] == "pass" for case in cases)
    return {
        "passed": passed,
        "seed": seed,
        "chip": options.chip.name,
        "lnc": lnc,
        "cases": cases,
        "faults": faults,
        "inferred": inferred,
        "capacity": capacity,
        "warnings": sorted(unsure),
    }


def _observed(events: Sequence[Event], options: SimOptions) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Races, pairs whose order no public source promises, undefined accumulation, and the memory's high-water marks."""
    certain = [race.record().to_dict() for race in races(events)]
    inferred: list[dict[str, Any]] = []
    if not options.third_party:
        every = (race.record().to_dict() for race in races(events, trust=_PROVEN))
        inferred = [record for record in every if record not in certain]
    accumulated = [record.to_dict() for record in foreign_accumulation(events, options.chip)]
    return certain, inferred, accumulated, capacity_report(events, options.chip)


def _ahead(subject: AttentionSubject | ArraySubject, distributions: Sequence[str], seed: int) -> Iterator[tuple[str, Case]]:
    """Each distribution with its case; our own reference makes the next one while the kernel runs on this one."""
    if subject.reference is not None:  # a user's code stays in this thread
        yield from ((distribution, subject.case(distribution, seed)) for distribution in distributions)
        return
    with ThreadPoolExecutor(max_workers=1) as pool:
        coming = [pool.submit(subject.case, distribution, seed) for distribution in distributions[:1]]
        for distribution, following in zip(distributions, (*distributions[1:], ""), strict=True):
            case = coming.pop().result()
            if following:
                coming.append(pool.submit(subject.case, following, seed))
            yield distribution, case


def _failed_tiles(result: LaunchResult, case: Case) -> tuple[tuple[int, ...], ...]:
    """Batch, query head and number of each query tile that the kernel says is not right."""
    if not case.certifies:
        return ()
    return tuple(tuple(map(int, place)) for place in np.argwhere(np.asarray(result.outputs[-1])))


def arrays_of(arguments: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays among a kernel's arguments."""
    return {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}


def _judge_case(distribution: str, result: LaunchResult, case: Case, unwritten: Sequence[Array | None]) -> dict[str, Any]:
    outputs = []
    returned, wanted = len(result.outputs) - case.certifies, len(case.expected)
    if not wanted - case.optional <= returned <= wanted:
        fewest = f"{wanted - case.optional} or " if case.optional else ""
        detail = f"the kernel returns {returned} outputs, {fewest}{wanted} are expected"
        outputs.append(("outputs", Judgement(verdict="outputs", detail=detail)))
    for i, (item, output) in enumerate(zip(case.expected, result.outputs, strict=False)):
        found = judge(
            output, item.reference, tolerance=item.tolerance, unwritten=unwritten[i], scale=item.scale, dtype=item.dtype
        )
        outputs.append((item.name, found))
    first = next((item for item in outputs if not item[1].passed), outputs[0])
    return {
        "distribution": distribution,
        "verdict": first[1].verdict,
        "detail": f"{first[0]}: {first[1].detail}",
        "outputs": [{"name": name, **judgement.to_dict()} for name, judgement in outputs],
    }


def never_written(result: LaunchResult) -> list[Array | None]:
    """For each output, which elements no instruction wrote; None where that cannot be told from the events."""
    buffers = [buffer for buffer in result.run.buffers if buffer.role == "output"]
    flags: dict[int, Array | None] = {buffer.number: np.zeros(buffer.elements, np.bool_) for buffer in buffers}
    for event in result.events:
        for region in event.writes:
            known = flags.get(region.buffer.number)
            if known is None:
                continue
            same = region.dtype.itemsize == region.buffer.dtype.itemsize
            if region.indirect and same and region.reached is not None:
                known[region.reached] = True
                continue
            if region.indirect or not same:
                flags[region.buffer.number] = None
                continue
            np.ndarray(region.shape, np.bool_, buffer=known, offset=region.offset, strides=region.strides)[...] = True
    found: list[Array | None] = []
    for number, output in zip(result.run.returned, result.outputs, strict=True):
        known = flags.get(number)
        found.append(None if known is None or known.size != output.size else ~known.reshape(output.shape))
    return found


def command(
    kernel: Annotated[str, typer.Argument(help="PATH, a .py file with one kernel, or PATH:KERNEL (a file or module).")] = "",
    reference: Annotated[str, typer.Option(help="PATH:FUNC; default for kernels of q, k, v: the float64 oracle.")] = "",
    shape: Annotated[
        str | None,
        typer.Option(help=f"{SHAPE_HELP} Default: {_SHAPES[0]}, or fewer rows, or causal, if it takes nothing else."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="The word dtype of the shape.")] = _DTYPE,
    causal: Annotated[bool, typer.Option("--causal", help="The word causal of the shape.")] = False,
    window: Annotated[int, typer.Option(help="The word window of the shape; 0 = none.")] = 0,
    scale: Annotated[float, typer.Option(help="The word scale of the shape; 0 = head_dim ** -0.5.")] = 0.0,
    layout: Annotated[str, typer.Option(help=f"Axes, letters b, h, s, d; default {_LAYOUT}.")] = "",
    arg: Annotated[list[str], typer.Option(help="An array of any kernel: NAME=128x512[:dtype].")] = [],  # noqa: B006
    const: Annotated[list[str], typer.Option(help="A constant: NAME=VALUE.")] = [],  # noqa: B006
    chip: Annotated[str, typer.Option(help="trn1, trn2 or trn3; default: the setting.")] = "",
    lnc: Annotated[int, typer.Option(help="Cores of the launch, 1 or 2.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the generated inputs.")] = 0,
    rtol: Annotated[float, typer.Option(help="Allowed relative error of a row; 0 = from the dtype.")] = 0.0,
    out_dtype: Annotated[str, typer.Option(help="Types of the outputs, with --arg; default: the first array's.")] = "",
    third_party: Annotated[
        bool, typer.Option("--third-party", "--foreign", help="Warn where public sources leave a limit unsure.")
    ] = False,
    strict_reads: Annotated[bool, typer.Option("--strict-reads", help="Refuse reads of never-written memory.")] = False,
    json_file: Annotated[str, typer.Option("--json", help="Write JSON to this file; - prints it instead of the table.")] = "",
    task: Annotated[str, typer.Option(help="Judge the kernel on a task instead, in processes of its own; see judge.")] = "",
    check: Annotated[str, typer.Option(help="Sizes of the task, e.g. 512,1024; default: the task's.")] = "",
    lint: Annotated[bool, typer.Option("--lint", help="Only check PATH's source (default: ours) for NKI 0.3 to 0.7.")] = False,
) -> None:
    """Run a kernel on five distributions of inputs and judge values, memory, races and every documented limit.

    The file of the kernel, and that of a reference, are Python: they run in this process, with all of your rights. With --task
    the kernel runs as in judge, and the result is judge's record without times.

    Exit code 0: all passed; 1: something failed, an error that the kernel raises included; 2: wrong use.
    """
    if lint:
        from nki_hf.tools.kernel_lint import KERNELS
        from nki_hf.tools.lint import command as lint_command

        lint_command(Path(kernel.partition(":")[0]) if kernel else KERNELS, as_json=json_file == "-")
    try:
        if not kernel:
            raise UsageError("no kernel is named: give PATH:KERNEL, or --lint to check the source of all of ours.")
        if check and not task:
            raise UsageError("--check gives sizes of a task: name it with --task.")
        if task:
            others = {
                "--reference": reference,
                "--arg": arg,
                "--causal": causal,
                "--window": window,
                "--scale": scale,
                "--out-dtype": out_dtype,
                "--third-party": third_party,
                "--strict-reads": strict_reads,
                "--shape": shape is not None,
            }
            if given_too := [name for name, value in others.items() if value]:
                raise UsageError(f"--task says what the kernel computes: leave out {', '.join(given_too)}.")
            from nki_hf.tools.judging.judgement import judge as judge_kernel  # imports what a run here does not need
            from nki_hf.tools.judging.output import give

            record = judge_kernel(
                kernel,
                task,
                layout=layout,
                check=sizes_of(check, "check"),
                chip=(chip,) if chip else (),
                lnc=lnc,
                dtype=dtype if dtype != _DTYPE else "",
                constants=dict(map(constant_of, const)),
                rtol=rtol,
                seed=seed,
                until="values",
            )
            give(record, json_file)
        if lnc not in (1, 2):
            raise UsageError(f"lnc={lnc} is not a logical-core degree: it is 1 or 2.")
        if not 0 <= rtol < math.inf:
            raise UsageError(f"rtol={rtol} is not an allowed error: it is a positive number, or 0 to take it from the dtype.")
        if unknown := [name for name in out_dtype.split(",") if name and name not in DTYPES]:
            raise UsageError(f"out-dtype has {', '.join(unknown)}: each is one of {', '.join(DTYPES)}.")
        if json_file not in ("", "-"):
            check_writable(json_file, "json")
        chosen = get_chip(chip or settings().chip)
        options = SimOptions(chip=chosen, third_party=third_party, uninitialized="error" if strict_reads else "sentinel")
        files = dict.fromkeys(place_of(spec) or spec for spec in (kernel, reference) if spec)
        print(printable(f"running {', '.join(files)} as Python code, with all of your rights"), file=sys.stderr, flush=True)
        loaded = load_callable(kernel)
        given = load_callable(reference) if reference else None
        constants = dict(constant_of(text) for text in const)
        subject: AttentionSubject | ArraySubject
        if arg:
            if given is None:
                raise UsageError("--arg needs --reference: only kernels of q, k, v have a reference of their own.")
            subject = ArraySubject(
                kernel=loaded,
                arrays=dict(_array(text) for text in arg),
                reference=given,
                constants=constants,
                rtol=rtol or None,
                out_dtypes=tuple(name for name in out_dtype.split(",") if name),
            )
        else:
            if not {"q", "k", "v"} <= set(parameters(loaded)):
                raise UsageError(f"{kernel} has no parameters q, k and v: describe its arrays with --arg and give --reference.")
            subject = _taken(
                {
                    text: AttentionSubject(
                        kernel=loaded,
                        problem=_problem(text, dtype, causal, window, scale),
                        chip=chosen,
                        lnc=lnc,
                        layout={**LAYOUT, **_layout(layout)},
                        constants=constants,
                        reference=given,
                        rtol=rtol or None,
                    )
                    for text in ([text for text in _SHAPES if not (causal and "causal" in text)] if shape is None else [shape])
                }
            )
        with working(f"nki_hf verify of {kernel}", len(DISTRIBUTIONS)) as work, never_ending():
            with uncollected():
                judged = run(subject, options=options, lnc=lnc, seed=seed, work=work)
        found = {"kernel": kernel, "reference": reference or "oracle", **judged}
    except (UsageError, ValueError) as error:
        print(sentence(error), file=sys.stderr)
        raise typer.Exit(2) from None
    if json_file == "-":
        print(json.dumps(found, indent=1, allow_nan=False))
    else:
        if json_file:
            with writing(json_file, "json"), whole_file(json_file) as file:
                file.write((json.dumps(found, indent=1, allow_nan=False) + "\n").encode())
        _print(found)
    raise typer.Exit(0 if found["passed"] else 1)


def _print(found: dict[str, Any]) -> None:
    screen = Screen()
    screen.say(f"{found['kernel']} on simulated {found['chip']}, lnc={found['lnc']}, seed={found['seed']}", "")
    rows = []
    for case in found["cases"]:
        worst: dict[str, Any] = next((o for o in case["outputs"] if o["verdict"] == case["verdict"]), {})
        numbers = [_number(worst.get(key)) for key in ("row_error", "tolerance", "magnitude", "cosine")]
        places = [str(list(worst[key])) if worst.get(key) else "" for key in ("worst_row", "worst_tile")]
        verdict = ("✓ " if case["verdict"] == "pass" else "✗ ") + case["verdict"]
        rows.append([case["distribution"], verdict, *numbers[:2], *places, *numbers[2:]])
    head = ("input", "verdict", "row error", "allowed", "worst row", "worst tile", "size", "cosine")
    screen.table(head, rows, left=(0, 1, 4, 5))
    lines = [f"{case['distribution']}: {case['detail']}" for case in found["cases"] if case["verdict"] != "pass"]
    lines += [f"{f['kind']}: {f['message']}, {f['limit']} ({short_path(f['file'])}:{f['line']})" for f in found["faults"]]
    lines += [
        f"order inferred, not promised ({f['details']['cause']}): {f['message']}; to make it sure, {f['limit']}"
        for f in found["inferred"]
    ]
    for row in found["capacity"]:
        used, size = f"{row['high_water_bytes']:,}", f"{row['capacity_bytes']:,}"
        lines.append(f"{row['space']} of core {row['core']}: {used} of {size} B per partition")
    lines += [f"warning: {warning}" for warning in found["warnings"]]
    screen.say("", *lines, "PASS" if found["passed"] else "FAIL")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _taken(subjects: Mapping[str, AttentionSubject]) -> AttentionSubject:
    """The first of some, by their shapes, that the kernel takes; of another than the first it is said. If none, the first."""
    first = next(iter(subjects))
    shape = next((shape for shape, subject in subjects.items() if subject.taken), first)
    if shape != first:
        print(f"the kernel does not take {first}: run on {shape}; --shape chooses", file=sys.stderr, flush=True)
    return subjects[shape]


def _problem(shape: str, dtype: str, causal: bool, window: int, scale: float) -> Problem:
    """The shape with the words that the options stand for."""
    words = {"causal": causal, f"window={window}": window != 0, f"scale={scale}": scale != 0, f"dtype={dtype}": dtype != _DTYPE}
    return problem_of(",".join([shape, *(word for word, given in words.items() if given)]))


def _layout(text: str) -> dict[str, str]:
    parts = dict(part.partition("=")[::2] for part in text.split(",") if part)
    for name, axes in parts.items():
        if name not in LAYOUT or set(axes) - set("bhsd") or len(set(axes)) != len(axes):
            raise UsageError(f"layout has the part {name}={axes}: names are {', '.join(LAYOUT)}, axes b, h, s, d once each.")
    return parts


def _array(text: str) -> tuple[str, tuple[tuple[int, ...], str]]:
    name, _, rest = text.partition("=")
    sizes, _, dtype = rest.partition(":")
    dtype = dtype or "float32"
    parts = sizes.split("x")
    whole = all(part.isascii() and part.isdigit() and len(part) < 10 and int(part) for part in parts)
    if not name.isidentifier() or dtype not in DTYPES or not whole or math.prod(map(int, parts)) > LARGEST:
        raise UsageError(
            f"--arg {text!r} is not an array: write NAME=128x512[:dtype] with sizes from 1, at most {LARGEST:,}"
            f" elements, and dtype one of {', '.join(DTYPES)}."
        )
    return name, (tuple(map(int, parts)), dtype)
