"""The re:Invent benchmark (session AIM414) made good: Qwen3 with eager, sdpa and nki attention, checked and timed.

    python examples/qwen3_bench.py                       # offline: Qwen3-0.6B's dimensions, random weights, 4 layers
    python examples/qwen3_bench.py --preset aim414       # the session's sizes: 4 layers, 16,384 tokens, batch 1
    python examples/qwen3_bench.py --model Qwen/Qwen3-0.6B --padded --decode-steps 16
    python examples/qwen3_bench.py --device neuron       # on Trainium: compiles in a process of its own, then times
    python examples/qwen3_bench.py --dry-run             # anywhere: what both Neuron worlds would set, compile and call
    python examples/qwen3_bench.py --compare OLD.json NEW.json      # two results: faster, slower, or no difference
    python examples/qwen3_bench.py --sweep seqlen=512..16384        # attention by length, with the published ladder

A run leaves a result file (`--json`), and beside it a page (.html) and a picture (.png). Only the last hidden state is
computed. Accuracy is judged against fp32 eager on CPU, whose output is cached on disk.
Exit code 0: PASS, 1: FAIL, 2: wrong use, or something that was asked for is not here.
"""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console

    from nki_hf.errors import BackendUnavailable, UnsupportedProblem, require
    from nki_hf.settings import settings
    from nki_hf.tools.model_bench.device.plan import COMPILE_ONLY, environment, path_with_own_programs, plan
    from nki_hf.tools.model_bench.options import (
        ATTENTIONS,
        DEVICE_WARMUP,
        DEVICES,
        DTYPES,
        OFFLINE_MODEL,
        PRESETS,
        BenchOptions,
        WrongUse,
    )
    from nki_hf.tools.output_files import check_writable, writing
    from nki_hf.tools.program import ProgramCommand, finished
    from nki_hf.tools.progress import working
    from nki_hf.tools.screen import Screen
except KeyboardInterrupt:
    print("interrupted.", file=sys.stderr)
    sys.exit(130)
except ModuleNotFoundError as missing:
    # The words of a clone that was never installed, or of another Python than the one it was installed in.
    print(
        f'{missing.name} is missing in {sys.executable}: pip install -e ".[hf]" in the folder of this clone.', file=sys.stderr
    )
    sys.exit(2)

