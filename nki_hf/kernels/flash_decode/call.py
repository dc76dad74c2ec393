"""The calling contract of `flash_decode` (see `binding`)."""

from __future__ import annotations

from nki_hf.errors import Reason
from nki_hf.kernels.binding import Argument, Binding, Cost, Division, Output, Plan, Target
from nki_hf.kernels.flash_decode.plan import decode_reasons, plan_decode
from nki_hf.problem import Problem

__all__ = ["BINDING"]

PER_TILE = 4
"""Instructions of a key tile of 128 keys: turn, scores, output, and its share of a step's."""

STEP_US = 2.5
"""A chunk of one kv head with few rows, where the DMA engines do not bind."""
DESCRIPTORS = 256
"""Rows that the gathers of a chunk fetch, one of keys and one of values a partition: each has a descriptor made by software."""
EDGES_US = 10.0
"""Bounds and the first load; the last output and lse."""


def plan(problem: Problem, target: Target) -> Plan | tuple[Reason, ...]:
    """The plan of a call, or why the kernel cannot take it."""
    reasons = decode_reasons(problem, target.chip)
    if reasons:
        return reasons
    found = plan_decode(problem, target.chip)
    return Plan(
        constants=found.constants(),
        sizes={"seqlen_kv": found.seqlen_kv},
        passed=frozenset({"sink"} if problem.sink else ()),
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
    """Keys and values once, at the rate of the DMA engines, the descriptors of the gathers, or the steps of all chunks,
    whichever is longest; and what stands before the first key and behind the last one. Figures: simulated, program order.
    """
    chip, size = target.chip, 4 if problem.dtype == "float32" else 2
    units = problem.batch * problem.num_heads_kv
    nbytes = units * problem.seqlen_kv * (problem.head_dim + problem.head_dim_v) * size
    rate = float(chip.dma_engines * chip.dma_engine_bytes_per_ns) * 1e3
    cores = target.lnc if units >= target.lnc else 1
    steps = units * plan.constants["chunks"] * STEP_US * (1 + problem.group_size * problem.seqlen_q / 128)
    described = units * plan.constants["chunks"] * DESCRIPTORS * float(chip.dma_software_descriptor_ns) / 1e3
    us = float(chip.kernel_fixed_ns) / 1e3 + EDGES_US + max(nbytes / rate, steps, described) / cores
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
        Argument(name="sink", axes=("1", "num_heads_q"), dtype="float32", lowest=-1e30, optional=True),
    ),
    outputs=(
        Output(name="out", axes=("batch", "seqlen_q", "num_heads_q", "head_dim_v")),
        Output(name="lse", axes=("batch", "num_heads_q", "seqlen_q"), dtype="float32"),
    ),
    constants=("chunks", "per_partition", "prefetch", "softmax_scale", "softcap"),
    plan=plan,
    cost=cost,
    instructions=instructions,
    division=Division(axes=("batch", "num_heads_kv")),
)
