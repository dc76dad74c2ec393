"""The SPMD launch as a kernel sees it: which of how many programs it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from nki_hf.sim.execution.current_machine import current_machine
from nki_hf.sim.faults import fault

__all__ = ["no_reorder", "num_programs", "program_id", "program_ndim"]


def program_id(axis: int = 0) -> int:
    """Number of this program along `axis` of the launch grid; 0 without a grid."""
    machine = current_machine("nl.program_id")
    _check_axis(axis, "program_id")
    return machine.core


def num_programs(axes: Any = 0) -> int:
    """Number of programs along `axes` (an int or a tuple) of the launch grid; 1 without a grid."""
    machine = current_machine("nl.num_programs")
    for axis in axes if isinstance(axes, tuple | list) else (axes,):
        _check_axis(0 if axis is None else axis, "num_programs")
    return machine.run.lnc


def program_ndim() -> int:
    """Axes of the launch grid: 1 under `kernel[lnc]`, 0 without."""
    return 1 if current_machine("nl.program_ndim").run.grid else 0


@contextlib.contextmanager
def no_reorder() -> Iterator[None]:
    """Block whose instructions the compiler keeps in program order: their events carry `no_reorder=True`."""
    machine = current_machine("nl.no_reorder")
    before = machine.in_order
    machine.in_order = True
    try:
        yield
    finally:
        machine.in_order = before


def _check_axis(axis: int, what: str) -> None:
    if axis not in (0, -1):
        fault("argument", what, f"axis={axis}", limit="the launch grid has one axis, 0")
