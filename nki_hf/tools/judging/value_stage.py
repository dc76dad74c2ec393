"""The verdict on values: which outputs are wrong, and the cause in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nki_hf.chips import Chip
from nki_hf.sim import SimOptions
from nki_hf.sim.stream.region_elements import elements_of
from nki_hf.tasks import Task
from nki_hf.tools.judging import against, diagnosis
from nki_hf.tools.judging.budget import Budget
from nki_hf.tools.judging.findings import Failed, finding, of_fault
from nki_hf.tools.judging.imprecision import imprecision, narrow_sums
from nki_hf.tools.judging.line_words import line_words
from nki_hf.tools.judging.not_finite import first_not_finite
from nki_hf.tools.judging.precision import RATIOS
from nki_hf.tools.judging.steered import Steered
from nki_hf.tools.judging.task_values import fails
from nki_hf.tools.judging.values import Checked, Outcome, Run, drawn, strict_read, to_kernel

__all__ = ["judge_values"]

_SHAPE = "The shape of an output is the one that the task's reference gives."
"""Nothing else of a task says it, so a reference of another shape than the author meant cannot be told from a wrong kernel."""


def judge_values(
    request: Mapping[str, Any],
    record: dict[str, Any],
    task: Task,
    runs: list[Run],
    checks: list[Checked],
    traces: Mapping[Any, Any],
    chip: Any,
    steered: Sequence[Steered] = (),
) -> None:
    """Raise a `Failed` with the cause in words if a value is wrong, depends on old memory, or is less exact than it could be.

    Args:
      request, record: of the judgement.
      task: what is computed.
      runs, checks: each size and what was found there; sizes after one that is wrong are missing.
      traces: by size and chip.
      chip: the one that checks values.
      steered: what inputs steer, at each size that was judged.
    """
    counted = next((check.count for check in checks if check.count), "")
    if counted:
        raise Failed("values", finding("values", {"kind": "outputs", "message": counted}))
    if all(not reference.any() for check in checks for outcome in check.outcomes for reference in outcome.references):
        raise fails(runs[0], f"reference is zero everywhere at size {runs[0].size:,}: it judges nothing")
    bad = [(check, outcome) for check in checks for outcome in check.outcomes if outcome.wrong is not None]
    if bad or any(check.depends_on_memory for check in checks):
        check = bad[0][0] if bad else next(item for item in checks if item.depends_on_memory)
        run = next(item for item in runs if item.size == check.size)
        strict = SimOptions(chip=chip, third_party=True, uninitialized="error")
        fault = strict_read(run, traces[run.size, chip.name], drawn(run, "normal", request["seed"]), strict, request["lnc"])
        unfinished = any(o.judgements[o.wrong or 0].verdict in ("not finite", "never written") for _, o in bad)
        found = []
        turned = next(filter(None, (item.cause() for item in steered if bad and item.check is check)), "")
        if fault is not None and (unfinished or not bad or check.depends_on_memory):
            found.append({**of_fault("values", fault.record), "kind": "uninitialized"})
            record["diagnosis"] = f"the result depends on memory that was never written: {found[0]['message']}"
        elif check.depends_on_memory and not bad:
            found.append(
                finding(
                    "values",
                    {
                        "kind": "leftovers",
                        "message": "the same inputs gave another result in a second run: "
                        "the kernel reads what an earlier run left in memory",
                    },
                )
            )
        record["diagnosis"] = turned or record["diagnosis"]
        budget = Budget()
        slight = bad and all(
            o.judgements[o.wrong or 0].row_error < 16 * o.judgements[o.wrong or 0].tolerance for _, o in bad[:1]
        )
        if not record["diagnosis"] and bad and slight and request["dtype"] != "float32":
            limit = RATIOS[task.ideal is not None]
            said = [narrow_sums(o, limit) for item in checks for o in item.outcomes if imprecision(o, limit)]
            inexact = said[0] if said and all(said) else ""
            record["diagnosis"] = inexact and (diagnosis.explained(task, checks, budget) or inexact)
        if not record["diagnosis"] and bad:
            record["diagnosis"] = diagnosis.named(task, checks, budget)
        record["warnings"] += [budget.untried] if budget.untried else []
        if not turned and unfinished and not found and (words := _holes(check, record["warnings"], request["file"])):
            record["diagnosis"] = words
        elif bad and fault is None and (not record["diagnosis"] or "not finite" in record["diagnosis"]):
            record["diagnosis"] = _not_finite(request, runs, *bad[0], traces, chip) or record["diagnosis"]
        seen = set()
        for check, outcome in bad:
            number = outcome.wrong or 0
            judgement = outcome.judgements[number]
            if (judgement.verdict, check.size) in seen:
                continue
            seen.add((judgement.verdict, check.size))
            message = f"{task.outputs[number]} at size {check.size}, {outcome.distribution} inputs: {judgement.detail}"
            advice = _SHAPE if judgement.verdict == "shape" else ""
            found.append(finding("values", {"kind": judgement.verdict, "message": message, "advice": advice}))
        raise Failed("values", *found, *_first_difference(request, record, task, runs, traces, chip))
    if request["dtype"] in ("bfloat16", "float16") and not request["rtol"]:
        for check in checks:
            for outcome in check.outcomes:
                words = imprecision(outcome, RATIOS[task.ideal is not None])
                if words:
                    record["diagnosis"] = words
                    message = f"{task.outputs[outcome.least_exact]} at size {check.size}: {words}"
                    advice = "Keep sums in float32, or allow the error with --rtol."
                    imprecise = finding("values", {"kind": "precision", "message": message, "advice": advice})
                    raise Failed("values", imprecise, *_first_difference(request, record, task, runs, traces, chip))


def _holes(check: Checked, warnings: list[str], own: str) -> str:
    """What explains elements that are not finite where no single read is to blame: a product that adds to PSUM which nothing
    wrote, or memory that is read through run-time indices and has elements that nothing wrote.
    """
    added = next((words for words in warnings if words.startswith("nc_matmul: ") and "were never written" in words), "")
    if added:
        return f"the result depends on memory that was never written: {added.rstrip('.')}"
    read = {region.buffer.number for event in check.result.events for region in event.reads if region.indirect}
    for buffer in check.result.run.buffers:
        if buffer.number not in read or buffer.role != "scratch":
            continue
        written = np.zeros(buffer.elements, np.bool_)
        for event in check.result.events:
            for region in event.writes:
                if region.buffer is not buffer:
                    continue
                flags = elements_of(written, region)
                if flags is not None:
                    flags[...] = True
                elif region.reached is not None and region.dtype.itemsize == buffer.dtype.itemsize:
                    written[region.reached] = True
                else:
                    written[:] = True  # nobody knows
        if not written.all():
            first = [int(i) for i in np.unravel_index(int(written.argmin()), buffer.shape)]
            count = f"{int((~written).sum()):,} of {buffer.elements:,} elements"
            at = line_words(own, buffer.file, buffer.line)
            place = f"{buffer.name}{list(buffer.shape)} ({at}), which is read through run-time indices"
            return f"the result depends on memory that was never written: {count} of {place}, the first at {first}"
    return ""


def _not_finite(
    request: Mapping[str, Any], runs: list[Run], check: Checked, outcome: Outcome, traces: Mapping[Any, Any], chip: Chip
) -> str:
    """The first instruction that writes NaN or an overflow, where the wrong output has some."""
    if np.isfinite(np.asarray(outcome.outputs[outcome.wrong or 0], np.float64)).all():
        return ""
    run = next(run for run in runs if run.size == check.size)
    options = SimOptions(chip=chip, third_party=True)
    return first_not_finite(
        traces[run.size, chip.name], to_kernel(run, outcome.arrays), options, request["lnc"], request["file"]
    )


def _first_difference(
    request: Mapping[str, Any], record: dict[str, Any], task: Task, runs: list[Run], traces: Mapping[Any, Any], chip: Any
) -> list[dict[str, Any]]:
    """The finding about the kernel of `--against`, if there is one."""
    apart = against.compared(request, record, task, runs[0], traces[runs[0].size, chip.name], chip)
    if apart is None:
        return []
    record["first_difference"] = apart
    return [finding("values", {**apart, "kind": "first difference", "message": apart["text"]})]