DEFAULTS = BenchOptions()
CPU_LIMIT_S = 120.0
"""Seconds of an attention's calls on a CPU after which one timed call is enough: their wall clock says nothing of Trainium."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=ProgramCommand)
def main(
    model: Annotated[str, typer.Option(help=f"Hub id or local folder; {OFFLINE_MODEL} needs no download.")] = DEFAULTS.model,
    preset: Annotated[str | None, typer.Option(help=f"Sizes by name: {', '.join(PRESETS)}. Other flags override it.")] = None,
    layers: Annotated[int | None, typer.Option(help=f"Decoder layers kept. [default: {DEFAULTS.layers}]")] = None,
    seqlen: Annotated[int | None, typer.Option(help=f"Tokens per prompt. [default: {DEFAULTS.seqlen}]")] = None,
    batch_size: Annotated[int | None, typer.Option(help=f"Prompts per pass. [default: {DEFAULTS.batch_size}]")] = None,
    attn: Annotated[str, typer.Option(help="Any subset, with commas.")] = ",".join(ATTENTIONS),
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(DTYPES)}.")] = DEFAULTS.dtype,
    device: Annotated[str, typer.Option(help=f"One of {', '.join(DEVICES)}.")] = DEFAULTS.device,
    warmup: Annotated[
        int | None,
        typer.Option(
            help=f"Untimed calls after the first, which is apart. [default: {DEFAULTS.warmup}, on a device {DEVICE_WARMUP}]",
        ),
    ] = None,
    iters: Annotated[
        int | None,
        typer.Option(
            help=f"Timed calls. [default: {DEFAULTS.iters}; on a CPU fewer, and no warm-up, once an attention's calls took "
            f"{CPU_LIMIT_S:.0f} s]"
        ),
    ] = None,
    padded: Annotated[bool, typer.Option("--padded", help="Left-pad the prompts, each by another length.")] = False,
    decode_steps: Annotated[int, typer.Option(help="Also time prefill and this many cached decode steps, apart.")] = 0,
    cache_dir: Annotated[Path | None, typer.Option(help=f"CPU references. [default: {DEFAULTS.reference_dir}]")] = None,
    window: Annotated[int | None, typer.Option(help="Sliding window of every layer, in keys.")] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Also write what was executed, beside the JSON.")] = False,
    json: Annotated[Path, typer.Option("--json", help="Result file; page and picture stand beside it.")] = DEFAULTS.json,
    no_page: Annotated[bool, typer.Option("--no-page", help="Write neither page nor picture.")] = False,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(help="Run nothing: two result files, old and new.", metavar="OLD NEW")
    ] = None,
    sweep: Annotated[str | None, typer.Option(help="Attention by length instead, e.g. seqlen=512..16384.")] = None,
    seed: Annotated[int, typer.Option(help="Of the random weights and token ids.")] = DEFAULTS.seed,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what a run on Neuron would set and call.")] = False,
    compile_only: Annotated[bool, typer.Option("--compile-only", help="Fill the cache of compiled models.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let code that comes with the model run, with all of your rights.")
    ] = False,
) -> None:
    """Benchmark one model under several attention implementations."""

    def options() -> BenchOptions:
        names = tuple(name.strip() for name in attn.split(",") if name.strip())
        unknown = [name for name in names if name not in ATTENTIONS]
        if unknown:
            raise WrongUse(f"attn={unknown[0]!r} is not known: attn is any of {', '.join(ATTENTIONS)}.")
        given = {"layers": layers, "seqlen": seqlen, "batch_size": batch_size, "warmup": warmup, "iters": iters}
        return BenchOptions(
            model=model,
            attn=names,
            dtype=dtype,
            device=device,
            padded=padded,
            decode_steps=decode_steps,
            cache_dir=cache_dir,
            window=window,
            profile=profile,
            json=json,
            seed=seed,
            trust_remote_code=trust_remote_code,
            no_page=no_page,
            **{**_preset(preset), **{name: value for name, value in given.items() if value is not None}},
        )

    def judged() -> int:
        if compare is not None:
            return compare_results(*compare)
        if sweep is not None:
            return sweep_lengths(sweep, options(), Console(stderr=True), warmup_given=warmup is not None)
        if dry_run:
            return 0 if show_plans(options(), warmup_given=warmup is not None) else 1
        errors = Console(stderr=True)
        try:
            limit_s = CPU_LIMIT_S if iters is None else math.inf
            passed = benchmark(options(), errors, compiles_only=compile_only, warmup_given=warmup is not None, limit_s=limit_s)
            return 0 if passed else 1
        except UnsupportedProblem as error:  # the nki row runs strict
            errors.print(f"FAIL: {error}", highlight=False, markup=False, soft_wrap=True)
            return 1
        except KeyboardInterrupt:
            errors.print("interrupted; the cache holds complete files only.")
            return 130

    raise typer.Exit(finished(judged))


def show_plans(options: BenchOptions, *, warmup_given: bool = False) -> bool:
    """Print the plan of a device run: for the device asked for, or for both worlds, one of which may say why not."""
    if options.device in ("neuron", "xla"):
        print(plan(with_warmup(options, options.device, warmup_given), options.device).text())
        return True
    texts = []
    for device in ("neuron", "xla"):
        try:
            texts.append(plan(with_warmup(options, device, warmup_given), device).text())
        except WrongUse as error:
            texts.append(f"# device {device}: {error}")
    print("\n\n".join(texts))
    return True


def with_warmup(options: BenchOptions, device: str, given: bool) -> BenchOptions:
    """The options with the device's own number of warm-up calls, unless one was asked for."""
    return options if given or device == "cpu" else replace(options, warmup=DEVICE_WARMUP)


def benchmark(
    options: BenchOptions,
    errors: Console,
    *,
    compiles_only: bool = False,
    warmup_given: bool = False,
    limit_s: float = math.inf,
) -> bool:
    """Run, print and write everything; returns the verdict. On a device, a process of its own has compiled before."""
    settings()  # a variable that cannot be read is known before minutes of work
    prepare_environment(options)
    check_files(options)
    try:
        from transformers.utils import logging  # after the environment: these import torch

        from nki_hf.tools.model_bench.report import show
        from nki_hf.tools.model_bench.run import compile_only, run
        from nki_hf.tools.model_bench.worlds import choose_device
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("torch", "transformers"):
            raise
        raise BackendUnavailable(f'the benchmark needs the {package} package: pip install "nki_hf[hf]"') from None

    device = choose_device(options.device)
    options = with_warmup(options, device, warmup_given)
    if device != "cpu":
        options = replace(options, device=device)  # so that the printed command names it
    if device != "cpu" and not compiles_only:
        compile_in_a_process_of_its_own(options)
    logging.disable_progress_bar()  # ours says more
    with progress(options, errors) as (say, step):
        if compiles_only:
            compile_only(options, say=say, step=step)
            return True
        result = run(options, say=say, step=step, limit_s=limit_s)
    result.write(options.json)
    show(result, Screen(), json=options.json)
    for line in leave_page(result, options):
        Screen().line(line)
    return result.passed


