"""The calling contract of `flash_decode` (see `binding`)."""

from __future__ import annotations

from nki_hf.errors import Reason
from nki_hf.kernels.binding import Argument, Binding, Division, Output
from nki_hf.kernels.flash_decode.cost import cost
from nki_hf.kernels.flash_decode.live import live_events
from nki_hf.kernels.flash_decode.plan import decode_reasons, plan_decode
from nki_hf.kernels.plan import Plan, Target
from nki_hf.problem import Problem

__all__ = ["BINDING"]

PER_TILE = 4
"""Instructions of a key tile of 128 keys: turn, scores, output, and its share of a step's."""


def plan(problem: Problem, target: Target) -> Plan | tuple[Reason, ...]:
    """The plan of a call, or why the kernel cannot take it."""
    reasons = decode_reasons(problem, target.chip)
    if reasons:
        return reasons
    found = plan_decode(problem, target.chip)
    passed = {"sink"} if problem.sink else set()
    if problem.row_statistics:
        passed |= {"row_shift", "row_sum"}
    if problem.out_rest:
        passed.add("out_rest")
    return Plan(
        constants=found.constants(),
        sizes={"seqlen_kv": found.seqlen_kv},
        passed=frozenset(passed),
        tiles={"chunk": found.per_partition * 128, "chunks": found.chunks},
        instructions=instructions(problem),
        detail=found,
    )


def instructions(problem: Problem) -> int:
    """About how many instructions a launch has."""
    blocks = -(-problem.group_size * problem.seqlen_q // 128)
    tiles = -(-problem.seqlen_kv // 2048) * 16
    return PER_TILE * (1 + blocks) // 2 * problem.batch * problem.num_heads_kv * tiles


BINDING = Binding(
    name="flash_decode",
    package="nki_hf.kernels.flash_decode",
    arguments=(
        Argument(name="q", axes=("batch", "num_heads_q", "seqlen_q", "head_dim")),
        Argument(name="k", axes=("batch", "num_heads_kv", "seqlen_kv", "head_dim"), padding=0.0),
        Argument(name="v", axes=("batch", "num_heads_kv", "seqlen_kv", "head_dim_v"), padding=0.0),
        Argument(name="lo", axes=("batch", "seqlen_q"), dtype="int32", broadcast=("batch",)),
        Argument(name="hi", axes=("batch", "seqlen_q"), dtype="int32", broadcast=("batch",)),
        Argument(name="sink", axes=("1", "num_heads_q"), dtype="float32", optional=True),
    ),
    outputs=(
        Output(name="out", axes=("batch", "seqlen_q", "num_heads_q", "head_dim_v")),
        Output(name="lse", axes=("batch", "num_heads_q", "seqlen_q"), dtype="float32"),
        Output(name="row_shift", axes=("batch", "num_heads_q", "seqlen_q"), dtype="float32", optional=True),
        Output(name="row_sum", axes=("batch", "num_heads_q", "seqlen_q"), dtype="float32", optional=True),
        Output(name="out_rest", axes=("batch", "seqlen_q", "num_heads_q", "head_dim_v"), dtype="float32", optional=True),
    ),
    constants=("chunks", "per_partition", "prefetch", "softmax_scale", "softcap", "row_statistics", "out_rest"),
    plan=plan,
    cost=cost,
    instructions=instructions,
    division=Division(axes=("batch", "num_heads_kv")),
    live=live_events,
    phase="decode",
)
