"""Kinds of instructions that a kernel uses otherwise at a timed size than at the sizes whose values were judged: its values are
judged there too, since a branch that is taken for large sizes alone may compute anything.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import LaunchResult, SimOptions
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.sim.stream.events import Event
from nki_hf.tasks import Task
from nki_hf.tools.judging.accepted import accepting
from nki_hf.tools.judging.diagnosis import named
from nki_hf.tools.judging.findings import Failed, finding
from nki_hf.tools.judging.imprecision import imprecision
from nki_hf.tools.judging.line_words import line_words
from nki_hf.tools.judging.ours import packed_by
from nki_hf.tools.judging.precision import RATIOS
from nki_hf.tools.judging.timed_work import expected_growth
from nki_hf.tools.judging.values import Checked, Run, checked, distributions_of, drawn, run_tape, to_kernel

__all__ = [
    "Kind",
    "Place",
    "Use",
    "failed",
    "judge_there",
    "kinds_of",
    "other_place",
    "otherwise",
    "places_of",
    "run_at",
    "with_values",
    "wrong_in",
]

Kind = tuple[str, ...]
Place = tuple[str, int, str]
Launched = tuple[Run, LaunchResult, Mapping[str, Any]]
_LEAST = 0.75
"""Share of the elements that growth leads one to expect, below which values are judged there."""
_PART = 0.03
"""Share of the elements of a program from which a kind is looked at: leaving out less gains nothing."""
_ATTRIBUTES = ("op", "op0", "op1", "reduce", "perf_mode", "is_transpose")
_MOVES = ("dma_copy", "loop_entry", "loop_turn", "core_barrier", "memset")
"""What computes nothing: a transfer of another size, or a buffer that is cleared, is no other program."""


@dataclass
class Use:
    """How a kind is used: the first instruction's file and line, how many there are, and the elements that all of them read and
    write.
    """

    file: str
    line: int
    count: int = 0
    elements: int = 0


def kinds_of(events: Iterable[Event], outputs: Collection[int]) -> dict[Kind, Use]:
    """How the instructions that compute what reaches the returned buffers are used, by opcode, operators and element types."""
    found: dict[Kind, Use] = {}
    for event in _reaching(events, outputs):
        if event.opcode in _MOVES:
            continue
        given = [f"{name}={event.attrs[name]}" for name in _ATTRIBUTES if event.attrs.get(name)]
        types = [",".join(region.dtype.name for region in regions) for regions in (event.reads, event.writes)]
        use = found.setdefault((event.opcode, *given, f"{types[0]} -> {types[1]}"), Use(event.file, event.line))
        use.count += 1
        use.elements += sum(region.elements for region in (*event.reads, *event.writes))
    return found


def places_of(events: Iterable[Event]) -> set[Place]:
    """The lines of the kernel that issue instructions, and which ones."""
    return {(event.file, event.line, event.opcode) for event in events}


def other_place(judged: Iterable[set[Place]], timed: set[Place], own: str) -> tuple[str, str, int] | None:
    """An instruction at a line that no judged size reaches, as words, file and line; None if there is none. `own`: the kernel's
    file.
    """
    new = sorted(timed.difference(*judged))
    if not new:
        return None
    file, line, opcode = new[0]
    return f"reaches {opcode} at {line_words(own, file, line)}, which no size of --check reaches", file, line


def _reaching(events: Iterable[Event], outputs: Collection[int]) -> list[Event]:
    """Those whose results are read on the way to an output (or an input that is written), by allocation, in order; what runs in
    loops of run time may be read in the next turn, and is kept.
    """
    listed = list(events)
    live = set(outputs)
    live |= {region.buffer.number for event in listed for region in event.writes if region.buffer.role == "input"}
    while True:
        before, kept = len(live), []
        for event in reversed(listed):
            if not event.writes or any(region.buffer.number in live for region in event.writes):
                live.update(region.buffer.number for region in event.reads)
                kept.append(event)
        if len(live) == before:
            return kept[::-1]


def otherwise(
    judged: Mapping[int, Mapping[Kind, Use]], timed: Mapping[Kind, Use], size: int, own: str
) -> tuple[str, str, int] | None:
    """What a timed size does otherwise than the judged ones (by size), as words, file and line; None if nothing does.
    `own`: the kernel's file.
    """
    if not judged or size in judged:
        return None
    first, last = min(judged), max(judged)
    for kind, use in timed.items():
        if not any(kind in found for found in judged.values()):
            at = line_words(own, use.file, use.line)
            return f"uses {' '.join(kind)} ({at}), which it uses at no size of --check", use.file, use.line
    whole = [sum(use.elements for use in judged[at].values()) for at in (first, last)]
    most = expected_growth(first, whole[0], last, whole[1], size) / max(whole[1], 1)
    for kind, before in judged[last].items() if size > last else ():
        if before.elements < _PART * whole[1]:
            if kind not in timed and all(kind in found for found in judged.values()):
                words = f"uses {' '.join(kind)} on the way to no output, and at the sizes of --check on the way to one"
                return f"{words} ({line_words(own, before.file, before.line)})", before.file, before.line
            continue
        smaller = judged[first].get(kind)
        expected = expected_growth(first, smaller.elements if smaller else 0, last, before.elements, size)
        expected = min(expected, before.elements * most)  # what grew faster than all of the program had only begun
        found = timed[kind].elements if kind in timed else 0
        if found < _LEAST * expected and not _once_per_tile(judged, timed, kind, size):
            words = f"has {found:,} elements in {' '.join(kind)}, and the smaller sizes lead to {expected:,.0f}"
            return f"{words} ({line_words(own, before.file, before.line)})", before.file, before.line
    return None


def _once_per_tile(judged: Mapping[int, Mapping[Kind, Use]], timed: Mapping[Kind, Use], kind: Kind, size: int) -> bool:
    """True if instructions of a kind become as many more as tiles do, and none smaller: the last block of a tile, on a mask's
    diagonal, grows only up to the size of a block.
    """
    last = max(judged)
    before, now = judged[last][kind], timed.get(kind)
    if now is None or any(kind not in found for found in judged.values()):
        return False
    counts = {**{at: found[kind].count for at, found in judged.items()}, size: now.count}
    linear = all(abs(count * last - before.count * at) < max(at, last) for at, count in counts.items())
    return linear and now.elements * before.count >= before.elements * now.count


def judge_there(
    request: Mapping[str, Any],
    task: Task,
    asked: Mapping[str, Any],
    trace: Mapping[str, Any],
    launched: Launched,
    what: tuple[str, str, int] | None,
    is_cheap: bool,
) -> None:
    """Judge the values of a timed size.

    Args:
      request, task: of the judgement.
      asked, trace: the launch, and what the kernel's process answered.
      launched: `with_values` of it.
      what: why it is judged: words, file and line; None = on one distribution.
      is_cheap: whether that costs little; the cause of what is wrong is looked for then.

    Raises:
      Failed: an output is wrong there.
    """
    size = asked["size"]
    words, file, line = what or ("", "", 0)
    said = f"at size {size:,} the kernel {words}, and there" if what else f"at size {size:,}"
    run, first, arrays = launched
    options = SimOptions(chip=get_chip(asked["chip"]), third_party=True, record=True, checks=False)
    distributions = distributions_of(task, 1)[: None if what else 1]
    # rows of other sizes show what is taken from another tile (a maximum), rising ones what is kept of an earlier block
    more = ("uneven_rows", "rising_maximum") if what else ("rising_maximum",)
    distributions += tuple(name for name in more if name in distributions_of(task, 0) and name not in distributions)
    try:
        found = checked(run, trace, options, request["lnc"], request["seed"], distributions, first, arrays)
    except KernelFault as fault:
        raise failed(f"{said} {fault.record.instruction}: {fault.record.message}", file, line) from None
    _, found = accepting(run, found, request)
    if wrong := wrong_in(found, run, request):
        cause = named(task, [found]) if is_cheap else ""
        raise failed(f"{said} {wrong}{cause and f'; {cause}'}", file, line)
    if found.count:
        raise failed(f"{said} {found.count}", file, line)


def wrong_in(found: Checked, run: Run, request: Mapping[str, Any]) -> str:
    """The first wrong output of the first distribution that has one, in words; empty if all are right."""
    for outcome in found.outcomes:
        if outcome.wrong is not None:
            judgement = outcome.judgements[outcome.wrong]
            return f"{run.task.outputs[outcome.wrong]} is wrong on {outcome.distribution} inputs: {judgement.detail}"
        exact = request["dtype"] == "float32" or request["rtol"]
        if not exact and (imprecise := imprecision(outcome, RATIOS[run.task.ideal is not None])):
            return f"{run.task.outputs[outcome.least_exact]} is wrong: {imprecise}"
    return ""


def with_values(
    request: Mapping[str, Any], task: Task, asked: Mapping[str, Any], trace: Mapping[str, Any], said: str
) -> Launched:
    """The launch of a timed size on normal inputs.

    Raises:
      Failed: with `said`, where it breaks a limit that only values show.
    """
    run = run_at(request, task, asked)
    options = SimOptions(chip=get_chip(asked["chip"]), third_party=True, record=True, checks=False)
    arrays = drawn(run, "normal", request["seed"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulatorWarning)
        try:
            return run, run_tape(trace, to_kernel(run, arrays), options, request["lnc"]), arrays
        except KernelFault as fault:
            raise failed(f"{said} {fault.record.instruction}: {fault.record.message}") from None


def run_at(request: Mapping[str, Any], task: Task, asked: Mapping[str, Any]) -> Run:
    """What is judged at the size of a launch."""
    size, chip = asked["size"], get_chip(asked["chip"])
    packed = packed_by(request["file"], request["answer"]["name"], task, chip, request["lnc"])
    return Run(
        task=task,
        size=size,
        dtype=request["dtype"],
        rtol=request["rtol"],
        layout=request["layout"] if packed is None else {"out": packed.out},
        packed=None if packed is None else packed.arrays(size, request["dtype"]),
    )


def failed(message: str, file: str = "", line: int = 0) -> Failed:
    """The error of a timed size that is wrong."""
    advice = "A kernel must be right at every size: judge it there with --check."
    return Failed(
        "times", finding("times", {"kind": "other program", "message": message, "advice": advice, "file": file, "line": line})
    )
