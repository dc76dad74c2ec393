"""What is no operand: host arrays, grids, numbers and None where an instruction takes a tensor of the kernel."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from nki_hf.sim.faults import fault
from nki_hf.sim.host import is_host_array
from nki_hf.sim.tensor import NkiTensor

__all__ = ["refuse_non_tensors"]


def refuse_non_tensors(opcode: str, arguments: Mapping[str, Any]) -> None:
    """Fault if an argument is an array of the host or a grid, or no tensor where the instruction's signature wants one."""
    from nki_hf.sim.language.grids import NkiGrid

    needed = _tensor_parameters(opcode)
    for name, value in arguments.items():
        listed = value if isinstance(value, list | tuple) else (value,)
        if any(is_host_array(item) for item in listed):
            fault("argument", opcode, f"{name} is an array of the host ({type(value).__name__})",
                  limit="operands are tensors of the kernel",
                  advice="Pass it to the kernel as an argument, or bring it in with nl.shared_constant")  # fmt: skip
        if isinstance(value, NkiGrid):
            fault("argument", opcode, f"{name} is {value!r}", limit="instructions take tensors, not grids",
                  advice="Pass its .data")  # fmt: skip
        annotation = needed.get(name)
        if annotation is not None and not isinstance(value, NkiTensor) and (value is not None or annotation == _NEEDED):
            fault("argument", opcode, f"{name}={value!r}", limit="must be a tensor of the kernel")


_NEEDED, _OPTIONAL = "NkiTensor", "NkiTensor | None"


@functools.cache
def _tensor_parameters(opcode: str) -> dict[str, str]:
    from nki_hf.sim import isa

    function = getattr(isa, opcode, None)
    if function is None:
        return {}
    parameters = inspect.signature(function).parameters.items()
    return {name: item.annotation for name, item in parameters if item.annotation in (_NEEDED, _OPTIONAL)}
