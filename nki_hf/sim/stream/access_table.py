"""AccessTable: every access of an event stream, as columns of numbers.

Kernels are loops, so a stream has few distinct instructions and access patterns, and thousands of events. What depends on
a form alone (a footprint, a cost) is found once per form, and what is left is arithmetic on columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nki_hf.sim.stream.events import Buffer, Event, Region

__all__ = ["AccessTable", "Ints"]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


class AccessTable:
    """The accesses of all events in order: of each event its reads, then its writes, both in operand order.

    A `core_barrier` counts as writing the data that it reads (see sim/stream/dependencies.py).

    Attributes:
      heads: the distinct `(core, engine, queue, opcode)`, in order of first use.
      head: position in `heads` of each event, int64[events].
      starts: first access of each event, int64[events + 1].
      reads: number of reads of each event, int64[events].
      event: event of each access, int64[accesses].
      writes: True for each access that writes, bool[accesses].
      buffers: the distinct buffers, in order of first access.
      buffer: position in `buffers` of each access, int64[accesses].
      models: one buffer of each distinct (space, core, shape, item size, address).
      model: position in `models` of each of `buffers`, int64[buffers].
      forms: one region of each distinct (offset, shape, strides, dtype, indirect, model of its buffer).
      form: position in `forms` of each access, int64[accesses].
    """

    def __init__(self, events: Sequence[Event]) -> None:
        heads: dict[tuple[int, str, str, str], int] = {}
        head: list[int] = []
        regions: list[Region] = []
        reads, ends = [], [0]
        for event in events:
            opcode = event.opcode
            head.append(heads.setdefault((event.core, event.engine, event.queue, opcode), len(heads)))
            regions += event.reads
            reads.append(len(event.reads))
            regions += event.reads if opcode == "core_barrier" else event.writes
            ends.append(len(regions))
        self.heads = list(heads)
        self.head: Ints = np.array(head, np.int64)
        self.starts: Ints = np.array(ends, np.int64)
        self.reads: Ints = np.array(reads, np.int64)
        self.event: Ints = np.repeat(np.arange(len(head)), np.diff(self.starts))
        self.writes = np.arange(len(regions)) - self.starts[self.event] >= self.reads[self.event]
        self._find_buffers(regions)
        self._find_forms(regions)

    def _find_buffers(self, regions: list[Region]) -> None:
        found = [region.buffer for region in regions]
        by_number: dict[int, Buffer] = {item.number: item for item in found}  # in order of first access
        places = dict(zip(by_number, range(len(by_number)), strict=True))
        self.buffers = list(by_number.values())
        self.buffer: Ints = np.array([places[item.number] for item in found], np.int64)
        models: dict[tuple[object, ...], int] = {}
        model = [models.setdefault((b.space, b.core, b.shape, b.dtype.itemsize, b.address), len(models)) for b in self.buffers]
        self.model: Ints = np.array(model, np.int64)
        self.models = [self.buffers[i] for i in np.unique(self.model, return_index=True)[1].tolist()]

    def _find_forms(self, regions: list[Region]) -> None:
        patterns: dict[tuple[object, ...], int] = {}
        pattern = [
            patterns.setdefault((r.offset, r.shape, r.strides, r.dtype.name, r.indirect), len(patterns)) for r in regions
        ]
        both = np.array(pattern, np.int64) * len(self.models) + self.model[self.buffer]
        _, first, form = np.unique(both, return_index=True, return_inverse=True)
        self.form: Ints = form.reshape(-1)
        self.forms = [regions[i] for i in first.tolist()]
