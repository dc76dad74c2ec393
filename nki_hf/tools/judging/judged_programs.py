"""What the launches do whose values are judged: what a timed launch is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nki_hf.sim import LaunchResult
from nki_hf.tasks import Task
from nki_hf.tools.judging.followed import Followed
from nki_hf.tools.judging.immediates import Immediate, immediates, other_number
from nki_hf.tools.judging.other_kinds import Kind, Place, Use, kinds_of, other_place, otherwise, places_of
from nki_hf.tools.judging.tape_difference import tape_difference
from nki_hf.tools.judging.timed_work import Work, asked_outputs, work_of
from nki_hf.tools.judging.unused_work import Part, unused, used_parts

__all__ = ["Judged", "judged_by_chip"]


class Judged:
    """What the launches do whose values are judged, by size, on one chip; `file` is the kernel's."""

    def __init__(self, chip: str, file: str) -> None:
        self.chip, self.file = chip, file
        self.work: dict[int, Work] = {}
        self.kinds: dict[int, dict[Kind, Use]] = {}
        self.places: dict[int, set[Place]] = {}
        self.parts: dict[int, dict[Place, Part]] = {}
        self.numbers: dict[int, dict[Immediate, tuple[str, int]]] = {}

    def add(self, size: int, task: Task, launched: LaunchResult, played: Mapping[str, Any]) -> None:
        """Note a launch."""
        if size not in self.work:
            events, outputs = launched.events, asked_outputs(launched, task)
            self.work[size] = work_of(events, size, task.flops(size), outputs)
            self.kinds[size] = kinds_of(events, outputs)
            self.places[size] = places_of(events)
            self.parts[size] = used_parts(Followed(events), outputs)
            self.numbers[size] = immediates(played["tape"])

    def other(
        self, size: int, task: Task, launched: LaunchResult, played: Mapping[str, Any], followed: Followed
    ) -> tuple[str, str, int] | None:
        """What a timed launch does otherwise, as words, file and line; None if nothing. `followed` is of its events."""
        if not self.work or size in self.work:
            return None
        events, outputs = launched.events, asked_outputs(launched, task)
        return (
            otherwise(self.kinds, kinds_of(events, outputs), size, self.file)
            or other_number(self.numbers.values(), immediates(played["tape"]), self.file)
            or other_place(self.places.values(), places_of(events), self.file)
            or unused(self.parts.values(), used_parts(followed, outputs), self.file)
        )


def judged_by_chip(chips: Sequence[str], launches: Sequence[Any], file: str) -> dict[str, Judged]:
    """What timed launches are compared with, by chip: that of the first chip where the kernel is the same program at every
    size. `file` is the kernel's.
    """
    tapes = {(trace["size"], trace["chip"]): played["tape"] for trace, played in launches}
    found = {chips[0]: Judged(chips[0], file)}
    for chip in chips[1:]:
        sizes = [size for size, at in tapes if at == chip and (size, chips[0]) in tapes]
        same = all(tape_difference(tapes[size, chips[0]], tapes[size, chip]) is None for size in sizes)
        found.setdefault(chip, found[chips[0]] if same else Judged(chip, file))
    return found
