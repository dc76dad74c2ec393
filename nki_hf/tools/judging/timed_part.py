"""Values of a part of the output at a timed size: what it follows from runs on inputs, and all else is left out.

All values of such a size would take longer than a round may. A part that nobody knew when the kernel was recorded shows a
program that is another one for large sizes in most of its tiles, whatever it does there.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import LaunchResult, SimOptions
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.sim.run.play import Marks
from nki_hf.sim.run.shortened import shortened, torn
from nki_hf.sim.stream.events import Event, Region
from nki_hf.sim.stream.region_elements import elements_of
from nki_hf.tools.judging.accepted import accepting
from nki_hf.tools.judging.diagnosis import matched
from nki_hf.tools.judging.followed import Bools, Followed
from nki_hf.tools.judging.layouts import layout_of, placed
from nki_hf.tools.judging.odd_tiles import odd_tiles
from nki_hf.tools.judging.other_kinds import wrong_in
from nki_hf.tools.judging.task_functions import check_part, part_of
from nki_hf.tools.judging.timed_work import asked_outputs, seconds_of
from nki_hf.tools.judging.values import Checked, Run, drawn, in_layout, judged_on, run_tape, to_kernel

__all__ = ["needed_for", "part_is_wrong"]

Array = np.ndarray[Any, Any]
Index = tuple[slice, ...]
_ROWS = 128
"""Rows of a part, as many as partitions."""
_SECONDS = 2.0
"""CPU time up to which a part is judged."""


def part_is_wrong(
    request: Mapping[str, Any],
    run: Run,
    asked: Mapping[str, Any],
    trace: Mapping[str, Any],
    launched: LaunchResult,
    followed: Followed,
    marks: Mapping[int, Marks],
    secret: int,
) -> str | None:
    """What is wrong with a part of the output, in words; empty if nothing is. None if none is judged: the task says no part, it
    takes long, or values say how often a loop turns.

    Args:
      request, run: of the judgement, at this size.
      asked, trace: the launch, and what the kernel's process answered.
      launched, followed, marks: the launch on shapes, its events, and what each entry of the tape made.
      secret: chooses part and inputs.

    Raises:
      Failed: the task's own functions raise, or its part is none of the whole (see `check_part`).
    """
    task = run.task
    if task.part is None or launched.run.short or len(asked_outputs(launched, task)) != len(task.outputs):
        return None
    rng = np.random.default_rng(secret)
    own, given = layout_of(task, run.layout, task.outputs[0])
    number = asked_outputs(launched, task)[0]
    shape = _shape_of(launched.run.buffers[number].shape, own, given)
    if shape is None:
        return None
    if ".py" in request["task"]:  # those of the package are tested
        small = replace(run, size=max(task.check))
        check_part(small, drawn(small, "normal", secret))
    tiles = [_index(shape, int(rng.integers(_count(shape))))]
    tiles += [_index(shape, tile) for tile in _odd(shape, own, given, number, trace, followed, marks)]
    found, left, arrays = "", _SECONDS, dict[str, Array]()
    for place, index in enumerate(tiles):
        flags = np.zeros(shape, np.bool_)
        flags[index] = True
        needed = needed_for({number: placed(flags, own, given) if own else flags}, launched, followed, marks)
        seconds = _seconds(task.flops(run.size) * flags.mean(), asked, launched.events, needed)
        if not place and seconds > _SECONDS:
            return None
        left -= seconds * (place > 0)  # the odd ones have as much time together
        if left < 0:
            break
        arrays = arrays or drawn(run, "normal", secret)
        tape = shortened(trace["tape"], needed, followed.table, marks)
        if found := _wrong_tile(request, run, asked, {**trace, "tape": tape}, arrays, index):
            break
    return found


def _odd(
    shape: tuple[int, ...],
    own: str,
    given: str,
    number: int,
    trace: Mapping[str, Any],
    followed: Followed,
    marks: Mapping[int, Marks],
) -> list[int]:
    """The odd tiles of an output of a shape in the task's order of axes."""
    owner = _owners(shape)
    owner = placed(owner, own, given) if own else owner
    return odd_tiles(owner, number, trace["tape"], followed, marks, -(-shape[-2] // _ROWS))


def _wrong_tile(
    request: Mapping[str, Any],
    run: Run,
    asked: Mapping[str, Any],
    trace: Mapping[str, Any],
    arrays: Mapping[str, Array],
    index: Index,
) -> str:
    """What is wrong with one tile, in words; empty if nothing is. `trace` has the tape of what it follows from."""
    options = SimOptions(chip=get_chip(asked["chip"]), third_party=True, checks=False, events=False)
    words = f"at size {run.size:,}, of {_named(index)}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulatorWarning)
        try:
            result = run_tape(trace, to_kernel(run, arrays), options, request["lnc"])
        except KernelFault as fault:
            return f"{words}: {fault.record.instruction}: {fault.record.message}"
    outputs = [output[index] for output in in_layout(run, result.outputs)]
    outcome = judged_on(run, "normal", part_of(run, arrays, index), outputs, tuple(place.start for place in index))
    found = Checked(size=run.size, outcomes=[outcome], depends_on_memory=False, count="", result=result)
    wrong = wrong_in(accepting(run, found, request)[1], run, request)
    if not wrong:
        return ""
    cause = matched(run.task, [found])
    known = cause and "comes out if in " not in cause  # places there would be those of the tile
    return f"{words}: {wrong}{f'; {cause}' if known else ''}"


def _shape_of(shape: tuple[int, ...], own: str, given: str) -> tuple[int, ...] | None:
    """The shape of an output in the task's order of axes; None where it is no such output."""
    if not own:
        return shape if len(shape) > 1 else None
    if len(shape) != len(given) or len(own) < 2 or not set(own) <= set(given):
        return None
    return tuple(shape[given.index(letter)] for letter in own)


def _count(shape: tuple[int, ...]) -> int:
    """Tiles of rows of all heads, or of all entries of a batch."""
    return math.prod(shape[:-2]) * -(-shape[-2] // _ROWS)


def _index(shape: tuple[int, ...], tile: int) -> Index:
    """One tile of rows of one head, or of one entry of a batch; they are numbered head by head."""
    *outer, row = np.unravel_index(tile, (*shape[:-2], -(-shape[-2] // _ROWS)))
    first = int(row) * _ROWS
    heads = (slice(int(place), int(place) + 1) for place in outer)
    return (*heads, slice(first, min(first + _ROWS, shape[-2])))


def _owners(shape: tuple[int, ...]) -> Array:
    """The tile of each element of an output."""
    tiles = np.arange(_count(shape), dtype=np.int32).reshape(*shape[:-2], -1, 1)
    return np.ascontiguousarray(np.broadcast_to(np.repeat(tiles, _ROWS, -2)[..., : shape[-2], :], shape))


def _named(index: Index) -> str:
    rows = f"rows {index[-1].start:,} to {index[-1].stop - 1:,}"
    return rows if len(index) == 1 else f"{rows} in [{', '.join(str(place.start) for place in index[:-1])}]"


def needed_for(elements: Mapping[int, Array], launched: LaunchResult, followed: Followed, marks: Mapping[int, Marks]) -> Bools:
    """The events that some elements of buffers follow from, bool[events]: bool arrays in the shapes of the buffers, by number.

    Where one event of an instruction or loop is needed, all of it is; of two cores, all that the other one may read.
    """
    flat = {number: flags.reshape(-1) for number, flags in elements.items()}
    lnc = launched.run.lnc

    def writes(region: Region) -> bool:
        buffer = region.buffer
        if buffer.number not in flat:
            return lnc > 1 and buffer.core is None and not buffer.on_chip
        flags = elements_of(flat[buffer.number], region)
        return flags is None or bool(flags.any())

    wanted = [event.index for event in launched.events if any(map(writes, event.writes))]
    needed = followed.needed(np.array(wanted, np.int64))
    while len(more := torn(needed, followed.table, marks)):
        needed = followed.needed(np.union1d(np.flatnonzero(needed), more))
    return needed


def _seconds(operations: float, asked: Mapping[str, Any], events: Sequence[Event], needed: Bools) -> float:
    kept = [event for event, is_needed in zip(events, needed.tolist(), strict=True) if is_needed]
    return seconds_of(kept, sum(math.prod(shape) for _, shape, _ in asked["arrays"]), 2 * operations)
