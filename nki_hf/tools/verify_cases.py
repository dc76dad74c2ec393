"""The cases of `nki_hf verify`: a kernel on every distribution of inputs, and what its instructions alone say."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np

from nki_hf.errors import FaultRecord, KernelFault
from nki_hf.observers.accumulation import foreign_accumulation
from nki_hf.observers.capacity import report as capacity_report
from nki_hf.observers.races import Trust, races
from nki_hf.sim import LaunchResult, SimOptions, launch
from nki_hf.sim.beside import in_two
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.sim.run.program import Program
from nki_hf.sim.stream.region_elements import elements_of
from nki_hf.testing import DISTRIBUTIONS
from nki_hf.tools.judging import plain
from nki_hf.tools.progress import Work
from nki_hf.tools.verify_case import Case
from nki_hf.tools.verify_judge import Judgement, judge
from nki_hf.tools.verify_load import check_call, describe, position
from nki_hf.tools.verify_subject import ArraySubject, AttentionSubject

__all__ = ["never_written", "run"]

Array = np.ndarray[Any, Any]

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
    cases_of = _Cases(subject, options, lnc, seed)
    judged: list[dict[str, Any]] = []
    left = list(distributions)
    while left and cases_of.program is None:
        _begin(work, left[0], len(judged))
        judged.append(cases_of.judged(left.pop(0)))

    def second_of_two() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for distribution in left[1::2]:
            _begin(work, distribution, len(judged) + 2 * len(found))
            found.append(cases_of.judged(distribution))
        return found

    def first_of_two() -> bytes:
        return plain.dump([cases_of.judged(distribution) for distribution in left[::2]])

    # what follows from the instructions is the same for every input, and for what this process has fewer of
    (second, observed), first = in_two(lambda: (second_of_two(), cases_of.observed()), first_of_two)
    judged += [item for pair in zip_longest(plain.load(first), second) for item in pair if item is not None]
    cases = [item["case"] for item in judged]
    faults: list[dict[str, Any]] = []
    for item in judged:
        faults += [record for record in item["faults"] if record not in faults]
    unsure = {text for item in judged for text in item["unsure"]}
    shows = any(item["shows"] for item in judged)
    capacity: list[dict[str, Any]] = []
    inferred: list[dict[str, Any]] = []
    if observed is not None:
        certain, inferred, accumulated, capacity = observed
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


class _Cases:
    """Runs the kernel on one distribution after the other: as Python until a launch could be recorded, then by replaying that.

    Attributes:
      first: the last launch that was to be recorded; the others replay it if it could be.
      shown: the first launch that was judged.
    """

    def __init__(self, subject: AttentionSubject | ArraySubject, options: SimOptions, lnc: int, seed: int) -> None:
        self.subject, self.options, self.lnc, self.seed = subject, options, lnc, seed
        self.first: LaunchResult | None = None
        self.shown: LaunchResult | None = None
        self._unwritten: list[Array | None] | None = None

    @property
    def program(self) -> Program | None:
        """What other inputs are replayed with, if there is such."""
        return None if self.first is None else self.first.program

    def judged(self, distribution: str) -> dict[str, Any]:
        """Plain JSON types: `case` (see `run`), `faults` (what stopped it), `unsure` (warnings), and `shows`: a reference is
        not all zero.
        """
        found: dict[str, Any] = {"faults": [], "unsure": [], "shows": False}
        case = self.subject.case(distribution, self.seed)
        check_call("kernel", self.subject.kernel, case.arguments)
        try:
            result = self._launched(distribution, case, found["unsure"])
        except KernelFault as fault:
            found["case"] = {"distribution": distribution, "verdict": "fault", "detail": str(fault), "outputs": []}
            found["faults"].append(fault.record.to_dict())
        except (Exception, SystemExit) as error:  # whatever the kernel's own code raises is a finding about it
            found["case"] = {"distribution": distribution, "verdict": "error", "detail": describe(error), "outputs": []}
            found["faults"].append(_raised(error))
        else:
            self.shown = self.shown or result
            if self._unwritten is None or self.program is None:  # else it follows from the same instructions
                self._unwritten = never_written(result)
            found["case"] = _judge_case(distribution, result, case, self._unwritten)
            found["shows"] = any(bool(np.any(item.reference)) for item in case.expected)
        plain_again: dict[str, Any] = plain.load(plain.dump(found))
        return plain_again

    def _launched(self, distribution: str, case: Case, unsure: list[str]) -> LaunchResult:
        subject, options, lnc = self.subject, self.options, self.lnc
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if self.first is None or self.first.program is None:
                recording = replace(options, record=True)
                result = self.first = launch(subject.kernel, (), dict(case.arguments), options=recording, lnc=lnc)
            else:
                result = replace(self.first, outputs=self.first.program(arrays_of(case.arguments)))
            again = _failed_tiles(result, case)
            if again:
                result = launch(subject.kernel, (), {**case.arguments, "exact": again}, options=options, lnc=lnc)
                unsure.append(f"{distribution}: {len(again):,} query tiles failed the certificate; a second launch names them")
        unsure += [str(item.message) for item in caught if issubclass(item.category, SimulatorWarning)]
        return result

    def observed(self) -> tuple[list[Any], list[Any], list[Any], list[Any]] | None:
        """Races, pairs whose order no public source promises, undefined accumulation, and the memory's high-water marks; None
        if no launch was judged.
        """
        if self.shown is None:
            return None
        events, options = self.shown.events, self.options
        certain = [race.record().to_dict() for race in races(events)]
        inferred: list[dict[str, Any]] = []
        if not options.third_party:
            every = (race.record().to_dict() for race in races(events, trust=_PROVEN))
            inferred = [record for record in every if record not in certain]
        accumulated = [record.to_dict() for record in foreign_accumulation(events, options.chip)]
        return certain, inferred, accumulated, capacity_report(events, options.chip)


def _raised(error: BaseException) -> dict[str, Any]:
    """The record of what the kernel's own code raised."""
    file, line = position(error)
    return FaultRecord(
        kind="error",
        instruction="kernel",
        message=f"the kernel raised {type(error).__name__}: {error}",
        limit="a kernel returns its outputs",
        file=file,
        line=line,
    ).to_dict()


def _begin(work: Work | None, distribution: str, done: int) -> None:
    if work is not None:
        work.advance(f"{distribution} inputs", count=done - work.done)


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
            there = elements_of(known, region)
            if there is None:
                flags[region.buffer.number] = None
            else:
                there[...] = True
    found: list[Array | None] = []
    for number, output in zip(result.run.returned, result.outputs, strict=True):
        known = flags.get(number)
        found.append(None if known is None or known.size != output.size else ~known.reshape(output.shape))
    return found