def leave_page(result: Any, options: BenchOptions) -> list[str]:
    """Write page and picture beside the result file; lines that say where, or why not."""
    from nki_hf.tools.model_bench.page import write_page

    if options.no_page:
        return []
    if options.json.exists() and not options.json.is_file():
        return [f"page:    none, because {options.json} is no file that another could stand beside"]
    try:
        with writing(options.json.with_suffix(".html"), "page"):
            written = write_page(result, options.json)
    except BackendUnavailable as error:
        return [f"page:    none: {error}"]
    return [f"page:    {written[0]}", f"picture: {written[1]}"]


def compare_results(old: Path, new: Path) -> int:
    """Print two results side by side and leave a page beside the new one."""
    from nki_hf.tools.model_bench.compare import show_comparison, write_comparison
    from nki_hf.tools.model_bench.record import BenchResult

    before, after = BenchResult.read(old), BenchResult.read(new)
    show_comparison(before, after, Screen())
    path = new.with_name(f"{new.stem}_against_{old.stem}.html")
    try:
        with writing(path, "page"):
            write_comparison(before, after, path)
    except BackendUnavailable as error:
        Screen().line(f"page: none: {error}")
    else:
        Screen().line(f"page: {path}")
    return 0


def sweep_lengths(text: str, options: BenchOptions, errors: Console, *, warmup_given: bool) -> int:
    """Draw attention by length: simulated on a CPU; on a device the model is also run at each length. 1 if a run failed."""
    from nki_hf.tools.model_bench.sweep import lengths_of, model_problem, sweep, write_sweep

    lengths = lengths_of(text)
    page = options.json.with_name(f"{options.json.stem}_sweep.html")
    with writing(page, "page"):
        page.parent.mkdir(parents=True, exist_ok=True)
    check_writable(page, "page")
    require("--sweep", "plot", "matplotlib")
    prepare_environment(options)
    from nki_hf.tools.model_bench.model import text_config
    from nki_hf.tools.model_bench.worlds import choose_device

    config, passed = text_config(options), True
    if choose_device(options.device) != "cpu":
        for seqlen in lengths:
            of_length = options.json.with_name(f"{options.json.stem}_{seqlen}.json")
            passed &= benchmark(replace(options, seqlen=seqlen, json=of_length), errors, warmup_given=warmup_given)
    with progress(options, errors, total=6 * len(lengths)) as (_, step):
        points = sweep(lengths, lambda seqlen: model_problem(config, seqlen, options), step=step)
    words = ["--sweep", text, *options.arguments()]
    written = write_sweep(points, page, shlex.join(["python", "examples/qwen3_bench.py", *words]))
    Screen().line(f"simulated, with published rows beside it: {written[0]}, {written[1]}")
    return 0 if passed else 1


def check_files(options: BenchOptions) -> None:
    """Make the result file's folder now: a run of minutes must not end at a file that cannot be written.

    Raises:
      ValueError: a file cannot be written.
    """
    if options.json.suffix in (".html", ".png") and not options.no_page:
        raise WrongUse(f"json={options.json} would be overwritten by its own page: give it another ending, or --no-page.")
    with writing(options.json, "json"):
        options.json.parent.mkdir(parents=True, exist_ok=True)
    check_writable(options.json, "json")
    if options.profile:
        check_writable(options.profile_path, "profile")


def prepare_environment(options: BenchOptions) -> None:
    """Variables that the Neuron stack reads when it is imported. Values that are already set stay."""
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    for name, value in {**quiet, **environment(options, options.device)}.items():
        os.environ.setdefault(name, value)
    if options.device != "cpu":
        os.environ["PATH"] = path_with_own_programs(os.environ.get("PATH", ""))


def compile_in_a_process_of_its_own(options: BenchOptions) -> None:
    """Compilers running beside a measurement distort it, and one process owns a core: compile first, then be gone."""
    command = [sys.executable, __file__, *options.arguments(), COMPILE_ONLY]
    code = subprocess.run(command, check=False).returncode
    if code:
        raise BackendUnavailable(f"compiling for {options.device} failed (exit code {code}): see its messages above.")


@contextmanager
def progress(options: BenchOptions, errors: Console, total: int | None = None) -> Iterator[Any]:
    """`(say, step)`: one prints a line, the other tells what begins; `total` steps, or those of a run."""
    calls = 1 + options.warmup + options.iters
    total = total or 5 + len(options.attn) * (calls + bool(options.decode_steps) * (calls + 2 * options.decode_steps))
    with working("the benchmark", total, file=errors.file) as work:
        begun = 0

        def step(what: str) -> None:
            nonlocal begun
            work.advance(what, count=min(begun, 1))  # one ends where the next begins
            begun += 1

        yield lambda text: work.tell(text), step


def _preset(name: str | None) -> dict[str, Any]:
    if name is None:
        return {}
    if name not in PRESETS:
        raise WrongUse(f"preset={name!r} is not known: preset is one of {', '.join(PRESETS)}.")
    return PRESETS[name]


if __name__ == "__main__":
    app()
