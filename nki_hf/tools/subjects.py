"""Subjects: kernels with a name and a size, as event streams; what trace, report, correlate and bench model."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.chips import Chip
from nki_hf.dispatch import Candidate, candidates
from nki_hf.errors import UnsupportedProblem
from nki_hf.kernels.binding import Binding
from nki_hf.kernels.plan import Plan, Target
from nki_hf.kernels.registry import binding, bindings
from nki_hf.lang import features
from nki_hf.problem import Mask, Problem
from nki_hf.sim import SimOptions, launch
from nki_hf.sim.execution.cores import CoresMeet
from nki_hf.sim.stream.events import Event
from nki_hf.tools.numpy_layouts import NUMPY_DTYPES

__all__ = [
    "SUBJECTS",
    "Subject",
    "alike",
    "attention_candidate",
    "attention_events",
    "attention_kernels",
    "events_of",
    "own_kernels",
    "planned_events",
    "subject",
    "telling_events",
]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One kernel at one family of sizes.

    Attributes:
      name: how it is asked for.
      module, function: where the kernel is.
      idea: what it shows, a few words.
      arguments: size -> tensors; only their shapes and dtypes count.
      flops: size -> useful floating-point operations.
      constants: keyword arguments of the kernel.
      multiple: sizes are multiples of it.
      task: the task of the judge whose function it computes; empty = none.
    """

    name: str
    module: str
    function: str
    idea: str
    arguments: Callable[[int], tuple[np.ndarray[Any, Any], ...]]
    flops: Callable[[int], int]
    constants: tuple[tuple[str, Any], ...] = ()
    multiple: int = 512
    task: str = ""


def _columns(size: int) -> tuple[np.ndarray[Any, Any], ...]:
    return (_shape((128, size), ml_dtypes.bfloat16),) * 3


def _rows(size: int) -> tuple[np.ndarray[Any, Any], ...]:
    return (_shape((size, 64), np.float32),) * 3


