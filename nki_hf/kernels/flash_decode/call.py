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

STEP_US = {"trn1": (1.81, 0.0432), "trn2": (1.97, 0.0434), "trn3": (1.91, 0.0443)}
"""What 16 key tiles of one kv head cost the busiest engine in 16 bits, head sizes up to 128, and what a query row adds.

These three are what `python tools/decode_constants.py` prints, rounded; a test compares them.
"""
WIDE_US = {"trn1": (9.75, 0.038), "trn2": (8.18, 0.039), "trn3": (8.12, 0.040)}
"""The same in float32: products take four passes."""
EDGES_US = {"trn1": 7.6, "trn2": 8.0, "trn3": 14.7}
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
    of_step, of_row = (STEP_US if size == 2 else WIDE_US)[chip.name]
    step = of_step * wide + of_row * problem.group_size * problem.seqlen_q
    steps = units * plan.constants["chunks"] * step * tiles / 16
    cores = target.lnc if units >= target.lnc else 1
    us = float(chip.kernel_fixed_ns) / 1e3 + EDGES_US[chip.name] + max(nbytes / rate, steps) / cores
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
