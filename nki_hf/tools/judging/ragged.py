"""A size that no tile divides: a kernel that takes it, with a last tile of its own, must be right there too.

A kernel that refuses such a size, or that leaves a part of the output alone (of an input, where no output follows the size), is
made for multiples of its tiles: that is no fault, and the record says so. So is one whose Python crashes there, but it does not
say what it is made for: a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from nki_hf.chips import Chip
from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.sim.run.play import BadTape
from nki_hf.tasks import Task
from nki_hf.tools.judging import diagnosis
from nki_hf.tools.judging.accepted import accepting
from nki_hf.tools.judging.budget import Budget
from nki_hf.tools.judging.findings import Failed, finding
from nki_hf.tools.judging.timed_work import asked_outputs, work_of
from nki_hf.tools.judging.values import Run, checked, distributions_of, drawn, run_tape, to_kernel

__all__ = ["judge_ragged"]

_ADVICE = "Give the last tile its own size, or refuse sizes that a tile does not divide (assert)."


def judge_ragged(
    request: Mapping[str, Any],
    record: dict[str, Any],
    task: Task,
    trace: Mapping[str, Any] | None,
    chip: Chip,
    accepted: str = "",
) -> None:
    """Fill in the record's `ragged`.

    Args:
      request, record: of the judgement; `ragged` of the request is the size, 0 = none, and `asked` whether the sizes were
        named by the caller: then what is wrong here is a warning.
      task: what is computed.
      trace: the kernel's program at that size, or why there is none.
      chip: the one that checks values.
      accepted: see `Run.accepted`.

    Raises:
      Failed: it takes the size and is wrong there.
    """
    size = request["ragged"]
    if not size or trace is None:
        return
    if trace["refused"]:
        record["ragged"] = _as(size, "crashed" if trace["crashed"] else "refused", trace["refused"])
        if trace["crashed"]:
            record["warnings"].append(
                f"at size {size}, which no tile divides, the kernel's Python crashes: {trace['refused']}. A kernel that does "
                "not take such sizes says so: assert rows % 128 == 0, 'rows is a multiple of 128'"
            )
        return
    run = Run(
        task=task,
        size=size,
        dtype=request["dtype"],
        layout=request["layout"],
        rtol=request["rtol"],
        accepted=accepted,
    )
    options = SimOptions(chip=chip, third_party=True, record=True)
    arrays = drawn(run, "normal", request["seed"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulatorWarning)
        try:
            first = run_tape(trace, to_kernel(run, arrays), options, request["lnc"])
            work = work_of(first.events, size, task.flops(size), asked_outputs(first, task))
            follows = any(size in output.shape for output in first.outputs)
            if work.written < 1 or (work.read < 1 and not follows):
                what = f"writes {work.written:.0%} of an output" if work.written < 1 else f"reads {work.read:.0%} of an input"
                record["ragged"] = _as(size, "not taken", f"it {what}")
                return
            found = checked(run, trace, options, request["lnc"], request["seed"], distributions_of(task, 0), first, arrays)
            _, found = accepting(run, found, request)
        except (KernelFault, BadTape) as fault:
            record["ragged"] = _as(size, "refused", str(fault))
            return
    bad = next((outcome for outcome in found.outcomes if outcome.wrong is not None), None)
    if bad is None and not found.depends_on_memory and not found.count:
        record["ragged"] = _as(size, "right", "")
        return
    if bad is not None:
        number = bad.wrong or 0
        said = f"{task.outputs[number]} on {bad.distribution} inputs: {bad.judgements[number].detail}"
    else:
        said = found.count or "the result depends on what an earlier run left in memory"
    record["ragged"] = _as(size, "wrong", said)
    message = f"it is right at sizes {', '.join(map(str, dict.fromkeys(request['check'])))} and takes size {size}, which no "
    message += f"tile divides, but is wrong there: {said}"
    if request["asked"]:
        record["warnings"].append(message)
        return
    budget = Budget()
    words = diagnosis.named(task, [found], budget) or said
    record["warnings"] += [budget.untried] if budget.untried else []
    record["diagnosis"] = f"at size {size}, which no tile divides, the last tile is wrong: {words}"
    raise Failed("values", finding("values", {"kind": "ragged", "message": message, "advice": _ADVICE}))


def _as(size: int, verdict: str, detail: str) -> dict[str, Any]:
    return {"size": size, "verdict": verdict, "detail": detail}
