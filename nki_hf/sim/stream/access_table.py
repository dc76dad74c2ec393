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
        head = [heads.setdefault((e.core, e.engine, e.queue, e.opcode), len(heads)) for e in events]
        self.heads = list(heads)
        self.head: Ints = np.array(head, np.int64)
        meets = any(opcode == "core_barrier" for _, _, _, opcode in heads)
        writes = [e.reads if e.opcode == "core_barrier" else e.writes for e in events] if meets else [e.writes for e in events]
        regions: list[Region] = []
        for event, written in zip(events, writes, strict=True):
            regions += event.reads
            regions += written
        self.reads: Ints = np.array([len(event.reads) for event in events], np.int64)
        self.starts: Ints = np.zeros(len(head) + 1, np.int64)
        np.cumsum(self.reads + np.array([len(written) for written in writes], np.int64), out=self.starts[1:])
        self.event: Ints = np.repeat(np.arange(len(head)), np.diff(self.starts))
        self.writes = np.arange(len(regions)) - self.starts[self.event] >= self.reads[self.event]
        self._find_buffers(regions)
        self._find_forms(regions)

    def _find_buffers(self, regions: list[Region]) -> None:
        numbers: dict[int, int] = {}  # in order of first access
        self.buffer: Ints = np.array([numbers.setdefault(r.buffer.number, len(numbers)) for r in regions], np.int64)
        self.buffers: list[Buffer] = [regions[i].buffer for i in _firsts(self.buffer, len(numbers))]
        models: dict[tuple[object, ...], int] = {}
        model = [models.setdefault((b.space, b.core, b.shape, b.dtype.itemsize, b.address), len(models)) for b in self.buffers]
        self.model: Ints = np.array(model, np.int64)
        self.models = [self.buffers[i] for i in _firsts(self.model, len(models))]

    def _find_forms(self, regions: list[Region]) -> None:
        forms: dict[tuple[object, ...], int] = {}
        models = self.model[self.buffer].tolist()
        self.form: Ints = np.array(
            [
                forms.setdefault((r.offset, r.shape, r.strides, r.dtype.name, r.indirect, model), len(forms))
                for r, model in zip(regions, models, strict=True)
            ],
            np.int64,
        )
        self.forms = [regions[i] for i in _firsts(self.form, len(forms))]


def _firsts(numbers: Ints, count: int) -> list[int]:
    """Where each of the numbers from 0 to `count` - 1 stands first."""
    first = np.zeros(count, np.int64)
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]  # the last one stays
    return first.tolist()
