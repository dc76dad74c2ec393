"""The calling contract of `flash_decode` (see `binding`)."""

from __future__ import annotations

from nki_hf.errors import Reason
from nki_hf.kernels.binding import Argument, Binding, Cost, Division, Output, Plan, Target
from nki_hf.kernels.flash_decode.live import live_events
from nki_hf.kernels.flash_decode.plan import decode_reasons, plan_decode
from nki_hf.problem import Problem

__all__ = ["BINDING"]

PER_TILE = 4
"""Instructions of a key tile of 128 keys: turn, scores, output, and its share of a step's."""

STEP_US = 2.3
"""The instructions of 16 key tiles of one kv head in 16 bits, head sizes up to 128: Tensor."""
WIDE_US = 8.4
"""The same in float32: four passes."""
ROW_US = 0.057
"""What a query row adds to that: Vector."""
EDGES_US = 12.0
"""Bounds and the first load; the last output and lse."""


def plan(problem: Problem, target: Target) -> Plan | tuple[Reason, ...]:
    """The plan of a call, or why the kernel cannot take it."""
    reasons = decode_reasons(problem, target.chip)
    if reasons:
        return reasons
    found = plan_decode(problem, target.chip)
    passed = {"sink"} if problem.sink else set()
    if problem.row_statistics:
        passed |= {"row_shift", "row_sum"}
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


def cost(problem: Problem, plan: Plan, target: Target) -> Cost:
    """Keys and values once, at the rate of the DMA engines, or the steps of all chunks, whichever is longer; and what stands
    before the first key and behind the last one. Figures: simulated, program order.
    """
    chip, size = target.chip, 4 if problem.dtype == "float32" else 2
    units, tiles = problem.batch * problem.num_heads_kv, plan.constants["per_partition"]
    quarters = -(-problem.seqlen_kv // (32 * tiles))
    nbytes = units * quarters * 32 * tiles * (problem.head_dim + problem.head_dim_v) * size
    rate = float(chip.dma_engines * chip.dma_engine_bytes_per_ns) * 1e3
    wide = max(1.0, (problem.head_dim + problem.head_dim_v) / 256)
    step = (STEP_US if size == 2 else WIDE_US) * wide + ROW_US * problem.group_size * problem.seqlen_q
    steps = units * plan.constants["chunks"] * step * tiles / 16
    cores = target.lnc if units >= target.lnc else 1
    us = float(chip.kernel_fixed_ns) / 1e3 + EDGES_US + max(nbytes / rate, steps) / cores
    return Cost(us=us, why="keys and values are read once per group")


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
    ),
    constants=("chunks", "per_partition", "prefetch", "softmax_scale", "softcap", "row_statistics"),
    plan=plan,
    cost=cost,
    instructions=instructions,
    division=Division(axes=("batch", "num_heads_kv")),
    live=live_events,
)
