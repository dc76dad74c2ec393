"""What a launch of `flash_decode` takes (see `kernels.pricing`)."""

from __future__ import annotations

from nki_hf.chips import Chip
from nki_hf.kernels.flash_decode.plan import DecodePlan, visited_keys
from nki_hf.kernels.flash_decode.work import VALUES, tiles_of
from nki_hf.kernels.plan import Cost, Plan, Target
from nki_hf.kernels.pricing import ITEMSIZE, Prices, launch_us, loads_us, prices_of
from nki_hf.problem import Problem

__all__ = ["PRICES", "cost", "counts", "loads"]

TILE = 128
QUARTER = 32

PRICES = {
    ("trn1", 2): Prices(edge=13.8, each=(1.18, 0.0358, 0.015, 0.108, 0.00201, 0.573, 0.00238, 0.594, 0.00219)),
    ("trn1", 4): Prices(edge=14.2, each=(0.707, 0.0626, 0.105, 0.133, 0.00203, 4.71, 0.00766, 0.0112, 0.0)),
    ("trn2", 2): Prices(edge=14.6, each=(0.756, 0.021, 0.0621, 0.048, 0.00178, 0.336, 0.0026, 0.707, 0.00369)),
    ("trn2", 4): Prices(edge=12.6, each=(1.59, 0.0179, 0.105, 0.118, 0.00124, 3.28, 0.0062, 0.0252, 0.00231)),
    ("trn3", 2): Prices(edge=12.5, each=(1.27, 0.018, 0.082, 0.00263, 0.000978, 0.288, 0.00362, 0.67, 0.00274)),
    ("trn3", 4): Prices(edge=12.0, each=(0.697, 0.0258, 0.102, 0.0666, 0.00208, 4.31, 0.00627, 0.0161, 0.000156)),
}
"""By chip and bytes of an element; each: see `counts`. What `python tools/decode_constants.py` prints; a test compares the law
with the kernel."""


def cost(problem: Problem, plan: Plan, target: Target) -> Cost:
    """Keys and values once, at the rate of the DMA engines, or the steps of all chunks, whichever is longer; and what stands
    before the first key and behind the last one.
    """
    chip, prices = target.chip, prices_of(PRICES, target.chip, problem.dtype)
    us = launch_us(chip, counts(problem, plan.detail, chip, target.lnc), prices, loads(problem, plan.detail, chip, target.lnc))
    return Cost(us=us, why="keys and values are read once per group")


def counts(problem: Problem, plan: DecodePlan, chip: Chip, lnc: int) -> tuple[float, ...]:
    """Of the busiest core: steps; key tiles of 128 keys; the same times head_dim / 128, and times head_dim_v / 128; score
    columns (key tiles x query rows); chunks; KiB a partition that are zeroed between sequences; and steps and score columns
    with a softcap.
    """
    rows = problem.group_size * problem.seqlen_q
    heads = max(1, min(problem.group_size, TILE // problem.seqlen_q))
    blocks, (tiles, together) = -(-problem.group_size // heads), tiles_of(plan.per_partition, heads * problem.seqlen_q)
    whole, shared, half = _shares(problem, plan, chip, lnc)
    chunks, steps = float(whole * plan.chunks + shared * half), 0.0
    for units, visited in ((whole, plan.chunks), (shared, half)):
        # The tail is a step of its own, whole chunks share one.
        each = 1 + -(-(visited - 1) // 2) if together == 2 else visited * -(-plan.per_partition // tiles) * blocks
        steps += units * each
    key_tiles, capped = chunks * plan.per_partition, problem.softcap is not None
    return (
        steps,
        key_tiles,
        key_tiles * problem.head_dim / TILE,
        key_tiles * problem.head_dim_v / TILE,
        key_tiles * rows,
        chunks,
        _zeroed(problem, plan, chunks, lnc) * _chunk_bytes(problem, plan) / 1024,
        steps * capped,
        key_tiles * rows * capped,
    )


def loads(problem: Problem, plan: DecodePlan, chip: Chip, lnc: int) -> float:
    """Microseconds in which the DMA engines of the busiest core read its live keys and values."""
    whole, shared, half = _shares(problem, plan, chip, lnc)
    quarter = QUARTER * plan.per_partition
    live = -(-visited_keys(problem) // quarter) * quarter
    width = (problem.head_dim + problem.head_dim_v) * ITEMSIZE[problem.dtype]
    return loads_us(chip, (whole + shared * half / plan.chunks) * live * width)


def _shares(problem: Problem, plan: DecodePlan, chip: Chip, lnc: int) -> tuple[int, int, int]:
    """Of the busiest core: units of (batch, kv head) of its own, units that are divided, and its chunks of one of these."""
    units = problem.batch * problem.num_heads_kv  # a tensor while torch.jit traces: it knows no divmod
    whole, left = units // lnc, units % lnc
    divided = plan.chunks > 1 and lnc > 1 and chip.generation > 2
    return whole, left, -(-plan.chunks // lnc) if divided else plan.chunks


def _zeroed(problem: Problem, plan: DecodePlan, chunks: float, lnc: int) -> float:
    """Loads into buffers that held another sequence's keys, where bounds differ by sequence."""
    if not problem.mask.runtime_bounds or problem.batch == 1:
        return 0.0
    buffers = plan.prefetch + VALUES
    of_sequence = max(1.0, problem.num_heads_kv * plan.chunks / min(lnc, problem.num_heads_kv))
    return max(0.0, chunks - max(buffers, of_sequence)) * min(1.0, buffers / of_sequence)


def _chunk_bytes(problem: Problem, plan: DecodePlan) -> int:
    """Bytes per partition of a chunk's keys and values."""
    return plan.per_partition * (problem.head_dim + problem.head_dim_v) * ITEMSIZE[problem.dtype]
