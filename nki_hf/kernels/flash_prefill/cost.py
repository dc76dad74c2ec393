"""What a launch of `flash_prefill` takes where it has few query rows (see `kernels.pricing`)."""

from __future__ import annotations

from nki_hf.chips import Chip
from nki_hf.kernels.binding import Cost, Plan, Target
from nki_hf.kernels.flash_prefill.plan import PrefillPlan
from nki_hf.kernels.pricing import ITEMSIZE, Prices, launch_us, loads_us, prices_of
from nki_hf.kernels.spans import BLOCK
from nki_hf.problem import Problem

__all__ = ["FEW_ROWS", "PRICES", "cost", "counts", "loads"]

TILE = 128
FEW_ROWS = 32
"""Up to here another kernel for few rows may be cheaper; beyond, this kernel is what takes calls that no other one does."""

PRICES = {
    ("trn1", 2): Prices(edge=1.38, each=(3.55, 0.115, 0.259, 4.88, 0.0863, 0.195, 0.595)),
    ("trn1", 4): Prices(edge=3.67, each=(3.18, 0.038, 0.496, 4.53, 0.639, 0.402, 0.534)),
    ("trn2", 2): Prices(edge=1.04, each=(0.882, 0.0704, 0.191, 4.74, 0.517, 1.71, 2.1)),
    ("trn2", 4): Prices(edge=2.09, each=(1.3, 0.473, 0.573, 5.18, 0.618, 0.543, 1.65)),
    ("trn3", 2): Prices(edge=2.88, each=(0.694, 0.0683, 0.181, 5.59, 0.0255, 1.43, 2.44)),
    ("trn3", 4): Prices(edge=3.6, each=(1.27, 0.703, 0.172, 5.2, 0.0856, 0.625, 1.84)),
}
"""By chip and bytes of an element; each: see `counts`. What `python tools/decode_constants.py` prints; a test compares the law
with the kernel."""


def cost(problem: Problem, plan: Plan, target: Target) -> Cost:
    """The blocks of every query head, where there are few rows; unknown for many."""
    if problem.seqlen_q > FEW_ROWS:
        return Cost(us=float("inf"), why="no estimate")
    chip, prices = target.chip, prices_of(PRICES, target.chip, problem.dtype)
    us = launch_us(chip, counts(problem, plan.detail, target.lnc), prices, loads(problem, plan.detail, chip, target.lnc))
    return Cost(us=us, why="each query head visits its keys")


def counts(problem: Problem, plan: PrefillPlan, lnc: int) -> tuple[float, ...]:
    """Of the busiest core: score blocks of 512 keys of all query heads; the same times head_dim / 128, and times
    head_dim_v / 128; units of (batch, kv head); blocks of 512 keys that are loaded; query heads; and score blocks with a
    softcap.
    """
    units, blocks = _units(problem, lnc), max(1, plan.blocks)
    heads = float(units * problem.group_size)
    steps = heads * blocks
    return (
        steps,
        steps * problem.head_dim / TILE,
        steps * problem.head_dim_v / TILE,
        float(units),
        float(units * blocks * _reads(problem, plan)),
        heads,
        steps * (problem.softcap is not None),
    )


def loads(problem: Problem, plan: PrefillPlan, chip: Chip, lnc: int) -> float:
    """Microseconds in which the DMA engines of the busiest core read keys and values, as often as they are read."""
    width = (problem.head_dim + problem.head_dim_v) * ITEMSIZE[problem.dtype]
    return loads_us(chip, _units(problem, lnc) * _reads(problem, plan) * max(1, plan.blocks) * BLOCK * width)


def _units(problem: Problem, lnc: int) -> int:
    return -(-problem.batch * problem.num_heads_kv // lnc)


def _reads(problem: Problem, plan: PrefillPlan) -> int:
    """How often keys are read: once if they stay on chip, else for every `q_heads` heads of a group."""
    return 1 if plan.resident else -(-problem.group_size // plan.q_heads)
