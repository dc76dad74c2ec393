"""The calling contract of `flash_const_max` (see `binding`), what its plan tells of a launch, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nki_hf.errors import Reason
from nki_hf.kernels.binding import Argument, Binding, Division, Output, Rows
from nki_hf.kernels.call_tensors import HIDDEN, LOWEST
from nki_hf.kernels.flash_const_max.plan import ConstMaxPlan, const_max_reasons, estimated_us, plan_const_max
from nki_hf.kernels.flash_const_max.tuning import CASES, SPACES, Tuning, tuning_of
from nki_hf.kernels.limits import sbuf_limit
from nki_hf.kernels.plan import Cost, Plan, Target, Tuned
from nki_hf.kernels.spans import TILE, half_of
from nki_hf.problem import Problem

__all__ = ["BINDING"]

RECOMPUTED = "recomputed_tile"
"""The loop of the entry `flash_const_max_loop`, by its body: a turn computes one query tile again."""

_PER_TILE = {4: 2, 2: 5}
"""Instructions of a query tile and a key tile, by the column tiles of a block; rather more than there are."""


def plan(problem: Problem, target: Target) -> Plan | tuple[Reason, ...]:
    """The plan of a call, or why the kernel cannot take it."""
    reasons = const_max_reasons(problem, target.chip)
    if reasons:
        return reasons
    if "loops" not in target.features or target.chip.generation < 3:
        return (_no_loops(target),)
    return _plan_of(plan_const_max(problem, target.chip, target.lnc), problem)


def _plan_of(found: ConstMaxPlan, problem: Problem) -> Plan:
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
        sizes={"tiles": len(found.spans)},
        passed=frozenset(passed),
        tiles=found.tiles(),
        entry="flash_const_max_loop",
        instructions=found.instructions,
        trip_counts=0,  # nothing failed
        most_turns={RECOMPUTED: problem.batch * problem.num_heads_q * len(found.spans)},
        detail=found,
    )


def rule(problem: Problem, target: Target) -> Tuning | tuple[Reason, ...]:
    """The constants that the table has for a problem, or why the kernel cannot take it."""
    return const_max_reasons(problem, target.chip) or tuning_of(problem, target.chip)


def tuned_plan(problem: Problem, target: Target, tuning: Tuning) -> Plan | tuple[Reason, ...]:
    """The plan of the entry without loop, with these constants, or why they are not possible."""
    chip = target.chip
    if tuning.block_tiles > 4 or tuning.chunk % TILE:
        value, allowed = f"{tuning.block_tiles}, {tuning.chunk}", f"must be at most 4, and a multiple of {TILE}"
        return (Reason(kernel="flash_const_max", field="block_tiles, chunk", value=value, limit=allowed),)
    found = plan_const_max(problem, chip, target.lnc, tuning)
    limit = sbuf_limit(chip)
    if found.sbuf_bytes > limit:
        value, allowed = f"{found.sbuf_bytes:,}", f"must be at most {limit:,} per partition on {chip.name}"
        return (Reason(kernel="flash_const_max", field="sbuf_bytes", value=value, limit=allowed),)
    return replace(_plan_of(found, problem), entry="flash_const_max", trip_counts=None, most_turns={})


def _no_loops(target: Target) -> Reason:
    """Why the entry without loop is not dispatched: what it cannot be sure of depends on values, which a plan does not know."""
    limit = (
        "must have loops at run time (NKI 0.6, NeuronCore-v3): rows that fail the certificate of the shift are computed again"
    )
    return Reason(kernel="flash_const_max", field="chip", value=target.chip.name, limit=limit)


def _instructions(problem: Problem) -> int:
    tiles, keys = -(-problem.seqlen_q // TILE), -(-problem.seqlen_kv // TILE)
    return 2 * problem.batch * problem.num_heads_q * tiles * keys


def _runs(constants: Mapping[str, Any], seqlen_q: int, limit: int) -> Sequence[tuple[int, int]]:
    """Whole blocks of query tiles, one at least; equal in number if spans are."""
    spans, block = constants["spans"], constants["block_tiles"]
    found, begin = [], 0
    for end in range(block, len(spans) + block, block):
        keys = sum(-(-last // TILE) - first // TILE for first, last, _, _ in spans[begin : end + block])
        if end >= len(spans) or _PER_TILE[block] * keys > limit:
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


def _cost(problem: Problem, plan: Plan, target: Target) -> Cost:
    del plan
    return Cost(us=estimated_us(problem, target.chip, target.lnc), why="constant shift: no row maximum, no transposes")


BINDING = Binding(
    name="flash_const_max",
    package="nki_hf.kernels.flash_const_max",
    arguments=(
        Argument(name="q", axes=("batch", "num_heads_q", "head_dim", "seqlen_q")),
        Argument(name="k", axes=("batch", "num_heads_kv", "head_dim", "seqlen_kv")),
        Argument(name="v", axes=("batch", "num_heads_kv", "seqlen_kv", "head_dim_v")),
        Argument(name="lo", axes=("batch", "seqlen_q"), dtype="int32", broadcast=("batch",), optional=True),
        Argument(name="hi", axes=("batch", "seqlen_q"), dtype="int32", broadcast=("batch",), optional=True),
        Argument(
            name="bias",
            axes=("batch", "num_heads_q", "seqlen_q", "seqlen_kv"),
            dtype="mask",
            broadcast=("batch", "num_heads_q", "seqlen_q"),
            hidden=HIDDEN,
            lowest=LOWEST,
            optional=True,
        ),
        Argument(name="sink", axes=("1", "num_heads_q"), dtype="float32", optional=True),
    ),
    outputs=(
        Output(name="out", axes=("batch", "seqlen_q", "num_heads_q", "head_dim_v")),
        Output(name="lse", axes=("batch", "num_heads_q", "seqlen_q"), dtype="float32"),
        Output(name="row_shift", axes=("batch", "num_heads_q", "seqlen_q"), dtype="float32", optional=True),
        Output(name="row_sum", axes=("batch", "num_heads_q", "seqlen_q"), dtype="float32", optional=True),
        Output(name="out_rest", axes=("batch", "seqlen_q", "num_heads_q", "head_dim_v"), dtype="float32", optional=True),
        Output(name="failed", axes=("batch", "num_heads_q", "tiles"), dtype="int32", optional=True),
    ),
    constants=(
        *(
            "spans",
            "row_split",
            "block_tiles",
            "group",
            "lag",
            "late",
            "copied",
            "prefetch",
            "chunk",
            "resident",
            "room",
            "share_masks",
        ),
        *("shift", "softmax_scale", "q_offset", "window", "ahead", "count_failed", "row_statistics", "out_rest"),
    ),
    plan=plan,
    cost=_cost,
    instructions=_instructions,
    tuned=Tuned(record=Tuning, rule=rule, plan=tuned_plan, least={"copied": 0}, cases=CASES, spaces=SPACES),
    division=Division(
        axes=("batch", "num_heads_kv"), group=True, rows=Rows(runs=_runs, constants=_constants_of_rows), worth={"seqlen_q": 128}
    ),
)
