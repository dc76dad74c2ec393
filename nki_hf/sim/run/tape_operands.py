"""Operands of a tape: values, tensors and registers of a launch as plain data; see `play.Reader` for the way back.

A tensor is written as shape, strides and offset over an allocation. Calls that differ in their tensors alone are one form.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from nki_hf.sim.dtypes import DType, as_dtype
from nki_hf.sim.execution.current_machine import running_machine
from nki_hf.sim.execution.storage import Storage
from nki_hf.sim.isa.instruction import NkiInstruction
from nki_hf.sim.isa.operators import Operator
from nki_hf.sim.tensors.offsets import ScalarOffset, TensorIndirection, VectorOffset
from nki_hf.sim.tensors.registers import RunTimeValue
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["Operands", "Unwritable"]

_PLAIN = (type(None), bool, int, float, str)
_PLACED = (ScalarOffset, TensorIndirection, VectorOffset)
_SAME = (Operator, DType, Enum)
"""Types whose equal values are the same on a tape."""


class Unwritable(TypeError):
    """An operand of an instruction has no form on the tape.

    Attributes:
      operand: what has none.
      word: the parameter that it was given for; empty if that is not known.
    """

    def __init__(self, operand: Any) -> None:
        """`operand`: what has no form."""
        kind = type(operand).__name__
        super().__init__(f"an operand of type {kind} cannot be written on a tape: {str(operand)[:80]}")
        self.operand = operand
        self.word = ""


class Operands:
    """Writes the operands of one launch's tape.

    Attributes:
      forms: arguments and keywords of calls, each once, with a gap for every tensor.
      tensors: every view that was an operand, once.
      storages: the storage of each of them.
      views: of each of them, a number for what it is but for its allocation; -1 = unknown.
    """

    def __init__(self) -> None:
        self.forms: list[Any] = []
        self.tensors: list[Any] = []
        self.storages: list[Storage] = []
        self.views: list[int] = []
        self._formed: dict[Any, int] = {}
        self._viewed: dict[Any, int] = {}
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # what is named by its id must live

    def of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
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
                return self._written_out(args, kwargs)
        key = tuple(parts)
        number = self._formed.get(key)
        if number is None:
            number = self._formed[key] = len(self.forms)
            gapped = [("g",) if type(value) is NkiTensor else self.write(value) for value in (*args, *kwargs.values())]
            self.forms.append((gapped[: len(args)], list(zip(kwargs, gapped[len(args) :], strict=True))))
        return ("f", number, *tensors)

    def _written_out(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            return self.write((args, kwargs))
        except Unwritable as error:
            error.word = next((word for word, value in kwargs.items() if value is error.operand), "")
            raise

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
            raise Unwritable(value) from None

    def number(self, item: Any) -> int:
        """The number under which a register or an instruction is known from now on."""
        if id(item) not in self._numbers:
            self._numbers[id(item)] = len(self._kept)
            self._kept.append(item)
        return self._numbers[id(item)]

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
            self.storages.append(tensor.storage)
            self.views.append(self._view(tensor))
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
