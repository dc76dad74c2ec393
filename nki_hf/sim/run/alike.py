"""Entries of a tape that differ from an earlier one in their tiles alone, on shapes alone: their events follow from its event.

What an instruction may be, and its event but for the tiles, follow from its arguments and from the shapes, types, places and
memories of its tiles. So what was checked once, from the same line of the kernel, need not be checked again: a kernel's loops
are a few instructions, thousands of times. Warnings of such an instruction come once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nki_hf.sim.constraints.rule import first_place
from nki_hf.sim.dtypes import ALL_DTYPES
from nki_hf.sim.execution.machine import Machine
from nki_hf.sim.execution.storage import Storage
from nki_hf.sim.isa.instruction import NkiInstruction
from nki_hf.sim.stream.events import Buffer, Event, Region
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import mark_written, note_writer

__all__ = ["PURE", "Alike"]

PURE = frozenset(
    "activate2 activation activation_reduce affine_select bn_aggr bn_stats dma_copy iota memset nc_matmul nc_transpose "
    "reciprocal scalar_tensor_tensor select_reduce tensor_copy tensor_copy_predicated tensor_reduce tensor_scalar "
    "tensor_scalar_cumulative tensor_scalar_reduce tensor_tensor tensor_tensor_scan".split()
)
"""Instructions that on shapes alone change nothing but what `begin.issue` changes."""
_NEVER, _BY_PRODUCTS, _OTHERWISE = range(3)
"""Who wrote the elements of a tile in PSUM, on which accumulation depends: nobody any of its tile, products all of them."""

_Key = tuple[Any, ...]


class _Operand(NamedTuple):
    """A tensor of the tape.

    Attributes:
      number: on the tape.
      storage: its allocation.
      form: a number for the view and its allocation, but for which allocation it is.
      region: what events know of it.
    """

    number: int
    storage: Storage
    form: int
    region: Region


class _Known(NamedTuple):
    """An event, and which of the instruction's tensors are its operands."""

    event: Event
    attrs: Mapping[str, Any]
    reads: tuple[int, ...]
    writes: tuple[int, ...]


