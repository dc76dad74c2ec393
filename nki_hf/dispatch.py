"""Dispatch: which kernel runs a Problem, with which tiles, on which back end, and why the others do not.

Rules are data: `RULES` holds what no kernel takes, each kernel's own rules stand beside it in `KERNELS`. The support
table in the documentation and `nki_hf explain` are made from the same two tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from nki_hf.chips import Chip, get_chip
from nki_hf.errors import Reason
from nki_hf.kernels.flash_prefill.plan import plan_prefill, prefill_reasons
from nki_hf.problem import Problem

__all__ = ["KERNELS", "RULES", "Decision", "KernelEntry", "Rule", "decide"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What one call runs.

    Attributes:
      problem: the call.
      kernel: name of the chosen kernel; `empty` if there is nothing to compute; the fallback (`sdpa`, `eager`) if no
        kernel fits.
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


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One thing that no kernel takes.

    Attributes:
      field: the field of `Problem` that it is about.
      allows: True if the problem passes.
      value: the offending value as text.
      limit: what is allowed, as the rest of a sentence.
      advice: what to do.
    """

    field: str
    allows: Callable[[Problem], bool]
    value: Callable[[Problem], str]
    limit: str
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class KernelEntry:
    """One kernel as dispatch sees it.

    Attributes:
      name: the kernel; its module is `nki_hf.kernels.<name>`.
      reasons: why it cannot take a problem on a chip; empty if it can.
      plan: its tile sizes for a problem that it can take, on a chip and at a logical-core degree.
    """

    name: str
    reasons: Callable[[Problem, Chip], tuple[Reason, ...]]
    plan: Callable[[Problem, Chip, int], Mapping[str, Any]]


def _moderate(number: float) -> bool:
    return 1e-30 <= abs(number) <= 1e30


RULES: tuple[Rule, ...] = (
    Rule(
        field="dtype",
        allows=lambda problem: "+" not in problem.dtype,
        value=lambda problem: problem.dtype,
        limit="must be the same for q, k and v",
        advice="Cast them to one dtype.",
    ),
    Rule(
        field="softmax_scale",
        allows=lambda problem: problem.scale == 0 or _moderate(problem.scale),
        value=lambda problem: str(problem.scale),
        limit="must be 0, or 1e-30 to 1e30 in size: beyond, hidden scores are not low enough in float32",
        advice="Scale q instead.",
    ),
    Rule(
        field="softcap",
        allows=lambda problem: (
            problem.softcap is None
            or (_moderate(problem.softcap) and (problem.scale == 0 or _moderate(problem.scale / problem.softcap)))
        ),
        value=lambda problem: str(problem.softcap),
        limit="must be 1e-30 to 1e30, and so must softmax_scale / softcap: beyond, float32 loses the scores",
    ),
)

KERNELS: tuple[KernelEntry, ...] = (
    KernelEntry(
        name="flash_prefill",
        # The gradients are torch's, from the kernel's lse: a call that needs them runs the same kernel.
        reasons=lambda problem, chip: prefill_reasons(replace(problem, needs_grad=False), chip),
        plan=lambda problem, chip, lnc: plan_prefill(replace(problem, needs_grad=False), chip, lnc).tiles(),
    ),
)


@lru_cache(maxsize=4096)
def decide(problem: Problem, *, backend: str, chip: str, lnc: int | None = None, fallback: str = "sdpa") -> Decision:
    """The decision for one problem; the first kernel of `KERNELS` that takes it wins.

    Args:
      problem: the call.
      backend: what would run a kernel: `simulator`, `neuron` or `torch_reference`.
      chip: trn1, trn2 or trn3.
      lnc: logical-core degree; None = the chip's default.
      fallback: what runs if no kernel fits.
    """
    machine = get_chip(chip)
    degree = machine.default_lnc if lnc is None else lnc
    if problem.batch == 0 or problem.seqlen_q == 0 or problem.seqlen_kv == 0:
        return Decision(problem=problem, kernel="empty", backend=backend, chip=chip, lnc=degree)
    rejected = [
        Reason(kernel="any kernel", field=rule.field, value=rule.value(problem), limit=rule.limit, advice=rule.advice)
        for rule in RULES
        if not rule.allows(problem)
    ]
    if not rejected:
        for entry in KERNELS:
            reasons = entry.reasons(problem, machine)
            if not reasons:
                tiles = entry.plan(problem, machine, degree)
                return Decision(
                    problem=problem,
                    kernel=entry.name,
                    backend=backend,
                    chip=chip,
                    lnc=degree,
                    tiles=tiles,
                    rejected=tuple(rejected),
                )
            rejected.extend(reasons)
    return Decision(problem=problem, kernel=fallback, backend="torch", chip=chip, lnc=degree, rejected=tuple(rejected))
