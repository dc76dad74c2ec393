"""Dispatch: which kernel runs a Problem, with which tiles, on which back end, and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nki_hf.errors import Reason
from nki_hf.problem import Problem

__all__ = ["Decision"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What one call runs.

    Attributes:
      problem: the call.
      kernel: name of the chosen kernel, or of the fallback (`sdpa`, `eager`) if none fits.
      backend: `simulator`, `neuron`, `torch_reference`, or `torch` for a fallback.
      chip: the chip the kernel is planned for.
      lnc: logical-core degree of the launch.
      tiles: the kernel's tile sizes, by name; empty for a fallback.
      rejected: one `Reason` for each rule of each kernel that said no.
    """

    problem: Problem
    kernel: str
    backend: str
    chip: str
    lnc: int = 1
    tiles: Mapping[str, Any] = field(default_factory=dict)
    rejected: tuple[Reason, ...] = ()

    @property
    def fallback(self) -> bool:
        """True if no kernel of ours runs."""
        return self.backend == "torch"
