"""What is no operand: host arrays, grids, numbers and None where an instruction takes a tensor of the kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nki_hf.sim.faults import fault
from nki_hf.sim.host import is_host_array
from nki_hf.sim.tensors.grids import NkiGrid
from nki_hf.sim.tensors.registers import RunTimeValue
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.whole import whole

__all__ = ["know_parameters", "refuse_non_tensors"]


def refuse_non_tensors(opcode: str, arguments: Mapping[str, Any]) -> None:
    """Fault if an argument is an array of the host, a grid or a scalar of run time, or not what the signature wants.

    The signature's annotations say where a tensor is needed and where an int.
    """
    needed = _PARAMETERS.get(opcode, {})
    for name, value in arguments.items():
        listed = value if isinstance(value, list | tuple) else (value,)
        if any(is_host_array(item) for item in listed):
            fault(
                "argument",
                opcode,
                f"{name} is an array of the host ({type(value).__name__})",
                limit="operands are tensors of the kernel",
                advice="Pass it to the kernel as an argument, or bring it in with nl.shared_constant",
            )
        if isinstance(value, NkiGrid):
            fault(
                "argument",
                opcode,
                f"{name} is {value!r}",
                limit="instructions take tensors, not grids",
                advice="Pass its .data",
            )
        if isinstance(value, RunTimeValue) and opcode not in _TAKE_RUN_TIME_VALUES:
            fault(
                "argument",
                opcode,
                f"{name}={value!r}",
                limit="operands are tensors and numbers, not run-time scalars",
                advice="Store it in a (1, 1) tile with scalar_store or register_store, and pass the tile",
            )
        annotation = needed.get(name)
        if annotation in _INTEGERS and value is not None:
            whole(opcode, name, value)
        if (
            annotation in (_NEEDED, _OPTIONAL)
            and not isinstance(value, NkiTensor)
            and (value is not None or annotation == _NEEDED)
        ):
            fault("argument", opcode, f"{name}={value!r}", limit="must be a tensor of the kernel")


_NEEDED, _OPTIONAL = "NkiTensor", "NkiTensor | None"
_INTEGERS = ("int", "int | None")
_TAKE_RUN_TIME_VALUES = ("register_load", "register_store", "scalar_store")


_PARAMETERS: dict[str, dict[str, str]] = {}


def know_parameters(functions: Iterable[tuple[str, Callable[..., Any]]]) -> None:
    """Take from the signatures of instructions, by opcode, which parameters are tensors and which are ints."""
    for opcode, function in functions:
        parameters = inspect.signature(function).parameters.items()
        _PARAMETERS[opcode] = {
            name: item.annotation for name, item in parameters if item.annotation in (_NEEDED, _OPTIONAL, *_INTEGERS)
        }