def _shape(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """An array of that shape that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def _matmul(m: int, k: int, n: int, dtype: Any) -> tuple[np.ndarray[Any, Any], ...]:
    return _shape((k, m), dtype), _shape((k, n), dtype)


def _rung(name: str, module: str, function: str, idea: str) -> Subject:
    return Subject(
        name=name,
        module=f"nki_hf.ladder.{module}",
        function=function,
        idea=idea,
        arguments=_columns,
        flops=lambda size: 4 * size * size * 128,
        task="attention_unscaled",
    )


def _sd(name: str, idea: str) -> Subject:
    return Subject(
        name=name,
        module=f"nki_hf.ladder.{name}",
        function=name,
        idea=idea,
        arguments=_rows,
        flops=lambda size: 4 * size * size * 64,
        task="attention_diffusion",
    )


SUBJECTS: dict[str, Subject] = {
    item.name: item
    for item in (
        _rung("v3", "v3_hbm_round_trips", "hbm_round_trips", "every intermediate through HBM"),
        _rung("v4", "v4_sbuf_resident", "sbuf_resident", "everything stays in SBUF"),
        _rung("v5", "v5_delayed_division", "delayed_division", "division delayed to the output"),
        _rung("v6", "v6_fused_exp_sum", "fused_exp_sum", "exp and row sum in one instruction"),
        _rung("v7", "v7_bf16_probs", "bf16_probs", "probabilities and V in bfloat16"),
        _rung("v8", "v8_fused_max_eviction", "fused_max_eviction", "row max and PSUM eviction in one"),
        _rung("v11", "v11_software_pipeline", "software_pipeline", "software pipelining over query tiles"),
        _sd("sd_baseline", "Stable Diffusion shape, three passes of softmax"),
        _sd("sd_fused_exp", "exp, sum and cast in one instruction"),
        _sd("sd_joint_loads", "one loop loads Q and K"),
        _sd("sd_vector_transpose", "V joins the loop, divisor transposed by Vector"),
        _sd("sd_bf16_scores", "scores in bfloat16"),
        _sd("sd_swapped_operands", "PV operands swapped, no transposed divisor"),
        Subject(
            name="matmul_tiled",
            module="nki_hf.ladder.matmul_tiled",
            function="matmul_tiled",
            idea="float32 4096 x size x size, every tile loaded when used",
            arguments=lambda size: _matmul(4096, size, size, np.float32),
            flops=lambda size: 2 * 4096 * size * size,
        ),
        Subject(
            name="matmul_blocked",
            module="nki_hf.ladder.matmul_blocked",
            function="matmul_blocked",
            idea="float32 4096 x size x size, blocked in all dimensions",
            multiple=1024,
            arguments=lambda size: _matmul(4096, size, size, np.float32),
            flops=lambda size: 2 * 4096 * size * size,
        ),
        Subject(
            name="gemm_bf16",
            module="nki_hf.ladder.matmul_blocked",
            function="matmul_blocked",
            idea="one core's half of a bfloat16 GEMM: 12288 (at 8192) or 1024 (at 4096) rows",
            arguments=lambda size: _matmul(_gemm_rows(size), size, size, ml_dtypes.bfloat16),
            flops=lambda size: 2 * _gemm_rows(size) * size * size,
            constants=(("block_m", 4), ("block_n", 2), ("block_k", 8)),
            multiple=1024,
        ),
    )
}


def _gemm_rows(size: int) -> int:
    return 6144 if size >= 8192 else 512


def subject(name: str) -> Subject:
    """The subject of that name; a ValueError lists the known ones."""
    if name in own_kernels():
        raise ValueError(f"kernel={name!r} takes no size: it takes a call, as in sq=1024,causal.")
    if name not in SUBJECTS:
        known = (*own_kernels(), *SUBJECTS)
        raise ValueError(f"kernel={name!r} is not known: it is one of {', '.join(known)}.")
    return SUBJECTS[name]


@functools.lru_cache(maxsize=8)
def events_of(name: str, size: int, chip: Chip) -> Sequence[Event]:
    """The event stream of a subject at a size, run on shapes alone; memory may overflow (the schedule spills).

    Raises:
      ValueError: the name is not known, or the kernel's tiles do not divide the size.
    """
    found = subject(name)
    if size < 1 or size % found.multiple:
        raise ValueError(
            f"seqlen={size} is not a size of {name}: it is a multiple of {found.multiple}, from {found.multiple} on."
        )
    kernel = getattr(importlib.import_module(found.module), found.function)
    options = SimOptions(chip=chip, values=False, checks=False)
    return launch(kernel, found.arguments(size), dict(found.constants), options=options).events


def own_kernels() -> tuple[str, ...]:
    """Names of our own kernels, which take a problem in place of a size."""
    return tuple(item.name for item in bindings())


def attention_kernels() -> tuple[str, ...]:
    """Those of the forward."""
    return tuple(item.name for item in bindings("forward"))


def attention_candidate(problem: Problem, chip: Chip, lnc: int = 1, *, kernel: str | None = None) -> Candidate:
    """One of our kernels with its plan for a problem on the simulator; arguments and errors as `attention_events`."""
    target = Target(chip=chip, lnc=lnc, features=features("simulator"))
    found = None if kernel is None else binding(kernel)
    taken, rejected = candidates(
        problem, target, kind=found.kind if found else "forward", names=None if found is None else (found.name,)
    )
    if not taken:
        raise UnsupportedProblem(rejected)
    return taken[0]


def attention_events(
    problem: Problem, chip: Chip, lnc: int = 1, *, kernel: str | None = None, first_core: bool = False
) -> Sequence[Event]:
    """The event stream of one of our kernels on one problem, run on shapes alone.

    Args:
      problem: the call.
      chip, lnc: what it is planned for.
      kernel: its name; None = the one that dispatch picks.
      first_core: only that of core 0, for problems whose cores are `alike`.

    Raises:
      UnsupportedProblem: the kernel, or every kernel, refuses the problem.
      CoresMeet: `first_core`, and the cores meet.
    """
    candidate = attention_candidate(problem, chip, lnc, kernel=kernel)
    # The rules are held by the tests of the kernel.
    return planned_events(
        candidate.binding, problem, candidate.plan, Target(chip=chip, lnc=lnc), checks=False, first_core=first_core
    )


def planned_events(
    item: Binding, problem: Problem, plan: Plan, target: Target, *, checks: bool, first_core: bool = False
) -> Sequence[Event]:
    """The event stream of a kernel of ours by a plan of its own, run on shapes alone, with or without the checks of limits.
    `first_core`: only that of core 0, for problems whose cores are `alike`.
    """
    shapes = item.shapes(problem, plan)
    tensors = {name: None if each is None else _shape(each[0], NUMPY_DTYPES[each[1]]) for name, each in shapes.items()}
    source = getattr(importlib.import_module(item.module), plan.entry or item.name)
    options = SimOptions(chip=target.chip, values=False, checks=checks, trip_counts=plan.trip_counts)
    return launch(source, (), {**tensors, **plan.constants}, options=options, lnc=target.lnc, first_core=first_core).events


def alike(problem: Problem, kernel: str, lnc: int) -> bool:
    """True if the cores of a launch have the same units each, (batch, kv head) pairs in this order, and share none.

    Then each core issues the same instructions on tiles of its own, and where cores do not meet either the time of one is the
    time of both: what they share, HBM, is part of the costs (`timing.schedule`, `cores`). The gradient of a bias is summed over
    units, so that its work is divided otherwise.
    """
    if problem.bias_gradient:
        return False
    outer, inner = (int(getattr(problem, axis)) for axis in binding(kernel).division.axes[-2:])
    return lnc > 1 and (outer % lnc == 0 or (outer == 1 and inner % lnc == 0))


def telling_events(problem: Problem, chip: Chip, lnc: int, *, kernel: str) -> tuple[Sequence[Event], int | None]:
    """The events that tell the time of a launch, and how many cores share HBM if they do not show it.

    They are those of core 0 where its cores are `alike` and do not meet, else all.
    """
    if alike(problem, kernel, lnc):
        with suppress(CoresMeet):
            return attention_events(problem, chip, lnc, kernel=kernel, first_core=True), lnc
    return attention_events(problem, chip, lnc, kernel=kernel), None


def causal(seqlen: int, heads: int = 1, head_dim: int = 128) -> Problem:
    """Causal bfloat16 prefill of one batch."""
    return Problem(
        batch=1,
        num_heads_q=heads,
        num_heads_kv=heads,
        seqlen_q=seqlen,
        seqlen_kv=seqlen,
        head_dim=head_dim,
        head_dim_v=head_dim,
        mask=Mask(ahead=1),
    )
