"""Play: a tape as a kernel. Everything that the recorded launch did is checked and computed again, on whatever inputs come."""

from __future__ import annotations

import functools
import inspect
import types
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nki_hf.errors import KernelFault
from nki_hf.sim import isa, language
from nki_hf.sim.dtypes import ALL_DTYPES
from nki_hf.sim.execution.current_machine import current_machine
from nki_hf.sim.execution.machine import Machine
from nki_hf.sim.execution.storage import Storage
from nki_hf.sim.isa import enums
from nki_hf.sim.isa.operators import OPERATORS
from nki_hf.sim.run.alike import Alike
from nki_hf.sim.run.launch import Kernel
from nki_hf.sim.tensors import scalars
from nki_hf.sim.tensors.offsets import ScalarOffset, TensorIndirection, VectorOffset
from nki_hf.sim.tensors.registers import VirtualRegister
from nki_hf.sim.tensors.scalars import LoopIndex, NkiScalar
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["BadTape", "Marks", "played"]

_PLACED = {item.__name__: item for item in (ScalarOffset, TensorIndirection, VectorOffset)}
_CHOSEN = {VectorOffset: 0, TensorIndirection: 1}
"""Axis of a view whose places indices choose, one by one."""
_REGISTERS = {item.__name__: item for item in (VirtualRegister, NkiScalar, LoopIndex)}


class BadTape(ValueError):
    """What should be a tape is none: who wrote it was tampered with."""


Watch = Callable[[str, str, int, Sequence[np.ndarray[Any, Any]]], None]


@dataclass
class Marks:
    """What the entries of a tape made when one core played them.

    Attributes:
      events: number of the launch's events before each entry, and after the last.
      buffers: number of each entry's allocation; -1 for other entries.
    """

    events: list[int] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)


def played(
    tape: Mapping[str, Any],
    parameters: Sequence[str],
    watch: Watch | None = None,
    marks: dict[int, Marks] | None = None,
) -> Kernel:
    """The tape as a kernel of `parameters`, the array arguments in the order in which the recorded launch had them.

    Args:
      watch: called after each instruction outside of loops of run time, with its name, file, line, and views of what it wrote
        (in a launch with values); `current_machine` is that of the core which issued it.
      marks: is given what each core's entries made.
    """

    def kernel(*inputs: Any) -> Any:
        machine = current_machine("play")
        player = _Player(machine, tape, inputs)
        player.watch = watch
        if marks is not None:
            player.marks = marks[machine.core] = Marks()
        return player.run()

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    kernel.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in parameters])  # type: ignore[attr-defined]
    return Kernel(kernel)


