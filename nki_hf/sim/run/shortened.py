"""A tape without what is not needed, for launches with values that want a part of the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from nki_hf.sim.run.play import Marks
from nki_hf.sim.stream.access_table import AccessTable

__all__ = ["shortened", "torn"]


def shortened(
    tape: Mapping[str, Any], needed: np.ndarray[Any, Any], table: AccessTable, marks: Mapping[int, Marks]
) -> dict[str, Any]:
    """The tape without instructions and loops none of whose events is needed, without their tiles on chip, and without the
    orders of instructions, which values do not depend on.

    Args:
      needed: True for each event that is, bool[events].
      table: the accesses of a launch of the whole tape.
      marks: of that launch, by core.
    """
    core_of = np.array([core for core, _, _, _ in table.heads], np.int64)[table.head]
    on_chip = {buffer.number for buffer in table.buffers if buffer.on_chip}
    cores = {}
    for core, entries in tape["cores"].items():
        at, buffers = np.array(marks[int(core)].events), marks[int(core)].buffers
        count = np.concatenate([[0], np.cumsum(needed & (core_of == int(core)))])[at]
        dropped = ((at[1:] > at[:-1]) & (count[1:] == count[:-1])).tolist()
        kept = [
            (entry, number)
            for entry, number, drop in zip(entries, buffers, dropped, strict=True)
            if not drop and entry[0] != "depends_on"
        ]
        used = {
            tape["tensors"][tensor][2]
            for entry, number in kept
            if number < 0
            for part in entry[2:]
            for tensor in _tensors(part, tape)
        }
        cores[core] = [
            entry if number < 0 else [*entry[:5], number]
            for entry, number in kept
            if number < 0 or number in used or number not in on_chip
        ]
    return {**tape, "cores": cores}


def torn(needed: np.ndarray[Any, Any], table: AccessTable, marks: Mapping[int, Marks]) -> np.ndarray[Any, Any]:
    """The events of entries of which some events are needed, others not: all of a loop, or of such an instruction, runs."""
    core_of = np.array([core for core, _, _, _ in table.heads], np.int64)[table.head]
    found = np.zeros(len(needed), np.bool_)
    for core, mark in marks.items():
        mine = core_of == core
        at = np.array(mark.events)
        count, whole = (np.concatenate([[0], np.cumsum(flags)])[at] for flags in (needed & mine, mine))
        some = (np.diff(count) > 0) & (np.diff(count) < np.diff(whole))
        for entry in np.flatnonzero(some).tolist():
            found[at[entry] : at[entry + 1]] |= mine[at[entry] : at[entry + 1]]
    return np.flatnonzero(found)


def _tensors(value: Any, tape: Mapping[str, Any]) -> Iterator[int]:
    """Numbers of the tensors that an entry's operands, or what is in a loop's body, name."""
    if type(value) not in (list, tuple) or not value:
        return
    if value[0] == "T":
        yield value[1]
        yield from _tensors(tape["tensors"][value[1]][5], tape)
        return
    if value[0] == "f":
        for number in value[2:]:
            yield number
            yield from _tensors(tape["tensors"][number][5], tape)
        yield from _tensors(tape["forms"][value[1]], tape)
        return
    for item in value:
        yield from _tensors(item, tape)
