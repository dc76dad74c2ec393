"""Kinds of instructions: events that are alike in all that costs depend on, and the cost of each kind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nki_hf.chips import Chip
from nki_hf.sim.stream.access_table import AccessTable, Ints
from nki_hf.sim.stream.events import Event
from nki_hf.timing.costs import Cost, cost_of

__all__ = ["costs_of", "kinds_of"]

_Form = tuple[object, ...]
_COSTS: dict[int, tuple[object, dict[_Form, Cost]]] = {}
"""Costs by the id of a chip's numbers (held here, so that the id stays theirs) and the form of an instruction."""
_ATTRS = ("op", "perf_mode", "is_transpose", "onezero", "zero", "no_reorder")


def kinds_of(events: Sequence[Event], table: AccessTable) -> tuple[Ints, list[Event]]:
    """The kind of each event, and one event of each kind: alike in opcode, attributes and the forms of their operands."""
    position = np.arange(len(table.event)) - table.starts[table.event]
    alike = np.full((len(events), int(position.max(initial=-1)) + 3), -1, np.int32)
    alike[:, 0], alike[:, 1] = table.head, _attribute_ids(events)
    alike[table.event, position + 2] = table.form
    kinds: dict[bytes, int] = {}
    rows = alike.view(f"V{alike.shape[1] * alike.itemsize}").reshape(-1).tolist()
    found: Ints = np.array([kinds.setdefault(row, len(kinds)) for row in rows], np.int64)
    return found, [events[i] for i in np.unique(found, return_index=True)[1].tolist()]


def _attribute_ids(events: Sequence[Event]) -> list[int]:
    """An integer id per distinct set of cost-relevant attributes, -1 if there are no attributes."""
    ids: dict[tuple[object, ...], int] = {}
    return [ids.setdefault(tuple(map(event.attrs.get, _ATTRS)), len(ids)) if event.attrs else -1 for event in events]


def costs_of(examples: Sequence[Event], chip: Chip, cores: int) -> list[Cost]:
    """The cost of every event; what was found for one form in an earlier call is not worked out again."""
    if id(chip.params) not in _COSTS and len(_COSTS) > 64:
        _COSTS.clear()
    known = _COSTS.setdefault(id(chip.params), (chip.params, {}))[1]
    if len(known) > 100_000:
        known.clear()
    costs = []
    for event in examples:
        form = (cores, *_form(event))
        found = known.get(form)
        if found is None:
            found = known[form] = cost_of(event, chip, cores)
        costs.append(found)
    return costs


def _form(event: Event) -> _Form:
    attrs = event.attrs
    dma = event.engine == "dma"
    return (
        event.opcode,
        event.engine,
        len(event.reads),
        *[attrs.get(name) for name in _ATTRS],
        *[
            (r.shape, r.strides, r.dtype.name, r.buffer.space, r.indirect, r.partition_start if dma else 0)
            for regions in (event.reads, event.writes)
            for r in regions
        ],
    )
