"""Dispatch: which kernel runs a Problem, with which plan, on which back end, and why the others do not.

Asked once per call, by eager calls, graphs, `nki_hf explain` and dry runs alike. A kernel's own rules are its plan function's
(see `kernels.binding`); the support table of the documentation is made from the same answers.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nki_hf.backends.base import KernelCall
from nki_hf.chips import get_chip
from nki_hf.errors import Reason
from nki_hf.kernels.binding import Binding
from nki_hf.kernels.call_tensors import TENSORS
from nki_hf.kernels.packing import Packing, packing
from nki_hf.kernels.plan import Cost, Plan, Target
from nki_hf.kernels.registry import bindings
from nki_hf.lang import features
from nki_hf.problem import Problem

__all__ = ["SIZES", "Candidate", "Decision", "candidates", "decide", "kernel_call"]

SIZES = frozenset({"batch", "num_heads_q", "num_heads_kv", "seqlen_q", "seqlen_kv"})
"""The sizes of `Problem` that may be unknown while a graph is traced."""
_FIXED = frozenset({"dtype", "head_dim", "head_dim_v", "sink", "mask", "chip"})
"""What is known even then: only reasons about these refuse a call whose sizes are not known. Scales may be symbols too."""


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
      binding, plan: the kernel's contract and how it runs the problem; None for a fallback, an empty call, and a call whose
        sizes are not known yet.
      rejected: one `Reason` for each rule of each kernel that said no.
      why: what made dispatch prefer this kernel to others that take the call; empty if there are none.
      kind: `forward`, or `backward` for the gradients of a call.
    """

    problem: Problem
    kernel: str
    backend: str
    chip: str
    lnc: int = 1
    binding: Binding | None = field(default=None, repr=False)
    plan: Plan | None = field(default=None, repr=False)
    rejected: tuple[Reason, ...] = ()
    why: str = ""
    kind: str = "forward"

    @property
    def fallback(self) -> bool:
        """True if no kernel of ours runs."""
        return self.backend == "torch"

    @property
    def tiles(self) -> Mapping[str, Any]:
        """The kernel's tile sizes, by name; empty for a fallback."""
        return {} if self.plan is None else self.plan.tiles

    @property
    def phase(self) -> str:
        """`backward` for gradients; `decode` for one query row, and for as many as a decode kernel runs; else `prefill`."""
        if self.kind == "backward":
            return "backward"
        if self.problem.seqlen_q == 1:
            return "decode"
        return "prefill" if self.binding is None else self.binding.phase

    @functools.cached_property
    def way(self) -> tuple[object, ...]:
        """What calls that ran alike have in common, for the call log."""
        # Why a kernel that was not chosen says no may name the call's sizes: it would split the rows of calls that ran alike.
        reasons = self.rejected if self.fallback else ()
        return self.kernel, self.backend, self.phase, self.problem.mask.form, reasons

    @functools.cached_property
    def unpacking(self) -> tuple[tuple[str, tuple[int, ...] | None], ...]:
        """Name of each output that the kernel returns, and the order that brings its axes into those of `binding.TENSORS`; None
        if they are, or if the output is none of these.
        """
        if self.binding is None or self.plan is None:
            raise ValueError(f"kernel={self.kernel!r} has no plan: nothing ran.")
        found: list[tuple[str, tuple[int, ...] | None]] = []
        for item in self.binding.returned(self.plan.passed):
            axes = TENSORS.get(item.name, item.axes)
            other = item.axes != axes and set(item.axes) == set(axes)
            found.append((item.name, tuple(item.axes.index(axis) for axis in axes) if other else None))
        return tuple(found)

    @functools.cached_property
    def packing(self) -> Packing:
        """How the kernel's arguments are made."""
        if self.binding is None or self.plan is None:
            raise ValueError(f"kernel={self.kernel!r} has no plan: only a call that a kernel runs is packed.")
        return packing(self.binding, self.problem, self.plan)


def kernel_call(decision: Decision, tensors: Mapping[str, Any], extended: Mapping[str, tuple[int, int]]) -> KernelCall:
    """The call of a decision on tensors that `decision.packing` made.

    Args:
      decision: one that has a plan.
      tensors: the kernel's arguments by name.
      extended: see `KernelCall`.
    """
    if decision.plan is None:
        raise ValueError(f"kernel={decision.kernel!r} has no plan: nothing is called.")
    plan = decision.plan
    return KernelCall(
        kernel=decision.kernel,
        tensors=tensors,
        constants=plan.constants,
        extended=extended,
        lnc=decision.lnc,
        entry=plan.entry,
        passed=plan.passed,
        instructions=plan.instructions,
    )


