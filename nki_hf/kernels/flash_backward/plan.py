"""The plan of `flash_backward`: keys that each query tile visits, query tiles that stay in SBUF, and the envelope."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nki_hf.chips import Chip
from nki_hf.errors import Reason
from nki_hf.kernels.flash_backward.steps import RUN
from nki_hf.kernels.limits import ITEMSIZE, Refusals, sbuf_limit
from nki_hf.kernels.spans import TILE, Span, spans_of
from nki_hf.problem import Problem

__all__ = ["BackwardPlan", "backward_reasons", "plan_backward"]

BLOCK = 512
"""Keys of a block where head_dim and head_dim_v are at most 128: dk and dv of a block then have a PSUM bank each."""

MAX_HEAD_DIM = 256


@dataclass(frozen=True, kw_only=True)
class BackwardPlan:
    """Everything that `flash_backward` is told besides its tensors; equal plans run the same program.

    Attributes:
      bounds: the kernel gets int32 `lo` and `hi` for every row; else the edges are affine (q_offset, window, ahead).
      spans: one `Span` per query tile.
      section: query tiles, over all query heads of a kv head, that stay in SBUF together.
      block: keys of a block.
      recompute: all query tiles find their row statistics from their scores; the kernel gets neither out nor lse.
      bias_gradient: the kernel also returns that of the bias.
      row_statistics, out_rest: the kernel gets row_shift and row_sum in place of lse, and out_rest beside out.
      softmax_scale, softcap, q_offset, window, ahead: as in `Problem`; positions are None or 0 where `bounds` holds them.
      budget: SBUF bytes per partition by purpose.
    """

    bounds: bool
    spans: tuple[Span, ...]
    section: int
    block: int
    recompute: bool
    bias_gradient: bool
    row_statistics: bool
    out_rest: bool
    softmax_scale: float
    softcap: float | None
    q_offset: int
    window: int | None
    ahead: int | None
    budget: Mapping[str, int]

    @property
    def sbuf_bytes(self) -> int:
        """SBUF bytes per partition."""
        return sum(self.budget.values())

    @property
    def first_pass(self) -> bool:
        """True if some query tile visits its keys twice, first for its row statistics."""
        return self.recompute and any(last > first // self.block * self.block + self.block for first, last, _, _ in self.spans)

    @property
    def blocks(self) -> int:
        """Score blocks that one query head computes."""
        return sum(-(-last // self.block) - first // self.block for first, last, _, _ in self.spans if last > first)

    def tiles(self) -> dict[str, Any]:
        """What a `Decision` shows of the plan."""
        return {
            "tile_q": TILE,
            "tile_kv": self.block,
            "section": self.section,
            "recompute": self.recompute,
            "blocks_per_head": self.blocks,
            "sbuf_bytes": self.sbuf_bytes,
        }

    def constants(self) -> dict[str, Any]:
        """The kernel's compile-time arguments, by name and in its order."""
        return {
            "spans": self.spans,
            "section": self.section,
            "block": self.block,
            "recompute": self.recompute,
            "bias_gradient": self.bias_gradient,
            "softmax_scale": self.softmax_scale,
            "softcap": self.softcap,
            "q_offset": self.q_offset,
            "window": self.window,
            "ahead": self.ahead,
        }


def backward_reasons(problem: Problem, chip: Chip) -> tuple[Reason, ...]:
    """Why `flash_backward` cannot take the problem on that chip; empty if it can. This is its whole envelope."""
    refusals = Refusals("flash_backward", problem)
    refuse = refusals.refuse
    refusals.dtype("Convert q, k and v to bfloat16 or float32.")
    refusals.head_dims(MAX_HEAD_DIM)
    refusals.scale_and_softcap()
    if problem.row_part and _recompute(problem):
        why = "must be False in float32 and beside an additive bias: statistics are then found from the call's own keys"
        refuse("row_part", True, why)
    if problem.bias_gradient and problem.mask.bias != "additive":
        refuse("bias_gradient", True, "must be False: only an additive bias has a gradient")
    refusals.keys()
    if not refusals.found and problem.seqlen_q and problem.seqlen_kv:
        refusals.sbuf(plan_backward(problem, chip).sbuf_bytes, chip)
    return tuple(refusals.found)