class Alike:
    """The instructions of one core of a tape's launch, as far as they were played.

    Args:
      machine: the core.
      tape: the tape; `storages`: the allocations that were made so far, by their numbers on it.
      tensor: gives the tensor of a number of the tape.
    """

    def __init__(
        self, machine: Machine, tape: Mapping[str, Any], storages: Mapping[int, Storage], tensor: Callable[[int], NkiTensor]
    ) -> None:
        self._machine, self._storages, self._tensor = machine, storages, tensor
        self._rows: Sequence[Any] = tape["tensors"]
        self._forms_of_calls: Sequence[Any] = tape["forms"]
        self._known: dict[_Key, _Known] = {}
        self._forms: dict[_Key, int] = {}  # of views and of allocations
        self._places: dict[_Key, int] = {}  # of views, see `first_place`
        self._operands: dict[int, _Operand | None] = {}  # by number of the tensor; None = it is placed at run time
        self._memory_of: dict[int, int] = {}  # by number of the allocation
        self._tiles: dict[tuple[int, int], Buffer] = {}

    @staticmethod
    def possible(machine: Machine) -> bool:
        """True if events are all that the launch gives, and no other core can be waited for."""
        options = machine.options
        shapes = options.events and not options.values and options.uninitialized != "error"
        return shapes and not options.record and machine.run.lnc == 1

    def issued(self, entry: Any, play: Callable[[Any], Any]) -> Any:
        """Issue an instruction: by one that is alike, or else by `play`, whose result it gives."""
        name, operands, machine = entry[1], entry[2], self._machine
        if name not in PURE or operands[0] != "f" or machine.loops or machine.after_loop:
            return play(entry)
        key = [name, operands[1], entry[3], entry[4]]
        given: list[_Operand] = []
        seen: list[Storage] = []
        unclear: list[int] = []
        for number in operands[2:]:
            operand = self._operands[number] if number in self._operands else self._operand(number)
            if operand is None:
                return play(entry)
            given.append(operand)
            storage = operand.storage
            key.append(operand.form)
            if storage.in_psum:
                writer = self._writer(operand)
                key.append(writer)
                if writer == _OTHERWISE:
                    unclear.append(len(seen))
            key.append(seen.index(storage) if storage in seen else -1)
            seen.append(storage)
        found = tuple(key)
        known = self._known.get(found)
        if known is not None:
            return self._again(known, given)
        before = len(machine.run.events)
        result = play(entry)
        if len(machine.run.events) == before + 1:
            self._note(found, given, machine.run.events[before], unclear)
        return result

    def allocated(self, entry: Any) -> Storage | None:
        """A tile like one that the kernel allocated before at this line; None if there is none."""
        tile = self._tiles.get((entry[2][1], entry[3])) if entry[2][0] == "f" and not self._machine.loops else None
        return None if tile is None else self._machine.allocate_again(tile)

    def note_allocated(self, entry: Any, storage: Storage) -> None:
        """Remember a tile that has just been played, if it has neither values nor a name of its own."""
        if storage.on_chip and storage.data is None and entry[2][0] == "f":
            if not dict(self._forms_of_calls[entry[2][1]][1]).get("name"):
                self._tiles[entry[2][1], entry[3]] = storage.buffer

    def _again(self, known: _Known, given: Sequence[_Operand]) -> NkiInstruction:
        event, machine = known.event, self._machine
        events = machine.run.events
        issued = Event(
            len(events),
            event.core,
            event.engine,
            event.queue,
            event.opcode,
            tuple([given[place].region for place in known.reads]),
            tuple([given[place].region for place in known.writes]),
            event.file,
            event.line,
            {**known.attrs},
        )
        for place in known.writes:
            operand = given[place]
            storage = operand.storage
            if storage.in_psum:
                tensor = self._tensor(operand.number)
                mark_written(tensor)
                if event.engine != "tensor" or storage.foreign is not None:
                    note_writer(tensor, event.engine)
            storage.untouched = False
        machine.since_loop.append(issued.index)
        events.append(issued)
        return NkiInstruction(issued)

    def _note(self, key: _Key, given: Sequence[_Operand], event: Event, unclear: Sequence[int]) -> None:
        """Remember an instruction by its event, if the event's operands are its tensors, and it writes none of `unclear`."""
        places = {id(self._tensor(given[place].number).region()): place for place in reversed(range(len(given)))}
        reads = tuple([places.get(id(region), -1) for region in event.reads])
        writes = tuple([places.get(id(region), -1) for region in event.writes])
        known = -1 not in reads and -1 not in writes and not set(writes).intersection(unclear)
        if known and all(region.buffer.role != "input" for region in event.writes):
            self._known[key] = _Known(event, {**event.attrs}, reads, writes)

    def _operand(self, number: int) -> _Operand | None:
        shape, dtype, memory, strides, offset, moved, compared, free_start, _ = self._rows[number]
        operand = None
        if moved is None and free_start is None and not compared:
            storage, shape, strides = self._storages[memory], tuple(shape), tuple(strides)
            kind = self._memory(memory, storage)
            place = (shape, dtype, strides, offset, kind)
            if place not in self._places:
                self._places[place] = first_place(self._tensor(number))  # which looks whether it lies inside its allocation
            form = self._forms.setdefault((shape, dtype, strides, self._places[place], kind), len(self._forms))
            operand = _Operand(number, storage, form, Region(storage.buffer, ALL_DTYPES[dtype], offset, shape, strides))
        self._operands[number] = operand
        return operand

    def _memory(self, number: int, storage: Storage) -> int:
        found = self._memory_of.get(number)
        if found is None:
            buffer = storage.buffer
            key = buffer.space, buffer.shape, buffer.dtype.name, buffer.core, buffer.role, buffer.address
            found = self._memory_of[number] = self._forms.setdefault(key, len(self._forms))
        return found

    def _writer(self, operand: _Operand) -> int:
        storage = operand.storage
        if storage.untouched:
            return _NEVER
        if storage.foreign is None and self._tensor(operand.number).pattern() in storage.whole:
            return _BY_PRODUCTS
        return _OTHERWISE
