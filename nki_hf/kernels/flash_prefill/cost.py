"""What a launch of `flash_prefill` takes where it has few query rows (see `kernels.pricing`)."""

from __future__ import annotations

from nki_hf.chips import Chip
from nki_hf.kernels.flash_prefill.plan import PrefillPlan
from nki_hf.kernels.plan import Cost, Plan, Target
from nki_hf.kernels.pricing import ITEMSIZE, Prices, launch_us, loads_us, prices_of
from nki_hf.kernels.spans import BLOCK
from nki_hf.problem import Problem

__all__ = ["FEW_ROWS", "PRICES", "cost", "counts", "loads"]

TILE = 128
FEW_ROWS = 32
"""Up to here another kernel for few rows may be cheaper; beyond, this kernel is what takes calls that no other one does."""

PRICES = {
    ("trn1", 2): Prices(edge=1.15, each=(3.55, 0.0736, 0.19, 4.26, 0.0551, 0.295, 0.45, 0.489)),
    ("trn1", 4): Prices(edge=3.24, each=(3.45, 0.0218, 0.347, 4.8, 0.0658, 0.556, 0.219, 0.484)),
    ("trn2", 2): Prices(edge=1.53, each=(0.899, 0.0151, 0.179, 5.09, 0.0325, 0.376, 1.63, 2.21)),
    ("trn2", 4): Prices(edge=1.75, each=(1.36, 0.159, 0.696, 4.86, 0.0889, 1.04, 0.61, 1.63)),
    ("trn3", 2): Prices(edge=2.22, each=(0.713, 0.0709, 0.134, 5.49, 0.0255, 0.0353, 1.5, 2.27)),
    ("trn3", 4): Prices(edge=3.52, each=(1.25, 0.407, 0.458, 5.01, 0.0657, 0.163, 0.63, 1.84)),
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
    head_dim_v / 128; units of (batch, kv head); blocks of 512 keys that are loaded; the same times head_dim / 128 (keys are
    transposed); query heads; and score blocks with a softcap.
    """
    units, blocks = _units(problem, lnc), max(1, plan.blocks)
    heads = float(units * problem.group_size)
    steps, loaded = heads * blocks, float(units * blocks * _reads(problem, plan))
    return (
        steps,
        steps * problem.head_dim / TILE,
        steps * problem.head_dim_v / TILE,
        float(units),
        loaded,
        loaded * problem.head_dim / TILE,
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
