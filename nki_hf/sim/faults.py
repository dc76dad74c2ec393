"""Where a fault is in the kernel, and how it is raised or warned about."""

from __future__ import annotations

import os
import sys
import warnings
from types import CodeType
from typing import Any, NoReturn

from nki_hf.errors import FaultRecord, KernelFault

__all__ = ["SecondWriteWarning", "SimulatorWarning", "fault", "kernel_position", "warn_unsure"]

_SIM_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
_CHOOSE_CHIP = (
    "Choose another chip, if that is meant: NEURON_PLATFORM_TARGET_OVERRIDE=trn3 (or trn2, trn1), "
    "sim.SimOptions(chip=get_chip(...)) or NKI_HF_CHIP"
)
_is_simulator: dict[int, tuple[CodeType, bool]] = {}
"""By id of the code, which is held here so that the id stays its own: a code's own hash is that of all it holds."""


class SimulatorWarning(UserWarning):
    """What a kernel does is left unsure by public sources, or they disagree about what it computes."""


class SecondWriteWarning(SimulatorWarning):
    """An element of an output was written more than once by one launch."""


def kernel_position(above: int = 1) -> tuple[str, int]:
    """File and line of the innermost frame outside the simulator: the kernel's own code.

    `above` frames of the simulator are known to lie below it, so that the search can start there.
    """
    frame = sys._getframe(above)
    while frame is not None:
        code = frame.f_code
        known = _is_simulator.get(id(code))
        if known is None:
            known = _is_simulator[id(code)] = code, code.co_filename.startswith((_SIM_FOLDER, "<"))
        if not known[1]:
            return code.co_filename, frame.f_lineno
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "", 0


def fault(
    kind: str,
    instruction: str,
    message: str,
    *,
    limit: str = "",
    advice: str = "",
    operands: tuple[Any, ...] = (),
    raised: type[KernelFault] = KernelFault,
    position: tuple[str, int] | None = None,
    **details: Any,
) -> NoReturn:
    """Raise a `KernelFault` that carries the kernel's file and line (see `FaultRecord` for the words).

    `raised` is the kind of fault that is a TypeError or ValueError too, where the language documents one; `position` the file
    and line, if they are not those of the code that runs now.
    """
    raise raised(_record(kind, instruction, message, limit, advice, operands, details, position))


def warn_unsure(kind: str, instruction: str, message: str, *, limit: str = "", operands: tuple[Any, ...] = ()) -> None:
    """Warn about a rule that public sources leave unsure; the text is that of the fault it would be."""
    warnings.warn(
        str(KernelFault(_record(kind, instruction, message, limit, "", operands, {}))), SimulatorWarning, stacklevel=3
    )


def _record(
    kind: str,
    instruction: str,
    message: str,
    limit: str,
    advice: str,
    operands: tuple[Any, ...],
    details: dict[str, Any],
    position: tuple[str, int] | None = None,
) -> FaultRecord:
    file, line = position or kernel_position()
    if kind == "generation":
        advice = f"{advice}. {_CHOOSE_CHIP}" if advice else _CHOOSE_CHIP
    return FaultRecord(
        kind=kind,
        instruction=instruction,
        message=message,
        limit=limit,
        advice=advice,
        operands=tuple(str(item) for item in operands),
        file=file,
        line=line,
        details=details or None,
    )
