"""Races of two cores that change no result, shown by launches in which the other of the two accesses would have come first."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nki_hf.errors import KernelFault
from nki_hf.observers.races import Race
from nki_hf.observers.written_twice import elements_of
from nki_hf.sim import LaunchResult, SimOptions, launch
from nki_hf.sim.execution.current_machine import current_machine
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.sim.run.play import BadTape, played
from nki_hf.sim.stream.events import Event, Region
from nki_hf.tools.judging.line_words import line_words
from nki_hf.tools.judging.values import Run, to_kernel

__all__ = ["Repeated", "harmless"]

Place = tuple[str, int]
"""File and line."""


@dataclass(frozen=True)
class Repeated:
    """What it takes to run the first launch again.

    Attributes:
      run, trace, options, lnc: of the launch.
      arrays: its inputs by the task's names.
      file: the kernel's.
    """

    run: Run
    trace: Mapping[str, Any]
    options: SimOptions
    lnc: int
    arrays: Mapping[str, Any]
    file: str

    def arguments(self) -> dict[str, Any]:
        """Copies of the inputs by the kernel's parameters: a launch may write them."""
        given = to_kernel(self.run, self.arrays)
        return {parameter: np.array(given[name]) for parameter, name in self.trace["parameters"]}

    def launched(
        self, arguments: dict[str, Any], *, core: str = "", without: set[Place] | None = None, watch: Any = None
    ) -> LaunchResult:
        """The launch on other inputs, without what a core does at some places, or watched (see play.py)."""
        tape = self.trace["tape"]
        if without:
            numbers = {number for number, place in enumerate(tape["places"]) if tuple(place) in without}
            cores = {**tape["cores"], core: _left(tape["cores"].get(core, []), numbers)}
            tape = {**tape, "cores": cores}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SimulatorWarning)
            kernel = played(tape, [parameter for parameter, _ in self.trace["parameters"]], watch)
            return launch(kernel, (), arguments, options=self.options, lnc=self.lnc)


def harmless(found: Sequence[Race], first: LaunchResult, again: Repeated) -> list[str]:
    """A warning for each kind of race, if none of them can change an output; empty if one may.

    * Both cores write the same elements by the same instructions: they must write the same bytes.
    * One reads what the other writes into an input (a cache whose new row is masked out): the launch must give the same outputs
      if the input holds from the beginning what is written there, which is what the reader sees if it comes last, and if
      nothing is written, which is what it sees if it comes first; of an input that is returned nothing is asked then.
    """
    try:
        return _harmless([race for race in found if race.same], [race for race in found if not race.same], first, again)
    except (BadTape, KernelFault):  # what is left out may be what later instructions need
        return []


def _harmless(alike: Sequence[Race], others: Sequence[Race], first: LaunchResult, again: Repeated) -> list[str]:
    said = []
    if alike:
        sides = [side for race in alike for side in _sides(race)]
        places = {(event.file, event.line) for event, region in sides if any(region is item for item in event.writes)}
        if not _written_alike(places, first, again):
            return []
        lines = ", ".join(sorted({line_words(again.file, file, line) for file, line in places}))
        said.append(f"both cores write the same values at {lines}: whichever comes last, the result is one")
    if others:
        seen = _seen_late(others, first, again)
        if not seen:
            return []
        said += seen
    return said


def _written_alike(places: set[Place], first: LaunchResult, again: Repeated) -> bool:
    """True if both cores write the same bytes at these places. In loops of run time, whose turns nobody watches, each core
    alone must give the same outputs.
    """
    written: dict[Place, dict[int, list[bytes]]] = {}

    def watch(_: str, file: str, line: int, views: Sequence[np.ndarray[Any, Any]]) -> None:
        if (file, line) in places:
            found = written.setdefault((file, line), {0: [], 1: []})[current_machine("judge").core]
            found += [view.tobytes() for view in views]

    again.launched(again.arguments(), watch=watch)
    if any(cores[0] != cores[1] for cores in written.values()):
        return False
    unseen = places - set(written)
    return not unseen or all(_same(first, again.launched(again.arguments(), core=core, without=unseen)) for core in ("0", "1"))


def _seen_late(found: Sequence[Race], first: LaunchResult, again: Repeated) -> list[str]:
    arguments, after = again.arguments(), again.arguments()
    again.launched(after)  # which writes its inputs
    said, without, inputs = [], dict[str, set[Place]](), set[int]()
    for race in found:
        written = [side for side in _sides(race) if any(side[1] is item for item in side[0].writes)]
        if len(written) != 1:
            return []
        ((event, region),) = written
        name, elements = region.buffer.name, elements_of(region)
        same = region.dtype.itemsize == region.buffer.dtype.itemsize
        if region.buffer.role != "input" or name not in arguments or elements is None or not same:
            return []
        inputs.add(region.buffer.number)
        without.setdefault(str(event.core), set()).add((event.file, event.line))
        for late in first.events:  # of every such write, not only of the pair that stands for the others
            for item in late.writes:
                if (late.file, late.line, late.core) == (event.file, event.line, event.core) and item.buffer.name == name:
                    chosen = elements_of(item)
                    if chosen is None:
                        return []
                    arguments[name].reshape(-1)[chosen] = after[name].reshape(-1)[chosen]
        reader = next(other for other, _ in _sides(race) if other is not event)
        read, wrote = (line_words(again.file, item.file, item.line) for item in (reader, event))
        said.append(
            f"core {reader.core} reads {name} at {read} while core {event.core} writes it at {wrote}: "
            "what is read there changes no output"
        )
    if not _same(first, again.launched(arguments)):
        return []
    tape = again.trace["tape"]
    homes = [tape["tensors"][number][2] for number in _tensors_in(tape["returned"]["0"])]
    for core, places in without.items():
        other = again.launched(again.arguments(), core=core, without=places).outputs
        if len(homes) != len(other):
            return []
        triples = zip(homes, first.outputs, other, strict=True)
        if any(home not in inputs and not _equal(a, b) for home, a, b in triples):
            return []
    return said


def _tensors_in(value: Any) -> list[int]:
    """Numbers of the tensors in what a kernel returned, as a tape holds it."""
    if not isinstance(value, list | tuple):
        return []
    return [value[1]] if value[0] == "T" else [number for item in value[1:] for number in _tensors_in(item)]


def _sides(race: Race) -> tuple[tuple[Event, Region], tuple[Event, Region]]:
    return (race.first, race.first_region), (race.second, race.second_region)


def _same(first: LaunchResult, other: LaunchResult) -> bool:
    return all(_equal(a, b) for a, b in zip(first.outputs, other.outputs, strict=True))


def _equal(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """True if all elements are equal; zeros of both signs are, and so is what is no number."""
    if a.tobytes() == b.tobytes():
        return True
    if a.dtype.kind in "iubV":
        return False
    return bool(np.array_equal(a.astype(np.float64), b.astype(np.float64), equal_nan=True))


def _left(entries: Sequence[Any], places: set[int]) -> list[Any]:
    """Entries of a tape without those at places of some numbers, in loops too."""
    kept = []
    for entry in entries:
        if entry[3] in places and entry[0] != "loop":
            continue
        kept.append([*entry[:6], _left(entry[6], places), *entry[7:]] if entry[0] == "loop" else entry)
    return kept
