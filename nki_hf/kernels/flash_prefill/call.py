"""The calling contract of `flash_prefill` (see `binding`), and what its plan tells of a launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nki_hf.errors import Reason
from nki_hf.kernels.binding import Argument, Binding, Division, Output, Rows
from nki_hf.kernels.call_tensors import HIDDEN, LOWEST
from nki_hf.kernels.flash_prefill.cost import cost
from nki_hf.kernels.flash_prefill.plan import estimated_blocks, plan_prefill, prefill_reasons
from nki_hf.kernels.plan import Plan, Target
from nki_hf.kernels.spans import TILE, blocks_of, half_of
from nki_hf.problem import Problem

__all__ = ["BINDING", "PER_BLOCK"]

_BIAS = ("batch", "num_heads_q", "seqlen_q")
PER_BLOCK = 16
"""Instructions of a score block of 128 rows x 512 keys with head_dim 128: two products, four transposes, statistics."""


def instructions(problem: Problem) -> int:
    """About how many instructions a launch has, before it is planned."""
    return PER_BLOCK * problem.batch * problem.num_heads_q * estimated_blocks(problem)


def plan(problem: Problem, target: Target) -> Plan | tuple[Reason, ...]:
    """The plan of a call, or why the kernel cannot take it."""
    reasons = prefill_reasons(problem, target.chip)
    if reasons:
        return reasons
    found = plan_prefill(problem, target.chip, target.lnc)
    passed = {"lo", "hi"} if found.bounds else set()
    if problem.mask.bias is not None:
        passed.add("bias")
    if problem.sink:
        passed.add("sink")
    if problem.row_statistics:
        passed |= {"row_shift", "row_sum"}
    if problem.out_rest:
        passed.add("out_rest")
    return Plan(
        constants=found.constants(),
        sizes={"seqlen_kv": found.seqlen_kv},
        passed=frozenset(passed),
        tiles=found.tiles(),
        instructions=PER_BLOCK * problem.batch * problem.num_heads_q * max(1, found.blocks),
        detail=found,
    )


def _runs(constants: Mapping[str, Any], seqlen_q: int, limit: int) -> Sequence[tuple[int, int]]:
    """Whole query tiles, one at least; equal in number if spans are."""
    spans, found, begin = constants["spans"], [], 0
    for end in range(1, len(spans) + 1):
        if end == len(spans) or PER_BLOCK * blocks_of(tuple(spans[begin : end + 1])) > limit:
            found.append((begin * TILE, min(end * TILE, seqlen_q)))
            begin = end
    return found


def _constants_of_rows(constants: Mapping[str, Any], begin: int, end: int, lnc: int) -> Mapping[str, Any]:
    """The spans of these rows; positions of the mask move with them."""
    spans = constants["spans"][begin // TILE : -(-end // TILE)]
    found = {**constants, "spans": spans, "row_split": half_of(spans) if lnc > 1 else len(spans)}
    if constants["window"] is not None or constants["ahead"] is not None:
        found["q_offset"] = constants["q_offset"] + begin
    return found


def _lowest_sink(problem: Problem) -> float:
    """A sink above the scores of hidden keys, which lie at HIDDEN times the slope of the kernel's scores: a row that sees no
    key would take those for its keys.
    """
    slope = problem.scale if problem.softcap is None else problem.softcap
    if slope <= 0 or problem.mask.bias == "additive":
        slope = 1.0
    return 0.95 * HIDDEN * min(slope, 1.0)


BINDING = Binding(
    name="flash_prefill",
    package="nki_hf.kernels.flash_prefill",
    arguments=(
        Argument(name="q", axes=("batch", "num_heads_q", "head_dim", "seqlen_q")),
        Argument(name="k", axes=("batch", "num_heads_kv", "head_dim", "seqlen_kv"), padding=0.0),
        Argument(name="v", axes=("batch", "num_heads_kv", "seqlen_kv", "head_dim_v"), padding=0.0),
        Argument(name="lo", axes=("batch", "seqlen_q"), dtype="int32", broadcast=("batch",), optional=True),
        Argument(name="hi", axes=("batch", "seqlen_q"), dtype="int32", broadcast=("batch",), optional=True),
        Argument(
            name="bias",
            axes=(*_BIAS, "seqlen_kv"),
            dtype="mask",
            broadcast=_BIAS,
            padding=HIDDEN,
            hidden=HIDDEN,
            lowest=LOWEST,
            optional=True,
        ),
        Argument(name="sink", axes=("1", "num_heads_q"), dtype="float32", lowest=_lowest_sink, optional=True),
    ),
    outputs=(
        Output(name="out", axes=("batch", "seqlen_q", "num_heads_q", "head_dim_v")),
        Output(name="lse", axes=("batch", "num_heads_q", "seqlen_q"), dtype="float32"),
        Output(name="row_shift", axes=("batch", "num_heads_q", "seqlen_q"), dtype="float32", optional=True),
        Output(name="row_sum", axes=("batch", "num_heads_q", "seqlen_q"), dtype="float32", optional=True),
        Output(name="out_rest", axes=("batch", "seqlen_q", "num_heads_q", "head_dim_v"), dtype="float32", optional=True),
    ),
    constants=(
        *("spans", "row_split", "q_rows", "q_heads", "section", "softmax_scale", "softcap", "q_offset", "window", "ahead"),
        *("row_statistics", "out_rest"),
    ),
    plan=plan,
    cost=cost,
    instructions=instructions,
    # The outer loop of the kernel is over (batch, kv head), whose iterations share nothing.
    division=Division(
        axes=("batch", "num_heads_kv"), group=True, rows=Rows(runs=_runs, constants=_constants_of_rows), worth={"seqlen_q": 128}
    ),
)
