"""Tape: one launch written down as plain data, so that another process can run it without the kernel's Python.

On the tape is what the kernel did to the machine: allocations, instructions with their operands, loops of run time, ordering.
A tensor is written as shape, strides and offset over an allocation. Calls that differ in their tensors alone, and places of the
kernel, are written once and named by a number. Nothing on a tape is code: sim/run/play.py calls the
simulator's own functions, which check and compute everything again.
"""

from __future__ import annotations

import functools
import inspect
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import numpy as np

from nki_hf.sim import isa, language
from nki_hf.sim.dtypes import DType, as_dtype
from nki_hf.sim.execution.current_machine import running_machine
from nki_hf.sim.execution.machine import Machine
from nki_hf.sim.execution.storage import Storage
from nki_hf.sim.faults import kernel_position
from nki_hf.sim.isa.instruction import NkiInstruction
from nki_hf.sim.isa.operators import Operator
from nki_hf.sim.run.alike import PURE
from nki_hf.sim.tensors import scalars
from nki_hf.sim.tensors.offsets import ScalarOffset, TensorIndirection, VectorOffset
from nki_hf.sim.tensors.registers import RunTimeValue
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["Recorder", "Unwritable", "install", "recording"]

_PLAIN = (type(None), bool, int, float, str)
_PLACED = (ScalarOffset, TensorIndirection, VectorOffset)
_SAME = (Operator, DType, Enum)
"""Types whose equal values are the same on a tape."""
_ALLOCATED = ("name", "role", "address")
_NAMED = (RunTimeValue, NkiInstruction)
"""Types of results that later entries may name."""


class Unwritable(TypeError):
    """An operand of an instruction has no form on the tape."""