class _Player:
    """One core's way through the tape."""

    def __init__(self, machine: Machine, tape: Mapping[str, Any], inputs: Sequence[NkiTensor]) -> None:
        self.machine = machine
        self.tape = tape
        self.inputs = inputs
        self._storages: dict[int, Storage] = {item.storage.buffer.number: item.storage for item in inputs}
        self._tensors: dict[int, NkiTensor] = {}
        self._results: dict[int, Any] = {}
        self._forms: dict[int, tuple[list[Any], dict[str, Any], list[Any]]] = {}
        self.watch: Watch | None = None
        self.marks: Marks | None = None
        possible = Alike.possible(machine)
        self._alike = Alike(machine, tape, self._storages, self._tensor) if possible else None

    def run(self) -> Any:
        """Everything, and what the kernel returned."""
        try:
            self.entries(self.tape["cores"].get(str(self.machine.core), []), self.marks)
            return self.read(self.tape["returned"].get(str(self.machine.core)))
        except KernelFault:
            raise
        except (KeyError, IndexError, AttributeError, ValueError) as error:
            raise BadTape(f"{type(error).__name__}: {error}") from error

    def entries(self, entries: Sequence[Any], marks: Marks | None = None) -> None:
        """Those of the tape, or of the body of a loop."""
        alike, watch, events = self._alike, self.watch, self.machine.run.events
        for entry in entries:
            kind, number = entry[0], entry[5]
            self.machine.in_order = entry[4]
            if marks is not None:
                marks.events.append(len(events))
            if kind == "isa" and watch is None and alike is not None:
                result = alike.issued(entry, self._called)
            elif kind == "isa":
                before = len(events)
                result = self._called(entry)
                if watch is not None:
                    file, line = self.tape["places"][entry[3]]
                    watch(entry[1], file, line, [*self._written(before)])
            elif kind == "allocate":
                result = None if alike is None else alike.allocated(entry)
                if result is None:
                    result = self._called(entry)
                    if alike is not None:
                        alike.note_allocated(entry, result)
                self._storages[result.buffer.number if number < 0 else number] = result
            else:
                result = self._called(entry)
            if marks is not None:
                marks.buffers.append(result.buffer.number if kind == "allocate" else -1)
            if number >= 0 and kind not in ("loop", "allocate"):
                self._results[number] = result
        if marks is not None:
            marks.events.append(len(events))

    def _called(self, entry: Any) -> Any:
        """What an entry stands for, done as if the kernel did it where it did."""
        kind, name, operands, place = entry[:4]
        args, kwargs = self._operands(operands)
        call = _at(*self.tape["places"][place])
        if kind == "isa":
            return call(_instruction(name), args, kwargs)
        if kind == "allocate":
            if kwargs.get("data") is not None:
                kwargs["data"] = np.frombuffer(kwargs["data"], np.uint8).copy()
            return call(self.machine.allocate, args, kwargs)
        if kind == "combine":
            return call(scalars.combine, args, kwargs)
        if kind == "depends_on":
            return call(isa.NkiInstruction.depends_on, args, kwargs)
        if kind == "loop":
            return self._loop(call, entry, args, kwargs)
        raise BadTape(f"an entry of the kind {kind!r}")

    def _written(self, before: int) -> Iterator[np.ndarray[Any, Any]]:
        """Views of what the events from a number on wrote."""
        for event in self.machine.run.events[before:]:
            for region in event.writes:
                storage = self._storages.get(region.buffer.number)
                if storage is None or storage.data is None:
                    continue
                itemsize = region.dtype.itemsize
                yield np.ndarray(
                    region.shape,
                    region.dtype.dtype,
                    buffer=storage.data,
                    offset=region.offset * itemsize,
                    strides=[step * itemsize for step in region.strides],
                )

    def _loop(self, call: Callable[..., Any], entry: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name, number, inner, returned, called = entry[1], entry[5], entry[6], entry[7], entry[8]

        def body(index: Any) -> Any:
            self._results[number] = index
            self.entries(inner)
            return self.read(returned) if returned is not None else None

        body.__name__ = called or "<lambda>"
        if name == "fori_loop":
            call(language.fori_loop, (*args, body), kwargs)
        elif name == "while_loop":
            call(language.while_loop, (*args, body), kwargs)
        elif name == "dynamic_range":
            call(lambda *given, **named: [body(index) for index in _ranged(*given, **named)], args, kwargs)
        else:
            raise BadTape(f"a loop of the kind {name!r}")

    def _operands(self, value: Any) -> tuple[Any, dict[str, Any]]:
        """Arguments and keywords of an entry."""
        if value[0] != "f":
            args, kwargs = self.read(value)
            return args, kwargs
        form = self._forms.get(value[1]) or self._form(value[1])
        args, kwargs, gaps = [*form[0]], {**form[1]}, form[2]
        for gap, number in zip(gaps, value[2:], strict=True):
            if type(gap) is int:
                args[gap] = self._tensor(number)
            else:
                kwargs[gap] = self._tensor(number)
        return args, kwargs

    def _form(self, number: int) -> tuple[list[Any], dict[str, Any], list[Any]]:
        """A form's arguments and keywords, and where its tensors go; kept unless a list in it must be a new one each time."""
        given, named = self.tape["forms"][number]
        values = [*given, *[value for _, value in named]]
        gaps = [place for place, value in enumerate(given) if _is_gap(value)] + [key for key, value in named if _is_gap(value)]
        args = [None if _is_gap(value) else self.read(value) for value in given]
        found = args, {key: None if _is_gap(value) else self.read(value) for key, value in named}, gaps
        if not any(_has_list(value) for value in values):
            self._forms[number] = found
        return found

    def read(self, value: Any) -> Any:
        """What `Recorder.write` wrote."""
        if type(value) is not list and type(value) is not tuple:
            return value
        tag = value[0]
        if tag == "T":
            return self._tensor(value[1])
        if tag == "t":
            return tuple([self.read(item) for item in value[1:]])
        if tag == "l":
            return [self.read(item) for item in value[1:]]
        if tag == "m":
            return {self.read(key): self.read(item) for key, item in value[1:]}
        if tag == "o":
            return OPERATORS[value[1]]
        if tag == "d":
            return ALL_DTYPES[value[1]]
        if tag == "e":
            return _enum(value[1])[value[2]]
        if tag == "r":
            return self._results[value[1]]
        if tag == "c":
            made = self._results[value[4]] = (
                VirtualRegister(value[2]) if value[1] == "VirtualRegister" else _REGISTERS[value[1]](value[2], value[3])
            )
            return made
        if tag == "x":
            return _PLACED[value[1]](self.read(value[2]), *value[3:])
        if tag == "a":
            return np.frombuffer(b64decode(value[3]), ALL_DTYPES[value[1]].dtype).reshape(value[2])
        if tag == "b":
            return b64decode(value[1])
        raise BadTape(f"a value of the kind {tag!r}")

    def _tensor(self, number: int) -> NkiTensor:
        found = self._tensors.get(number)
        if found is None:
            shape, dtype, storage, strides, offset, moved, compared, free_start, name = self.tape["tensors"][number]
            strides = tuple(strides)
            found = NkiTensor(tuple(shape), ALL_DTYPES[dtype], self._storages[storage], name=name)
            found.indirection, found.compared = self.read(moved), compared
            _check_inside(found, strides, offset, free_start)
            found.strides, found.offset, found.free_start = strides, offset, free_start
            self._tensors[number] = found
        return found


def _is_gap(value: Any) -> bool:
    return type(value) in (list, tuple) and value[0] == "g"


def _has_list(value: Any) -> bool:
    return type(value) in (list, tuple) and (value[0] in ("l", "m") or (value[0] == "t" and any(map(_has_list, value[1:]))))


def _check_inside(tensor: NkiTensor, strides: tuple[int, ...], offset: int, free_start: int | None) -> None:
    """A tape that names elements beyond its allocation must not reach memory."""
    shape = tensor.shape
    if len(strides) != len(shape) or (shape and min(shape) < 0):
        raise BadTape("a tensor whose strides do not fit its shape")
    if free_start is not None or 0 in shape:
        return  # judged when an instruction uses it; empty
    low = high = offset
    chosen = _CHOSEN.get(type(tensor.indirection))
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if axis == chosen:
            continue  # by indices, which are judged when an instruction uses it; there may be more of them than elements
        if stride < 0:
            low += (size - 1) * stride
        else:
            high += (size - 1) * stride
    buffer = tensor.storage.buffer
    if low < 0 or high >= buffer.elements * buffer.dtype.itemsize // tensor.dtype.itemsize:
        raise BadTape(f"{tensor!r} names elements outside of its allocation")


def _instruction(name: str) -> Callable[..., Any]:
    if name not in isa.__all__ or not inspect.isfunction(getattr(isa, name)):
        raise BadTape(f"an instruction {name!r}")
    return getattr(isa, name)


def _ranged(*args: Any, **kwargs: Any) -> Any:
    return language.dynamic_range(*args, **kwargs)


def _enum(name: str) -> Any:
    return getattr(enums, name, None) or getattr(language, name)


def _template(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return function(*args, **kwargs)


_CALL = max(line for *_, line in _template.__code__.co_lines() if line) - _template.__code__.co_firstlineno
"""Lines from the head of `_template` to its call."""


@functools.lru_cache(maxsize=4096)
def _at(file: str, line: int) -> Callable[..., Any]:
    """A function that calls another as if it stood at `file:line`, which is where faults and events then say they are."""
    code = _template.__code__.replace(co_filename=file or "<tape>", co_firstlineno=max(line - _CALL, 0))
    made = types.FunctionType(code, globals(), "tape")
    return made
