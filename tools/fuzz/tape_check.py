"""One random kernel as the judge runs it: written on a tape, played on other inputs, and on shapes alone.

There is no model here, but laws: a played tape computes what the kernel does, bit by bit; its events on shapes alone are those
of the kernel itself, and of a player that issues each instruction instead of following one that is alike; and the tape is the
same whether each instruction was executed while it was written or not; and a tape without what some rows of an output do not
follow from gives these rows.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np

from nki_hf.errors import KernelFault
from nki_hf.sim import isa, language, launch
from nki_hf.sim.execution.machine import Machine
from nki_hf.sim.isa.instruction import NkiInstruction
from nki_hf.sim.run import instrumentation, tape
from nki_hf.sim.run.alike import Alike
from nki_hf.sim.run.play import Marks, played
from nki_hf.sim.run.shortened import shortened
from nki_hf.sim.stream.events import Event
from nki_hf.sim.tensors import scalars
from nki_hf.tools.judging import plain
from nki_hf.tools.judging.followed import Followed
from nki_hf.tools.judging.timed_part import needed_for
from tools.fuzz.kernel_check import inputs_of
from tools.fuzz.kernel_issue import PARAMETERS, launched, options_of
from tools.fuzz.kernel_programs import TILES, Step, draw_program
from tools.fuzz.pair_programs import draw_pair
from tools.fuzz.rare_programs import draw_rare
from tools.fuzz.wide_programs import draw_wide

__all__ = ["check_tape", "draw_taped"]

_TURNS = 2
"""Of each loop of run time, on shapes alone."""
_OPTIONS: tuple[dict[str, Any], ...] = ({}, {"third_party": True}, {"checks": False})
"""Of the launches on shapes."""


def draw_taped(seed: int) -> Step:
    """A program of that seed, of any kind; most have steps twice, alike or but for a tile or a sign."""
    rng = np.random.default_rng((seed, 3))
    program: Step = (draw_program, draw_wide, draw_rare, draw_pair)[int(rng.choice(4, p=[0.5, 0.15, 0.15, 0.2]))](seed)
    steps = [*program["steps"]]
    for step in program["steps"]:
        for _ in range(int(rng.integers(0, 3))):
            if step["op"] not in ("wide", "rare", "loop"):
                steps.insert(int(rng.integers(len(steps) + 1)), _varied(rng, program, step))
    return {**program, "steps": steps}


def _varied(rng: np.random.Generator, program: Step, step: Step) -> Step:
    """The step with some tiles exchanged for others of their types, and with zeros of either sign."""

    def other(tile: str) -> str:
        same = [each for each, kind in zip(TILES, program["types"], strict=True) if kind == program["types"][TILES.index(tile)]]
        return str(rng.choice(same))

    found = {}
    for name, value in step.items():
        if isinstance(value, dict) and "tile" in value:
            value = {**value, "tile": other(value["tile"])}
        elif isinstance(value, str) and value in TILES:
            value = other(value)
        elif isinstance(value, float) and value == 0:
            value = float(rng.choice([0.0, -0.0]))
        found[name] = value
    return found


def check_tape(program: Step) -> str:
    """What is wrong with a program's tape; empty = nothing.

    Raises:
      Refused: a step breaks a rule.
    """
    first, second = inputs_of(program, 0), inputs_of(program, 1)
    shapes = {"values": False, "trip_counts": _TURNS, **_OPTIONS[program["seed"] % len(_OPTIONS)]}
    with _installed():
        written = [_taped(program, first, {**shapes, "checks": each, "events": each}) for each in (True, False)]
    if written[0] != written[1]:
        return "tape without checks is another one"
    content = plain.load(written[0])
    kernel = played(content, [name for name in PARAMETERS if name in second])

    def play(inputs: dict[str, Any], **options: Any) -> Any:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return launch(kernel, tuple(inputs.values()), options=options_of(program, **options), lnc=program["cores"])

    try:
        mine, right = play(second).outputs, launched(program, second).outputs
        for index, (one, other) in enumerate(zip(mine, right, strict=True)):
            if one.tobytes() != other.tobytes():
                return f"output {index} of the played tape is not that of the kernel"
        short = play(second, **shapes).events
        if wrong := _part_is_wrong(program, content, second, mine, {**shapes}):
            return wrong
        with mock.patch.object(Alike, "possible", staticmethod(lambda machine: False)):
            whole = play(second, **shapes).events
    except KernelFault as fault:
        return f"fault of the tape alone: {fault}"
    return _apart("a player that issues each", short, whole) or _apart(
        "the kernel", short, launched(program, second, **shapes).events
    )


def _part_is_wrong(
    program: Step, content: Any, inputs: dict[str, Any], whole: Sequence[np.ndarray[Any, Any]], shapes: dict[str, Any]
) -> str:
    """What is wrong with some rows of an output if the tape is shortened to what they follow from."""
    marks: dict[int, Marks] = {}
    names = [name for name in PARAMETERS if name in inputs]

    def play(tape: Any, **options: Any) -> Any:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            kernel = played(tape, names, marks=None if options.get("values", True) else marks)
            return launch(kernel, tuple(inputs.values()), options=options_of(program, **options), lnc=program["cores"])

    shown = play(content, **shapes)
    if shown.run.short or not shown.run.returned:
        return ""
    rng = np.random.default_rng((program["seed"], 4))
    which = int(rng.integers(len(shown.run.returned)))
    number = shown.run.returned[which]
    flags = np.zeros(shown.run.buffers[number].shape, np.bool_)
    first = int(rng.integers(len(flags)))
    flags[first : first + int(rng.integers(1, 65))] = True
    followed = Followed(shown.events)
    needed = needed_for({number: flags}, shown, followed, marks)
    part = play(shortened(content, needed, followed.table, marks)).outputs[which]
    if part[flags].tobytes() != whole[which][flags].tobytes():
        return f"rows from {first} of output {which} are others if the tape is shortened to what they follow from"
    return ""


def _apart(whose: str, events: Iterable[Event], others: Iterable[Event]) -> str:
    """The first event that differs."""
    events, others = list(events), list(others)
    for one, other in zip(events, others, strict=False):
        mine, its = _told(one), _told(other)
        if mine != its:
            fields = [f"{a} is not {b}" for a, b in zip(mine, its, strict=True) if a != b]
            return f"event {one.index} ({one.opcode}) is not that of {whose}: {fields[0]}"
    return "" if len(events) == len(others) else f"events are {len(events)}, and those of {whose} {len(others)}"


def _told(event: Event) -> list[Any]:
    regions = []
    for region in (*event.reads, *event.writes):
        buffer = region.buffer
        line = 0 if buffer.role == "input" else buffer.line  # that of who launches
        of_buffer = buffer.number, buffer.space, buffer.shape, str(buffer.dtype), buffer.core, buffer.role, line
        regions.append((*of_buffer, str(region.dtype), region.offset, region.shape, region.strides, region.indirect))
    place = event.index, event.core, event.engine, event.queue, event.opcode, event.file, event.line
    return [*place, len(event.reads), *regions, {key: repr(value) for key, value in event.attrs.items()}]


def _taped(program: Step, inputs: dict[str, Any], options: dict[str, Any]) -> bytes:
    returned: dict[int, tuple[Any, ...]] = {}
    with tape.recording() as recorder:
        launched(program, inputs, returned=returned, **options)
    return plain.dump(recorder.tape(returned))


@contextlib.contextmanager
def _installed() -> Iterator[None]:
    """Block in which tapes can be written, which the judge does for good in a process of its own."""
    changed: list[tuple[Any, str]] = [(isa, name) for name in isa.__all__ if inspect.isfunction(getattr(isa, name))]
    changed += [(scalars, "combine"), (NkiInstruction, "depends_on"), (Machine, "allocate")]
    changed += [(language, name) for name in ("fori_loop", "while_loop", "dynamic_range")]
    before = [(owner, name, getattr(owner, name)) for owner, name in changed]
    try:
        instrumentation.install()
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