class Recorder:
    """Writes the tape of one launch.

    Attributes:
      cores: by core, its entries `(kind, name, operands, number of the place, in_order, number of the result)`; loops are
        entries whose operands hold the entries of the body. Operands are written values, or `("f", form, *tensors)`.
      forms: arguments and keywords of calls, each once, with a gap for every tensor.
      places: file and line, each once.
      tensors: every view that was an operand, once.
    """

    def __init__(self) -> None:
        self.cores: dict[int, list[Any]] = {}
        self.forms: list[Any] = []
        self.places: list[tuple[str, int]] = []
        self.tensors: list[Any] = []
        self._formed: dict[Any, int] = {}
        self._allocations: dict[Any, Any] = {}
        self._placed: dict[tuple[str, int], int] = {}
        self._open: dict[int, list[Any]] = {}
        self._inside: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._executed: set[tuple[Any, ...]] = set()
        self._views: list[int] = []  # by tensor: a number for what it is but for its allocation; -1 = unknown
        self._viewed: dict[Any, int] = {}
        self._storages: list[Storage] = []  # by tensor
        self._kept: list[Any] = []  # what is named by its id must live

    def tape(self, outputs: dict[int, Any]) -> dict[str, Any]:
        """The whole tape, plain data; `outputs` is what each core returned."""
        returned = {str(core): self.write(value) for core, value in outputs.items()}
        return {
            "cores": {str(core): entries for core, entries in self.cores.items()},
            "forms": self.forms,
            "places": self.places,
            "returned": returned,
            "tensors": self.tensors,
        }

    def free(self, machine: Machine) -> bool:
        """True if what happens now is the kernel's own doing, not part of an instruction."""
        return not self._inside.get(machine.core)

    def call(self, machine: Machine, kind: str, name: str, args: Any, kwargs: Any, function: Callable[..., Any]) -> Any:
        """Write an entry and execute it; on shapes alone an instruction that is like one before need not be executed."""
        core = machine.core
        operands = self._operands(args, kwargs)
        entry: list[Any] = [kind, name, operands, self._place(kernel_position(2)), machine.in_order, -1]
        entries = self._open.get(core)
        (self.entries(core) if entries is None else entries).append(entry)
        key = self._likeness(machine, name, operands) if kind == "isa" else None
        if key is not None and key in self._executed:
            result: Any = NkiInstruction(None)
        else:
            tiles = () if key is None else [self._storages[number] for number in operands[2:]]
            psum = [storage for storage in tiles if storage.in_psum]
            before = [storage.version for storage in psum]
            self._inside[core] = self._inside.get(core, 0) + 1
            try:
                result = function(*args, **kwargs)
            finally:
                self._inside[core] -= 1
            if key is not None and type(result) is NkiInstruction and before == [storage.version for storage in psum]:
                self._executed.add(key)
        if isinstance(result, _NAMED):
            entry[5] = self.number(result)
        return result

    def _likeness(self, machine: Machine, name: str, operands: Any) -> tuple[Any, ...] | None:
        """What instructions have in common of which one must be executed to know that all raise nothing; None if that cannot be
        told, or executing them has an effect (values, events).
        """
        options, run = machine.options, machine.run
        if options.values or options.checks or options.events or machine.loops or run.closed or run.lnc > 1:
            return None
        if name not in PURE or operands[0] != "f":
            return None
        views = [self._views[number] for number in operands[2:]]
        return None if min(views, default=0) < 0 else (name, operands[1], *views)

    def allocated(self, machine: Machine, place: tuple[str, int], given: tuple[Any, ...]) -> None:
        """Write the entry of an allocation without values; `given` are all of its arguments, in order."""
        operands = self._allocations.get(given)
        if operands is None:
            operands = self._allocations[given] = self._operands(given[:3], dict(zip(_ALLOCATED, given[3:], strict=True)))
        self.entries(machine.core).append(["allocate", "", operands, self._place(place), machine.in_order, -1])

    @contextmanager
    def body(self, machine: Machine, name: str, operands: Any, place: tuple[str, int]) -> Iterator[list[Any]]:
        """The entry of a loop at a place of the kernel, into which goes what is written until the block ends."""
        inner: list[Any] = []
        entry: list[Any] = ["loop", name, self.write(operands), self._place(place), machine.in_order, -1, inner, None, ""]
        before = self.entries(machine.core)
        before.append(entry)
        self._open[machine.core] = inner
        try:
            yield entry
        finally:
            self._open[machine.core] = before

    def entries(self, core: int) -> list[Any]:
        """Where the core's next entry goes."""
        if core not in self._open:
            self._open[core] = self.cores[core] = []
        return self._open[core]

    def number(self, item: Any) -> int:
        """The number under which a register or an instruction is known from now on."""
        if id(item) not in self._numbers:
            self._numbers[id(item)] = len(self._kept)
            self._kept.append(item)
        return self._numbers[id(item)]

    def _place(self, place: tuple[str, int]) -> int:
        number = self._placed.get(place)
        if number is None:
            number = self._placed[place] = len(self.places)
            self.places.append(place)
        return number

    def _operands(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A call's operands as a form and its tensors; written out where an operand is of no type that a form may hold."""
        tensors: list[int] = []
        numbers, parts = self._numbers, [len(args), *kwargs]
        for value in (*args, *kwargs.values()):
            kind = type(value)
            if kind is NkiTensor:
                number = numbers.get(id(value))
                tensors.append(self._tensor(value) if number is None else number)
                parts.append(NkiTensor)
            elif kind is int or kind is str or kind is bool or value is None or isinstance(value, _SAME):
                parts += (kind, value)
            elif kind is float or ((kind is tuple or kind is list) and _plain(value)):
                parts += (kind, repr(value))  # 0.0 is -0.0, and (1,) is (True,), to a dict
            else:
                return self.write((args, kwargs))
        key = tuple(parts)
        number = self._formed.get(key)
        if number is None:
            number = self._formed[key] = len(self.forms)
            gapped = [("g",) if type(value) is NkiTensor else self.write(value) for value in (*args, *kwargs.values())]
            self.forms.append((gapped[: len(args)], list(zip(kwargs, gapped[len(args) :], strict=True))))
        return ("f", number, *tensors)

    def write(self, value: Any) -> Any:
        """`value` as plain data; see `play.Reader` for the way back."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is bytes:
            return ("b", b64encode(value).decode())
        if kind is NkiTensor:
            return ("T", self._tensor(value))
        if kind is tuple or kind is list:
            return ("t" if kind is tuple else "l", *[self.write(item) for item in value])
        if isinstance(value, Operator):
            return ("o", value.name)
        if isinstance(value, DType):
            return ("d", value.name)
        if isinstance(value, Enum):
            return ("e", kind.__name__, value.name)
        if isinstance(value, RunTimeValue):
            if id(value) not in self._numbers:  # made by its constructor
                held = value.cell[0].item() if value.initialized else None
                return ("c", kind.__name__, held, value.dtype.name, self.number(value))
            return ("r", self.number(value))
        if isinstance(value, NkiInstruction):
            return ("r", self.number(value))
        if isinstance(value, _PLACED):
            return ("x", kind.__name__, self.write(value.index), value.stride, value.size, value.dim)
        if isinstance(value, np.ndarray | np.generic):
            array = np.ascontiguousarray(value)
            return ("a", as_dtype(array.dtype).name, np.shape(value), b64encode(array.tobytes()).decode())
        if kind is dict:
            return ("m", *[(self.write(key), self.write(item)) for key, item in value.items()])
        if isinstance(value, NkiTensor):
            return ("T", self._tensor(value))
        if isinstance(value, range):
            return ("l", *value)
        if isinstance(value, int | float | str):
            return self.write(
                {int: int, float: float, str: str}[next(t for t in (int, float, str) if isinstance(value, t))](value)
            )
        data = getattr(value, "data", None)
        if isinstance(data, NkiTensor):  # a grid of tiles
            return ("T", self._tensor(data))
        try:
            return ("d", as_dtype(value).name)
        except TypeError:
            raise Unwritable(f"an operand of type {kind.__name__} cannot be written on a tape: {str(value)[:80]}") from None

    def _tensor(self, tensor: NkiTensor) -> int:
        number = self._numbers.get(id(tensor))
        if number is None:
            number = self._numbers[id(tensor)] = len(self.tensors)
            self._kept.append(tensor)
            self.tensors.append(())
            self.tensors[number] = (
                tuple([int(n) for n in tensor.shape]),
                tensor.dtype.name,
                tensor.storage.buffer.number,
                tuple([int(n) for n in tensor.strides]),
                int(tensor.offset),
                self.write(tensor.indirection),
                tensor.compared,
                tensor.free_start,
                tensor.name,
            )
            self._storages.append(tensor.storage)
            self._views.append(self._view(tensor))
        return number

    def _view(self, tensor: NkiTensor) -> int:
        buffer, machine = tensor.storage.buffer, running_machine()
        direct = tensor.indirection is None and tensor.free_start is None and not tensor.compared
        if not direct or machine is None or machine.run.buffers[buffer.number : buffer.number + 1] != [buffer]:
            return -1  # or of another launch
        row = self.tensors[-1]
        key = row[0], row[1], row[3], row[4], buffer.space, buffer.shape, buffer.dtype.name, buffer.role, buffer.address
        return self._viewed.setdefault(key, len(self._viewed))


def _plain(values: Sequence[Any]) -> bool:
    """True if a list or tuple holds nothing but plain values, in lists and tuples too."""
    for value in values:
        kind = type(value)
        if kind is not int and kind not in _PLAIN and not ((kind is tuple or kind is list) and _plain(value)):
            return False
    return True


_current: list[Recorder] = []


@contextmanager
def recording() -> Iterator[Recorder]:
    """Block whose launch writes a tape; `install` must have been called in this process."""
    recorder = Recorder()
    try:
        _current.append(recorder)
        yield recorder
    finally:
        _current[:] = [each for each in _current if each is not recorder]


def _active() -> tuple[Recorder, Machine] | None:
    machine = running_machine()
    if not _current or machine is None or not _current[-1].free(machine):
        return None
    return _current[-1], machine


def install() -> None:
    """Let this process write tapes, for good: call it in a process of its own, before a kernel is loaded."""
    for name in isa.__all__:
        function = getattr(isa, name)
        if inspect.isfunction(function) and name not in ("get_nc_version", "get_nc_sub_version"):
            setattr(isa, name, _written("isa", name, function))
    scalars.combine = _written("combine", "combine", scalars.combine)
    NkiInstruction.depends_on = _written("depends_on", "depends_on", NkiInstruction.depends_on)  # type: ignore[method-assign]
    Machine.allocate = _written_allocation(Machine.allocate)  # type: ignore[method-assign]
    language.fori_loop = _fori_loop(language.fori_loop)
    language.while_loop = _while_loop(language.while_loop)
    language.dynamic_range = _dynamic_range(language.dynamic_range)


def _written(kind: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def written(*args: Any, **kwargs: Any) -> Any:
        active = _active()
        if active is None:
            return function(*args, **kwargs)
        recorder, machine = active
        return recorder.call(machine, kind, name, args, kwargs, function)

    return written


def _written_allocation(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def allocate(
        self: Machine,
        shape: Any,
        dtype: DType,
        space: str,
        *,
        name: str = "",
        role: str = "scratch",
        address: Any = None,
        data: Any = None,
    ) -> Any:
        active = _active()
        if active is None or role == "input":
            return function(self, shape, dtype, space, name=name, role=role, address=address, data=data)
        recorder, machine = active
        args, position = (tuple([int(size) for size in shape]), dtype, space), kernel_position(2)
        if data is None:
            recorder.allocated(machine, position, (*args, name, role, address))
            return function(self, shape, dtype, space, name=name, role=role, address=address, position=position)
        given = {"name": name, "role": role, "address": address, "data": data.tobytes()}

        def made(*_: Any, **__: Any) -> Any:
            return function(self, shape, dtype, space, name=name, role=role, address=address, data=data, position=position)

        return recorder.call(machine, "allocate", "", args, given, made)

    return allocate


def _fori_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any], Any], step: int = 1) -> None:
        active = _active()
        if active is None:
            return function(lower, upper, body_fun, step)
        recorder, machine = active
        with recorder.body(machine, "fori_loop", ((lower, upper), {"step": step}), kernel_position()) as entry:
            entry[8] = getattr(body_fun, "__name__", "")

            @functools.wraps(body_fun)
            def body(index: Any) -> Any:
                entry[5] = recorder.number(index)
                return body_fun(index)

            function(lower, upper, body, step)

    return fori_loop


def _while_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def while_loop(init: Any, body_fun: Callable[[Any], Any]) -> None:
        active = _active()
        if active is None:
            return function(init, body_fun)
        recorder, machine = active
        with recorder.body(machine, "while_loop", ((init,), {}), kernel_position()) as entry:
            entry[8] = getattr(body_fun, "__name__", "")

            @functools.wraps(body_fun)
            def body(given: Any) -> Any:
                entry[5] = recorder.number(given)
                returned = body_fun(given)
                entry[7] = recorder.write(returned)
                return returned

            function(init, body)

    return while_loop


def _dynamic_range(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[Any]:
        active = _active()
        if active is None:
            yield from function(start, stop, step)
            return
        recorder, machine = active
        with recorder.body(machine, "dynamic_range", ((start, stop), {"step": step}), kernel_position()) as entry:
            for index in function(start, stop, step):
                entry[5] = recorder.number(index)
                yield index

    return dynamic_range
