"""The run itself: load, reference, one row per attention, verdict. Text and flags are elsewhere."""

from __future__ import annotations

import math
from dataclasses import replace

import nki_hf
from nki_hf.adapters import call_log
from nki_hf.adapters.call_log import CallLogRow
from nki_hf.adapters.explain import explain
from nki_hf.dispatch import Decision
from nki_hf.tools.model_bench.accuracy import MAX_RMS_RATIO, MAX_WORST_ROW_RATIO, compare
from nki_hf.tools.model_bench.device.plan import check
from nki_hf.tools.model_bench.generation import generate
from nki_hf.tools.model_bench.header import header, interpreter
from nki_hf.tools.model_bench.layer_share import linear_work
from nki_hf.tools.model_bench.measure import measure
from nki_hf.tools.model_bench.memory import available_bytes, eager_skip_reason
from nki_hf.tools.model_bench.model import Subject, load_subject
from nki_hf.tools.model_bench.modelled import modelled, modelled_decode
from nki_hf.tools.model_bench.options import BenchOptions
from nki_hf.tools.model_bench.profile import write_events
from nki_hf.tools.model_bench.published import published_for
from nki_hf.tools.model_bench.record import BenchResult, DecodeTimes, Ran, Row
from nki_hf.tools.model_bench.references import References, Say
from nki_hf.tools.model_bench.worlds import Prepared, choose_device, device_notes, prepare

__all__ = ["compile_only", "run"]


def run(options: BenchOptions, *, say: Say, step: Say = lambda _: None, limit_s: float = math.inf) -> BenchResult:
    """Everything the benchmark finds out. The process's `nki_hf.explain()` report starts anew with the nki row.

    Args:
      options: what to run. Attention names beyond eager, sdpa and nki may be given if Transformers knows them.
      say: takes one line for the user.
      step: told what starts now, for a progress bar.
      limit_s: of each attention's calls on a CPU, see `measure`.

    Raises:
      WrongUse: a model folder that does not exist.
      BackendUnavailable: a device or a hub model that is not here.
      UnsupportedProblem: a kernel of ours refuses the model; the nki row never falls back.
    """
    device = choose_device(options.device)
    check(options, device)
    limit_s = limit_s if device == "cpu" else math.inf
    step("loading the model")
    subject = load_subject(options)
    references = References(subject, options, say, step)
    rows: list[Row] = []
    for attn in options.attn:
        reason = eager_skip_reason(subject, device, available_bytes(device)) if attn == "eager" else ""
        rows.append(
            Row(attn=attn, skipped=reason)
            if reason
            else _run_row(attn, device, subject, references, options, say, step, limit_s)
        )
    if options.profile and device == "cpu":
        step("event file")
        launches = _launches()
        count = write_events(options.profile_path, launches)
        say(f"{count:,} events of {len(launches)} launches: {options.profile_path}")
    step("simulated times of the attention on each chip")
    known = published_for(options)
    ran = explain().rows if "nki" in options.attn else ()
    simulated = modelled(ran, prompts=options.batch_size, linear=linear_work(subject.model), one_core=bool(known))
    of_steps = modelled_decode(ran)
    rows = _against_eager(rows)
    passed, verdict = _verdict(rows)
    return BenchResult(
        command=options.command(interpreter()),
        header={**header(options, device, subject, limit_s), **device_notes(device)},
        reference=references.describe(options),
        baseline_rms=references.of_eager(slice(None)).rms_error,
        rows=tuple(rows),
        modelled=simulated,
        modelled_decode=of_steps,
        passed=passed,
        verdict=verdict,
        published=known,
    )


def compile_only(options: BenchOptions, *, say: Say, step: Say = lambda _: None) -> None:
    """Compile each attention for the device and call it once, so that a process that times finds warm caches."""
    device = choose_device(options.device)
    check(options, device)
    step("loading the model")
    subject = load_subject(options)
    for attn in options.attn:
        if attn == "eager" and eager_skip_reason(subject, device, available_bytes(device)):
            continue
        subject.model.set_attn_implementation(attn)
        step(f"{attn}: compiling")
        with nki_hf.using(strict=True):
            ready = prepare(device, subject, options, say)
            ready.call()
            ready.wait()


