"""The run itself: load, reference, one row per attention, verdict. Text and flags are elsewhere."""

from __future__ import annotations

import copy
import math
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import nki_hf
from nki_hf.adapters import call_log
from nki_hf.adapters.call_log import CallLogRow
from nki_hf.adapters.explain import explain
from nki_hf.dispatch import Decision
from nki_hf.tools.model_bench import eager_in_rows
from nki_hf.tools.model_bench.accuracy import MAX_RMS_RATIO, MAX_WORST_ROW_RATIO, Baseline, baseline, compare
from nki_hf.tools.model_bench.device.plan import check
from nki_hf.tools.model_bench.generation import generate
from nki_hf.tools.model_bench.layer_share import linear_work
from nki_hf.tools.model_bench.measure import measure
from nki_hf.tools.model_bench.memory import available_bytes, eager_skip_reason
from nki_hf.tools.model_bench.model import Subject, load_subject
from nki_hf.tools.model_bench.modelled import modelled, modelled_decode
from nki_hf.tools.model_bench.options import BenchOptions
from nki_hf.tools.model_bench.profile import write_events
from nki_hf.tools.model_bench.published import published_for
from nki_hf.tools.model_bench.record import BenchResult, DecodeTimes, Ran, Row
from nki_hf.tools.model_bench.reference_cache import cached_array
from nki_hf.tools.model_bench.worlds import Prepared, choose_device, device_notes, prepare

__all__ = ["compile_only", "run"]

Array = np.ndarray[Any, Any]
Say = Callable[[str], None]


class _References:
    """The reference, eager's output in the run's dtype, and which rows count."""

    def __init__(self, subject: Subject, options: BenchOptions, say: Say, step: Say) -> None:
        step("fingerprint of weights and input")
        fingerprint = subject.fingerprint()
        self.valid = subject.prompt.valid.numpy()
        self.hits: list[bool] = []

        def cached(dtype: str) -> Array:
            step(f"CPU reference, eager in {dtype}")
            key = {**fingerprint, "dtype": dtype, "torch": torch.__version__, "transformers": transformers.__version__}
            found = cached_array(options.reference_dir, key, lambda: _eager_on_cpu(subject, dtype), say=say)
            self.hits.append(found.hit)
            return found.array

        self.reference = cached(options.reference_dtype)
        self.baseline = cached(options.torch_dtype)
        self.dtype = options.reference_dtype

    def of_eager(self, rows: slice) -> Baseline:
        """Eager's own errors over some token positions."""
        return baseline(self.baseline[:, rows], self.reference[:, rows], valid=self.valid[:, rows])

    def describe(self, options: BenchOptions) -> dict[str, str]:
        """For the record."""
        return {
            "what": f"eager in {self.dtype} on CPU, same weights",
            "from_cache": "yes" if all(self.hits) else "no",
            "folder": str(options.reference_dir),
        }


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
    references = _References(subject, options, say, step)
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
        command=options.command(_interpreter()),
        header={**_header(options, device, subject, limit_s), **device_notes(device)},
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
    references: _References,
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
    attn: str, subject: Subject, references: _References, options: BenchOptions, ready: Prepared, step: Say
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


def _eager_on_cpu(subject: Subject, dtype: str) -> Array:
    """Eager's last hidden state `[batch, seqlen, hidden]` on CPU, the weights converted to `dtype` (exactly, upwards)."""
    wanted = getattr(torch, dtype)
    model = subject.model if subject.model.dtype == wanted else copy.deepcopy(subject.model).to(wanted)
    with _attention(model, eager_in_rows.register()), torch.inference_mode():
        out = model(input_ids=subject.prompt.input_ids, attention_mask=subject.prompt.attention_mask, use_cache=False)
    hidden = out.last_hidden_state
    return (hidden if dtype == "float64" else hidden.float()).numpy()


@contextmanager
def _attention(model: Any, name: str) -> Iterator[None]:
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


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


def _header(options: BenchOptions, device: str, subject: Subject, limit_s: float) -> dict[str, str]:
    config, prompt = subject.text_config, subject.prompt
    batch, seqlen = prompt.input_ids.shape
    times = {
        "cpu": "wall clock of this CPU (the nki row runs the simulator: its time says nothing about Trainium)",
        "neuron": "measured on the Neuron device, inputs and outputs resident there",
        "xla": "measured on the Neuron device, copies from and to the host included",
    }[device]
    settings = nki_hf.settings.settings()
    kernels = f"simulator (CPU), standing for {settings.chip}" if device == "cpu" else "the installed nki"
    return {
        "nki_hf": f"{nki_hf.__version__}, Python {sys.version.split()[0]}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, numpy {np.__version__}",
        "machine": f"{platform.machine()}, {_cpu_name()}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads",
        "device": device,
        "nki kernels": kernels,
        "times": times,
        "model": f"{options.model}, {_layers(config.num_hidden_layers)}, {config.num_attention_heads}/"
        f"{config.num_key_value_heads} heads, head_dim {getattr(config, 'head_dim', None) or '?'}, {options.dtype}",
        "input": f"{batch} x {seqlen:,} tokens, {prompt.tokens:,} of them real; {prompt.source}",
        "calls": f"first call apart, {options.warmup} warm-up, {options.iters} timed"
        + ("" if math.isinf(limit_s) else f"; fewer where they take more than {limit_s:.0f} s"),
    }


def _layers(count: int) -> str:
    return "1 layer" if count == 1 else f"{count} layers"


def _interpreter() -> str:
    """The interpreter that runs this, as one types it: relative to the working directory where it lies below that."""
    path = Path(sys.executable)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or "unknown CPU"