@functools.lru_cache(maxsize=512)
def plan_backward(problem: Problem, chip: Chip) -> BackwardPlan:
    """The plan of one call: the largest section whose budget fits the chip (see `BackwardPlan`)."""
    mask = problem.mask
    bounds = mask.runtime_bounds
    spans = spans_of(problem, problem.seqlen_kv)
    block = BLOCK if max(problem.head_dim, problem.head_dim_v) <= TILE else BLOCK // 2
    recompute = _recompute(problem)
    tiles = max(1, len(spans) * problem.group_size)
    limit = sbuf_limit(chip)
    fixed = _budget(problem, block, bounds, recompute=recompute)
    each = _tile_bytes(problem)
    section = min(tiles, max(1, (limit - sum(fixed.values())) // each))
    return BackwardPlan(
        bounds=bounds,
        spans=spans,
        section=section,
        block=block,
        recompute=recompute,
        bias_gradient=problem.bias_gradient,
        row_statistics=problem.row_statistics and not recompute,
        out_rest=problem.out_rest and not recompute,
        softmax_scale=float(problem.scale),
        softcap=None if problem.softcap is None else float(problem.softcap),
        q_offset=0 if bounds else mask.q_offset,
        window=None if bounds else mask.window,
        ahead=None if bounds else mask.ahead,
        budget={**fixed, "queries": section * each},
    )


def _recompute(problem: Problem) -> bool:
    """True if the kernel starts from the scores alone, not from what the forward pass left."""
    return problem.dtype == "float32" or problem.mask.bias == "additive"


def _tile_bytes(problem: Problem) -> int:
    """SBUF bytes per partition of one query tile: q and dout both ways, dq in float32, columns."""
    size = ITEMSIZE.get(problem.dtype, 4)
    both = problem.head_dim + problem.head_dim_v
    turned = (-(-problem.head_dim // TILE) + -(-problem.head_dim_v // TILE)) * TILE
    return (both + turned) * size + 4 * problem.head_dim + 14 * 4


def _budget(problem: Problem, block: int, bounds: bool, *, recompute: bool) -> dict[str, int]:
    """SBUF bytes per partition by purpose, but for the query tiles; factors are the copies that the pipeline keeps alive."""
    size = ITEMSIZE.get(problem.dtype, 4)
    mask, both = problem.mask, problem.head_dim + problem.head_dim_v
    pieces = -(-problem.head_dim // TILE) + -(-problem.head_dim_v // TILE)
    prepared = bounds or mask.ahead is not None or mask.window is not None or mask.bias is not None
    key_tiles = block // TILE
    return {
        "keys": 3 * (key_tiles * both + pieces * block) * size,
        "scores": 4 * block * 4 if prepared or problem.softcap is not None else 0,
        "mask": 3 * block * 4 + 2 * block if prepared else 0,
        "softcap": 3 * block * 4 if problem.softcap is not None else 0,
        "statistics": 4 * block * 4 if recompute else 0,
        "probabilities": 3 * block * size + (3 * block * 4 if recompute and size < 4 else 0),
        "gradients": 3 * block * size + 3 * block * size,
        "results": 2 * key_tiles * both * 4 + 2 * problem.head_dim * size,
        "delta": 0 if recompute else -(-problem.head_dim_v // TILE) * RUN * TILE * size + TILE * 4 + TILE * (4 + 1),
        "rest": 2 * RUN * problem.head_dim_v * 4 if problem.out_rest and not recompute else 0,
        "bias_gradient": 2 * 4096 * 4 + 4 * block * 4 if problem.bias_gradient else 0,
        "sink": 4 * problem.num_heads_q + 4 * problem.group_size + 64 if problem.sink else 0,
        "columns": 4 * 1024,
    }