def _run_row(
    attn: str,
    device: str,
    subject: Subject,
    references: References,
    options: BenchOptions,
    say: Say,
    step: Say,
    limit_s: float,
) -> Row:
    subject.model.set_attn_implementation(attn)
    if attn == "nki":
        call_log.reset()
    with nki_hf.using(strict=True):
        ready = prepare(device, subject, options, say)
        out, timing = measure(
            ready.call,
            wait=ready.wait,
            warmup=options.warmup,
            iters=options.iters,
            limit_s=limit_s,
            step=lambda what: step(f"{attn}: {what}"),
        )
        if timing.first_s >= limit_s:
            say(
                f"{attn}: its first call took {timing.first_s:,.0f} s, more than {limit_s:.0f} s, and is the only one: it is "
                f"the timed one, and what it compiled is in it; --iters {options.iters} asks for all."
            )
        elif len(timing.iterations_s) < options.iters:
            say(
                f"{attn}: {len(timing.iterations_s)} timed in place of {options.iters}, since its calls took more than "
                f"{limit_s:.0f} s; --iters {options.iters} asks for all."
            )
        accuracy = compare(
            ready.to_host(out).numpy(),
            references.reference,
            valid=references.valid,
            against=references.of_eager(slice(None)),
        )
        decode = _decode(attn, subject, references, options, ready, step) if options.decode_steps else None
    report = explain()
    # A compiled graph runs without our Python, so there is nothing to count; strict holds while it is compiled.
    counted = attn == "nki" and (device == "cpu" or report.calls > 0)
    return Row(
        attn=attn,
        timing=timing,
        prompts_per_s=options.batch_size / timing.mean_s,
        tokens_per_s=subject.prompt.tokens / timing.mean_s,
        accuracy=accuracy,
        decode=decode,
        ran=tuple(_ran(row) for row in report.rows) if attn == "nki" else (),
        kernel_calls=report.calls - report.fallbacks if counted else None,
        fallbacks=report.fallbacks if counted else None,
    )


def _ran(row: CallLogRow) -> Ran:
    first = row.first
    return Ran(
        layer=row.layer,
        phase=row.phase,
        calls=row.calls,
        kernel=first.kernel,
        backend=first.backend,
        chip=first.chip,
        lnc=first.lnc,
        tiles=dict(first.tiles),
        problem=str(first.problem),
        rejected=tuple(map(str, first.rejected)),
    )


def _launches() -> list[Decision]:
    """One decision for each distinct problem of the nki row."""
    return list({row.first.problem: row.first for row in explain().rows if not row.first.fallback}.values())


def _decode(
    attn: str, subject: Subject, references: References, options: BenchOptions, ready: Prepared, step: Say
) -> DecodeTimes:
    made = generate(
        subject.model,
        ready.prompt,
        steps=options.decode_steps,
        warmup=options.warmup,
        iters=options.iters,
        wait=ready.wait,
        say=lambda what: step(f"{attn}: {what}"),
    )
    rows = slice(-(options.decode_steps + 1), None)
    accuracy = compare(
        made.hidden.numpy(),
        references.reference[:, rows],
        valid=references.valid[:, rows],
        against=references.of_eager(rows),
    )
    tokens = options.batch_size / made.step.mean_s
    return DecodeTimes(prefill=made.prefill, step=made.step, tokens_per_s=tokens, accuracy=accuracy)


def _against_eager(rows: list[Row]) -> list[Row]:
    eager = next((row.timing.mean_s for row in rows if row.attn == "eager" and row.timing), None)
    if eager is None:
        return rows
    return [replace(row, speed_against_eager=eager / row.timing.mean_s) if row.timing else row for row in rows]


def _verdict(rows: list[Row]) -> tuple[bool, str]:
    """The nki row decides; without one, every row that ran. Speed never decides."""
    judged = [row for row in rows if row.attn == "nki"] or [row for row in rows if row.timing is not None]
    problems = [text for row in judged for text in _problems(row)]
    if not judged:
        return False, "nothing was run"
    if problems:
        return False, "; ".join(problems)
    found = [(row.attn, row.accuracy) for row in judged if row.accuracy]
    ratios = ", ".join(f"{attn} {of.rms_ratio:.3f}, worst row {of.worst_row_ratio:.3f}" for attn, of in found)
    limits = f"at most {MAX_RMS_RATIO} and {MAX_WORST_ROW_RATIO} pass"
    return True, f"RMS error over that of eager in the same dtype: {ratios} ({limits})"


def _problems(row: Row) -> list[str]:
    accuracies = [row.accuracy, row.decode.accuracy if row.decode else None]
    found = [f"{row.attn}: {accuracy.remark}" for accuracy in accuracies if accuracy is not None and not accuracy.passed]
    if row.fallbacks:
        found.append(f"{row.attn}: {row.fallbacks:,} calls fell back to torch")
    if row.kernel_calls == 0:
        found.append(f"{row.attn}: no call reached a kernel")
    return found
