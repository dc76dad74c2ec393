"""`nki_hf verify`: run a kernel file on generated inputs, and say whether it is right and would be taken by the chip."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from nki_hf.chips import get_chip
from nki_hf.observers.short_path import short_path
from nki_hf.problem import Problem
from nki_hf.settings import settings
from nki_hf.sim import SimOptions
from nki_hf.sim.beside import two_processes
from nki_hf.sim.uncollected import uncollected
from nki_hf.testing import DISTRIBUTIONS
from nki_hf.tools.option_values import constant_of, sizes_of
from nki_hf.tools.output_files import check_writable, whole_file, writing
from nki_hf.tools.printable import printable
from nki_hf.tools.program import sentence
from nki_hf.tools.progress import working
from nki_hf.tools.screen import Screen
from nki_hf.tools.shape import LARGEST, SHAPE_HELP, problem_of
from nki_hf.tools.verify_cases import run
from nki_hf.tools.verify_load import UsageError, load_callable, never_ending, parameters, place_of
from nki_hf.tools.verify_subject import DTYPES, LAYOUT, ArraySubject, AttentionSubject

__all__ = ["command"]

_DTYPE = "bfloat16"
_SHAPES = tuple(f"b=1,hq=2,hkv=1,sq={rows},skv=512,d=64{mask}" for mask in ("", ",causal") for rows in (256, 128, 1))
"""What a kernel is run on that no shape is given for: the first that it takes. Some take one tile of rows, or one row."""
_LAYOUT = ",".join(f"{name}={axes}" for name, axes in LAYOUT.items())


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
            with uncollected(), two_processes(given is None):  # a reference is the user's code, which may run threads
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
