"""What the timing model says of this run's attention on each chip. Simulated; kept apart from every measured figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nki_hf.adapters.call_log import CallLogRow
from nki_hf.chips import get_chip
from nki_hf.problem import Problem
from nki_hf.tools.bench_rows import modelled_rows
from nki_hf.tools.decode_latency import decode_rows
from nki_hf.tools.model_bench.layer_share import LinearWork, shares

__all__ = ["Modelled", "ModelledDecode", "modelled", "modelled_decode"]

_ONE_CORE = "trn2"
"""The chip of which one core stands beside published figures of one core."""


@dataclass(frozen=True, kw_only=True)
class Modelled:
    """Simulated times of the layers that run one problem.

    Attributes:
      problem: the attention call, as text.
      layers: how many layers of the model run it.
      rows: one per chip, as `nki_hf.tools.bench_rows.modelled_rows` gives them; every time's name ends in `_simulated`. Where
        the layer's matrix products are known, with the share of attention in it (layer_share.py).
      one_core: the same on one core of trn2, if it was asked for.
    """

    problem: str
    layers: int
    rows: tuple[dict[str, Any], ...]
    one_core: dict[str, Any] | None = None

    @property
    def layers_in_words(self) -> str:
        """`1 layer`, `4 layers`."""
        return f"{self.layers} layer{'' if self.layers == 1 else 's'}"


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


def modelled(
    ran: Sequence[CallLogRow], *, prompts: int, linear: LinearWork | None = None, one_core: bool = False
) -> tuple[Modelled, ...]:
    """An entry for each distinct prefill problem that went through a kernel.

    Args:
      ran: what `nki_hf.explain()` reports of one pass or several; one row per layer.
      prompts: prompts per pass.
      linear: the matrix products of a layer; None if they are not known.
      one_core: True adds one core of trn2.
    """
    layers: dict[Problem, int] = {}
    for row in ran:
        if row.phase == "prefill" and row.first.plan is not None:
            layers[row.first.problem] = layers.get(row.first.problem, 0) + 1
    return tuple(_entry(problem, count, prompts, linear, one_core) for problem, count in layers.items())


def modelled_decode(ran: Sequence[CallLogRow]) -> tuple[ModelledDecode, ...]:
    """An entry for each distinct decode problem that went through a kernel; `ran` as in `modelled`."""
    layers: dict[Problem, int] = {}
    for row in ran:
        if row.phase == "decode" and row.first.plan is not None:
            layers[row.first.problem] = layers.get(row.first.problem, 0) + 1
    return tuple(
        ModelledDecode(problem=str(problem), layers=count, rows=tuple(decode_rows(problem, count)))
        for problem, count in layers.items()
    )


def _entry(problem: Problem, layers: int, prompts: int, linear: LinearWork | None, one_core: bool) -> Modelled:
    rows = modelled_rows(problem, layers, prompts=prompts)
    alone = modelled_rows(problem, layers, prompts=prompts, chips=(_ONE_CORE,), lnc=1) if one_core else []
    if linear is not None:
        tokens = problem.batch * problem.seqlen_q
        for row in (*rows, *alone):
            row.update(shares(row, linear, tokens, get_chip(row["chip"])))
    return Modelled(problem=str(problem), layers=layers, rows=tuple(rows), one_core=alone[0] if alone else None)
