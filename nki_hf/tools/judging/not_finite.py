"""The first instruction that writes a number that is not finite, where an output has some."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.sim.run.play import played
from nki_hf.tools.judging.line_words import line_words

__all__ = ["first_not_finite"]

Array = np.ndarray[Any, Any]

_FILLS = ("memset", "affine_select", "range_select", "select_reduce", "tensor_copy_predicated", "iota")
"""Instructions that write infinite numbers on purpose: what a mask hides."""
_WHY = {
    "NaN": "a root or a logarithm of a negative number, 0 / 0, or inf - inf",
    "inf": "an overflow, a division by 0, or the exponential of a large number",
}


def first_not_finite(trace: Mapping[str, Any], inputs: Mapping[str, Array], options: SimOptions, lnc: int, own: str) -> str:
    """Words about the first instruction that writes NaN, or an infinite number that is no mask; empty if there is none
    outside of loops of run time.

    Args:
      trace: the kernel's tape and names of parameters (see `child.answer`).
      inputs: as the kernel takes them, by the task's names.
      options, lnc: of the launch.
      own: the kernel's file.
    """
    found: dict[str, str] = {}

    def watch(opcode: str, file: str, line: int, written: Sequence[Array]) -> None:
        if found:
            return
        for array in written:
            if array.dtype.kind in "iub":
                continue
            values = array.astype(np.float64)
            kind = "NaN" if np.isnan(values).any() else "inf" if np.isinf(values).any() and opcode not in _FILLS else ""
            if kind and not found:
                count = int((~np.isfinite(values)).sum())
                at = line_words(own, file, line)
                found[kind] = f"{opcode} at {at} is the first to write {kind} ({count:,} of {values.size:,} elements)"

    names = [parameter for parameter, _ in trace["parameters"]]
    arguments = {parameter: np.array(inputs[name]) for parameter, name in trace["parameters"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulatorWarning)
        try:
            launch(played(trace["tape"], names, watch), (), arguments, options=options, lnc=lnc)
        except KernelFault:
            return ""
    return next((f"{words}: {_WHY[kind]}" for kind, words in found.items()), "")
