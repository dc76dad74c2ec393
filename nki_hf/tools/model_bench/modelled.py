"""What the timing model says of this run's attention on each chip. Simulated; kept apart from every measured figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nki_hf.adapters.call_log import LedgerRow
from nki_hf.problem import Problem
from nki_hf.tools.bench import modelled_rows
from nki_hf.tools.decode_latency import decode_rows

__all__ = ["Modelled", "ModelledDecode", "modelled", "modelled_decode"]


@dataclass(frozen=True, kw_only=True)
class Modelled:
    """Simulated times of the layers that run one problem.

    Attributes:
      problem: the attention call, as text.
      layers: how many layers of the model run it.
      rows: one per chip, as `nki_hf.tools.bench.modelled_rows` gives them; every time's name ends in `_simulated`.
    """

    problem: str
    layers: int
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class ModelledDecode:
    """Simulated times of the layers whose decode steps run one problem.

    Attributes:
      problem: the attention call of the last step, as text.
      layers: how many layers of the model run it.
      rows: one per chip, as `nki_hf.tools.decode_latency.decode_rows` gives them; simulated figures end in `_simulated`.
    """

    problem: str
    layers: int
    rows: tuple[dict[str, Any], ...]


def modelled(ran: Sequence[LedgerRow], *, prompts: int) -> tuple[Modelled, ...]:
    """An entry for each distinct prefill problem that went through a kernel.

    Args:
      ran: what `nki_hf.explain()` reports of one pass or several; one row per layer.
      prompts: prompts per pass.
    """
    layers: dict[Problem, int] = {}
    for row in ran:
        if row.phase == "prefill" and row.first.plan is not None:
            layers[row.first.problem] = layers.get(row.first.problem, 0) + 1
    return tuple(
        Modelled(problem=str(problem), layers=count, rows=tuple(modelled_rows(problem, count, prompts=prompts)))
        for problem, count in layers.items()
    )


def modelled_decode(ran: Sequence[LedgerRow]) -> tuple[ModelledDecode, ...]:
    """An entry for each distinct decode problem that went through a kernel; `ran` as in `modelled`."""
    layers: dict[Problem, int] = {}
    for row in ran:
        if row.phase == "decode" and row.first.plan is not None:
            layers[row.first.problem] = layers.get(row.first.problem, 0) + 1
    return tuple(
        ModelledDecode(problem=str(problem), layers=count, rows=tuple(decode_rows(problem, count)))
        for problem, count in layers.items()
    )
