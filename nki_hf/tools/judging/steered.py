"""Values where inputs steer: turns of loops, offsets and conditions that come from inputs are judged with other ones.

A kernel that computes only as long as a number of its inputs is small is right or wrong by the draw. So the elements that steer
it (see `steering`) are given other values, and where the loops then turn otherwise, the outputs are judged there too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions
from nki_hf.tasks import Task
from nki_hf.tools.judging.budget import slowness
from nki_hf.tools.judging.cases import add_case
from nki_hf.tools.judging.findings import Failed, finding
from nki_hf.tools.judging.immediates import immediates
from nki_hf.tools.judging.line_words import line_words
from nki_hf.tools.judging.steered_inputs import named_elements, steered_inputs, task_elements
from nki_hf.tools.judging.steering import Steering, all_loops, steering
from nki_hf.tools.judging.values import Checked, Outcome, Run, distributions_of, drawn, judged_on, replayed

__all__ = ["STEERED", "Steered"]

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Turns = tuple[Any, ...]

STEERED = "steered"
"""Name of these inputs among the distributions of a record's cases."""
_SECONDS = 2.0
"""CPU time for one size, on a fast processor."""
_MOST = 24
"""Inputs of one thing that is steered on which values are judged."""
_DRAWS = 4
"""Draws of normal inputs that say, beside the other distributions, how large and small numbers are."""
_ADVICE = "A kernel must be right whatever its inputs are: let sizes say how often a loop turns, or compute for every value."


class Steered:
    """What inputs steer at one size.

    Attributes:
      items: what is steered; empty for most kernels.
    """

    def __init__(
        self, run: Run, trace: Mapping[str, Any], options: SimOptions, check: Checked, request: Mapping[str, Any]
    ) -> None:
        self.run, self.trace, self.options, self.check = run, trace, options, check
        self.lnc, self.seed, self.file = request["lnc"], request["seed"], request["file"]
        replays = run.packed is None and not run.task.recorded and not check.count and check.result.program is not None
        self.items = steering(check.result) if replays else []

    def cause(self) -> str:
        """Why outputs are wrong on some of the inputs that were judged, if a loop turns otherwise there; else empty."""
        loops = [item for item in self.items if item.loops]
        wrong = [outcome for outcome in self.check.outcomes if outcome.wrong is not None]
        right = [outcome for outcome in self.check.outcomes if outcome.wrong is None]
        if not loops or not wrong or not right:
            return ""
        bad, good = ([self._replayed(outcome.arrays)[1] for outcome in group] for group in (wrong, right))
        for item in loops:
            apart, usual = ({_of(item, turns) for turns in group} for group in (bad, good))
            if not apart & usual:
                arrays = wrong[0].arrays
                name, flags = next(iter(task_elements(self.run, self.trace, item).items()))
                held = f" = {float(arrays[name][flags][0]):.6g}" if flags.sum() == 1 else ""
                return (
                    f"the result depends on how often the loop at {self._at(item)} turns: its trip count comes from "
                    f"{named_elements(name, flags)}{held}, it turned {_times(_of(item, bad[0]))} on {wrong[0].distribution} "
                    f"inputs, where it is wrong, and {_times(_of(item, good[0]))} on {right[0].distribution} ones"
                )
        return ""

    def judge(self, record: dict[str, Any]) -> None:
        """Judge further inputs; say where a loop turned alike on all of them.

        Raises:
          Failed: an output is wrong there.
        """
        if not self.items:
            return
        until = time.thread_time() + _SECONDS * slowness()
        turns = [self._replayed(outcome.arrays)[1] for outcome in self.check.outcomes]
        seen = set(turns)
        every = [drawn(self.run, name, self.seed) for name in distributions_of(self.run.task, 0)]
        every += [drawn(self.run, "normal", self.seed + more) for more in range(1, _DRAWS)]
        for item in self.items:
            self._judge(record, item, every, turns[0], seen, until)
        for item in self.items:
            turned = {_of(item, turns) for turns in seen}
            if item.loops and len(turned) == 1:
                name, flags = next(iter(task_elements(self.run, self.trace, item).items()))
                where = f"at size {self.run.size:,} the loop at {self._at(item)} turned {_times(turned.pop())}"
                record["warnings"].append(
                    f"{where} on every input that was judged, although its trip count comes from "
                    f"{named_elements(name, flags)}: no other count was seen"
                )

    def _judge(
        self,
        record: dict[str, Any],
        item: Steering,
        every: Sequence[Arrays],
        usual: Turns,
        seen: set[Turns],
        until: float,
    ) -> None:
        judged = 0
        numbers = {number for _, _, number in immediates(self.trace["tape"])}
        for words, arrays in steered_inputs(task_elements(self.run, self.trace, item), every, sorted(numbers)):
            if judged == _MOST or time.thread_time() > until:
                return
            try:
                outputs, turns = self._replayed(arrays)
            except KernelFault as fault:
                what = f"with {words}, {fault.record.instruction}: {fault.record.message}"
                raise self._failed(record, item, what, None, (fault.record.file, fault.record.line)) from None
            if turns in seen and (item.loops or item.what == "register"):
                continue
            seen.add(turns)
            judged += 1
            outcome = judged_on(self.run, STEERED, arrays, outputs)
            if not all(np.isfinite(reference).all() for reference in outcome.references):
                continue  # a divisor of 0, a root of a negative number: no input of the task
            add_case(outcome, self.run.size, self.run.task, record)
            if outcome.wrong is not None:
                now = (
                    f" it turned {_times(_of(item, turns))} (on normal inputs {_times(_of(item, usual))})" if item.loops else ""
                )
                raise self._failed(record, item, f"with {words}{now}", outcome, (item.file, item.line))

    def _at(self, item: Steering) -> str:
        return line_words(self.file, item.file, item.line)

    def _replayed(self, arrays: Arrays) -> tuple[Sequence[Array], Turns]:
        """The outputs, and the turns of all loops with what registers hold."""
        launched = self.check.result.run
        loops = [loop for loop, _ in all_loops(launched.loops)]
        for loop in loops:
            loop.turned = 0
        outputs = replayed(self.run, self.check.result.program, self.trace, arrays, self.options, self.lnc)
        turns = tuple((loop, loop.turned) for loop in loops)
        return outputs, (turns, tuple(float(register.cell[0]) for register in launched.loaded))

    def _failed(
        self, record: dict[str, Any], item: Steering, what: str, outcome: Outcome | None, place: tuple[str, int]
    ) -> Failed:
        task: Task = self.run.task
        at = self._at(item)
        file, line = place if place[1] else (item.file, item.line)
        said = {
            "loop": f"how often the loop at {at} turns",
            "register": f"a number that {at} loads from the inputs",
            "index": f"indices that {at} reads from the inputs",
            "condition": f"a comparison at {at} of a number of the inputs",
            "number": f"single numbers of the inputs, which {at} reads by themselves",
        }[item.what]
        record["diagnosis"] = f"the result depends on {said}: {what}"
        number = outcome.wrong or 0 if outcome is not None else 0
        found = f"{task.outputs[number]}: {outcome.judgements[number].detail}" if outcome is not None else what
        message = f"at size {self.run.size}, {what}: {found}" if outcome is not None else f"at size {self.run.size}, {found}"
        return Failed(
            "values",
            finding(
                "values",
                {"kind": STEERED, "message": message, "advice": _ADVICE, "file": file, "line": line},
            ),
        )


def _of(item: Steering, turns: Turns) -> int:
    """Turns of the loops of an item, all together."""
    mine = {id(loop) for loop in item.loops}
    return sum(count for loop, count in turns[0] if id(loop) in mine)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