@functools.lru_cache(maxsize=4096)
def decide(
    problem: Problem,
    *,
    backend: str,
    chip: str,
    lnc: int | None = None,
    fallback: str = "sdpa",
    kind: str = "forward",
    refused: tuple[Reason, ...] = (),
    unknown: frozenset[str] = frozenset(),
) -> Decision:
    """The decision for one problem: the cheapest kernel that takes it.

    Args:
      problem: the call.
      backend: what would run a kernel: `simulator`, `neuron` or `torch_reference`.
      chip: trn1, trn2 or trn3.
      lnc: logical-core degree; None = the chip's default.
      fallback: what runs if no kernel fits.
      kind: of the kernels that are asked, see `Binding`.
      refused: why no kernel may run the call, whatever the kernels say; what only the caller knows.
      unknown: sizes of `problem` that stand for any, of `SIZES`. A kernel that refuses only because of sizes is then not
        refused: whoever runs the call asks again when it knows them.
    """
    machine = get_chip(chip)
    target = Target(chip=machine, lnc=machine.default_lnc if lnc is None else lnc, features=features(backend))
    found = functools.partial(Decision, problem=problem, chip=chip, lnc=target.lnc, kind=kind)
    rejected = list(refused)
    if not refused and not unknown and 0 in (problem.batch, problem.seqlen_q, problem.seqlen_kv):
        return found(kernel="empty", backend=backend)
    if problem.dtypes is not None:
        limit, advice = "must be the same for q, k and v", "Cast them to one dtype."
        value = "+".join(problem.dtypes)
        rejected.append(Reason(kernel="any kernel", field="dtype", value=value, limit=limit, advice=advice))
        return found(kernel=fallback, backend="torch", rejected=tuple(rejected))
    # Kernels have no plan for nothing: of a refused call without elements they are asked why they too would refuse one element.
    batch, seqlen_q, seqlen_kv = (max(1, size) for size in (problem.batch, problem.seqlen_q, problem.seqlen_kv))
    asked = replace(problem, batch=batch, seqlen_q=seqlen_q, seqlen_kv=seqlen_kv)
    taken, found_reasons = candidates(asked, target, kind=kind)
    by_kernel = itertools.groupby(found_reasons, key=lambda reason: reason.kernel)
    open_ = [bool(unknown) and not any(reason.field in _FIXED for reason in reasons) for _, reasons in by_kernel]
    if refused or not (taken or any(open_)):
        known = [reason for reason in found_reasons if reason.field not in unknown]
        return found(kernel=fallback, backend="torch", rejected=(*rejected, *known))
    if unknown:
        return found(kernel="a kernel", backend=backend)
    first = taken[0]
    return found(
        kernel=first.binding.name,
        backend=backend,
        binding=first.binding,
        plan=first.plan,
        rejected=(*rejected, *found_reasons),
        why=f"{first} before {', '.join(map(str, taken[1:]))}" if len(taken) > 1 else "",
    )


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A kernel that takes a problem: its contract, its plan and what it costs."""

    binding: Binding
    plan: Plan
    cost: Cost

    def __str__(self) -> str:
        known = [f"{self.cost.us:,.1f} us"] if self.cost.us != float("inf") else []
        return f"{self.binding.name} ({', '.join([*known, *filter(None, [self.cost.why])])})"


def candidates(
    problem: Problem, target: Target, *, kind: str = "forward", names: Collection[str] | None = None
) -> tuple[tuple[Candidate, ...], tuple[Reason, ...]]:
    """The kernels that take a problem, cheapest first (of equals the registry's first), and why the others do not.

    Args:
      problem, target: the call, and what it is planned for.
      kind: of the kernels that are asked, see `Binding`.
      names: ask only these; None = all of the kind.
    """
    taken: list[Candidate] = []
    rejected: list[Reason] = []
    for binding in bindings(kind):
        if names is not None and binding.name not in names:
            continue
        plan = binding.plan(problem, target)
        if isinstance(plan, Plan):
            taken.append(Candidate(binding=binding, plan=plan, cost=binding.cost(problem, plan, target)))
        else:
            rejected.extend(plan)
    return tuple(sorted(taken, key=lambda item: item.cost.us)), tuple(rejected)
