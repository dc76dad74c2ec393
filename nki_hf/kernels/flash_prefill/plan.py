"""The plan of `flash_prefill`: which keys each query tile visits, tile sizes that fit the chip, and the envelope."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nki_hf.chips import Chip
from nki_hf.errors import Reason
from nki_hf.kernels.limits import ITEMSIZE, Refusals, sbuf_limit
from nki_hf.kernels.spans import BLOCK, TILE, Span, blocks_of, half_of, spans_of
from nki_hf.problem import Problem

__all__ = [
    "TILE",
    "PrefillPlan",
    "Span",
    "estimated_blocks",
    "plan_prefill",
    "prefill_reasons",
]

"""Keys of one score block: one PSUM bank of float32."""
CHUNK = 2048
"""Keys of one K or V load: 4 KiB of 16-bit keys per partition, where DMA efficiency has levelled off."""
SHORT = 32
"""Up to this many query rows (decode, speculative decode) the key length is a bucket, so that growing caches share a kernel."""

MAX_HEAD_DIM = 256
_PSUM_BANKS = 8
"""Three for scores, two each for transposed probabilities and PV, one for the statistics at a tile block's end."""
_SAMPLED = 1000
"""Query tiles whose keys are looked at for an estimate."""


@dataclass(frozen=True, kw_only=True)
class PrefillPlan:
    """Everything that `flash_prefill` is told besides its tensors; equal plans run the same program.

    Attributes:
      seqlen_kv: length of k, v and the bias as the kernel gets them: the call's, or its bucket for short queries.
      bounds: the kernel gets int32 `lo` and `hi` for every row; else the edges are affine (q_offset, window, ahead).
      spans: one `Span` per query tile of `TILE` rows.
      row_split: query tiles of the first core, where two cores share one (batch, kv head).
      q_rows: query rows that are loaded together.
      q_heads: query heads of a kv head that are processed together.
      section: keys that are resident together; the whole length if it fits, so that k and v are read once.
      softmax_scale, softcap, q_offset, window, ahead: as in `Problem`; positions are None or 0 where `bounds` holds them.
      row_statistics, out_rest: as in `Problem`.
      budget: SBUF bytes per partition by purpose.
      psum_banks: PSUM banks in use.
    """

    seqlen_kv: int
    bounds: bool
    spans: tuple[Span, ...]
    row_split: int
    q_rows: int
    q_heads: int
    section: int
    softmax_scale: float
    softcap: float | None
    q_offset: int
    window: int | None
    ahead: int | None
    row_statistics: bool
    out_rest: bool
    budget: Mapping[str, int]
    psum_banks: int

    def __hash__(self) -> int:
        return hash((self.seqlen_kv, self.bounds, self.spans, self.q_rows, self.q_heads, self.section))

    @property
    def sbuf_bytes(self) -> int:
        """SBUF bytes per partition."""
        return sum(self.budget.values())

    @property
    def resident(self) -> bool:
        """True if k and v of one kv head stay in SBUF and are read from HBM once."""
        return self.section >= self.seqlen_kv

    @property
    def blocks(self) -> int:
        """Score blocks that one query head computes."""
        return blocks_of(self.spans)

    def constants(self) -> dict[str, Any]:
        """The kernel's compile-time arguments, by name and in its order."""
        return {
            "spans": self.spans,
            "row_split": self.row_split,
            "q_rows": self.q_rows,
            "q_heads": self.q_heads,
            "section": self.section,
            "softmax_scale": self.softmax_scale,
            "softcap": self.softcap,
            "q_offset": self.q_offset,
            "window": self.window,
            "ahead": self.ahead,
            "row_statistics": self.row_statistics,
            "out_rest": self.out_rest,
        }

    def tiles(self) -> dict[str, Any]:
        """What a `Decision` shows of the plan."""
        return {
            "tile_q": TILE,
            "tile_kv": BLOCK,
            "q_rows": self.q_rows,
            "q_heads": self.q_heads,
            "section": self.section,
            "seqlen_kv": self.seqlen_kv,
            "blocks_per_head": self.blocks,
            "sbuf_bytes": self.sbuf_bytes,
            "psum_banks": self.psum_banks,
        }


def prefill_reasons(problem: Problem, chip: Chip) -> tuple[Reason, ...]:
    """Why `flash_prefill` cannot take the problem on that chip; empty if it can. This is its whole envelope."""
    refusals = Refusals("flash_prefill", problem)
    refusals.dtype("Convert q, k and v to bfloat16 or float32.")
    refusals.head_dims(MAX_HEAD_DIM)
    refusals.scale_and_softcap()
    refusals.keys()
    if not refusals.found and problem.seqlen_q and problem.seqlen_kv:
        refusals.sbuf(plan_prefill(problem, chip).sbuf_bytes, chip)
    return tuple(refusals.found)


def estimated_blocks(problem: Problem) -> int:
    """Score blocks of one head before they are planned: query tiles times the blocks that they visit, by a sample of the tiles.

    Up to two thirds too many where rows see nothing.
    """
    tiles = -(-problem.seqlen_q // TILE)
    count = min(tiles, _SAMPLED)
    return max(1, sum(_visited(problem, tiles * n // count) for n in range(count)) * tiles // max(count, 1))


def _visited(problem: Problem, tile: int) -> int:
    first, last = tile * TILE, min((tile + 1) * TILE, problem.seqlen_q) - 1
    lo = problem.mask.interval(first, problem.seqlen_kv)[0]
    hi = problem.mask.interval(last, problem.seqlen_kv)[1]
    return max(1, -(-hi // BLOCK) - lo // BLOCK)  # a tile that sees no key is still written


@functools.lru_cache(maxsize=512)
def plan_prefill(problem: Problem, chip: Chip, lnc: int = 1) -> PrefillPlan:
    """The plan of one call: the largest tiles whose budget fits the chip (see `PrefillPlan`).

    The plan does not depend on `lnc` except for where two cores divide the query tiles of one (batch, kv head).
    """
    mask = problem.mask
    short = 0 < problem.seqlen_q <= SHORT
    seqlen_kv = max(1, -(-problem.seqlen_kv // BLOCK)) * BLOCK if short else problem.seqlen_kv
    bounds = short or mask.runtime_bounds
    tiles = -(-problem.seqlen_q // TILE)
    spans = ((0, seqlen_kv, 0, 0),) * tiles if short else spans_of(problem, seqlen_kv)
    q_rows, q_heads, section, budget = _fit(problem, chip, seqlen_kv, bounds)
    return PrefillPlan(
        seqlen_kv=seqlen_kv,
        bounds=bounds,
        spans=spans,
        row_split=half_of(spans) if lnc > 1 else len(spans),
        q_rows=q_rows,
        q_heads=q_heads,
        section=section,
        softmax_scale=float(problem.scale),
        softcap=None if problem.softcap is None else float(problem.softcap),
        q_offset=0 if bounds else mask.q_offset,
        window=None if bounds else mask.window,
        ahead=None if bounds else mask.ahead,
        row_statistics=problem.row_statistics,
        out_rest=problem.out_rest,
        budget=budget,
        psum_banks=_PSUM_BANKS,
    )


def _fit(problem: Problem, chip: Chip, seqlen_kv: int, bounds: bool) -> tuple[int, int, int, dict[str, int]]:
    """The first candidate that fits: k and v resident (twice, so that the next kv head loads early; or once), or streamed."""
    rows = -(-problem.seqlen_q // TILE) * TILE
    whole = max(1, -(-seqlen_kv // TILE)) * TILE
    limit = sbuf_limit(chip)
    heads = [q_heads for q_heads in (8, 4, 2, 1) if q_heads <= problem.group_size or q_heads == 1]
    candidates = itertools.product(((whole, 2), (whole, 1), (CHUNK, 2)), (2048, 1024, 512, 256, TILE), heads)
    for (section, copies), q_rows, q_heads in candidates:
        used = min(q_rows, rows or TILE)
        budget = _budget(problem, bounds, used, q_heads, section, copies, streamed=section < whole)
        if sum(budget.values()) <= limit and q_heads * used <= TILE * TILE:
            break
    return q_rows, q_heads, section, budget


def _budget(
    problem: Problem, bounds: bool, q_rows: int, q_heads: int, section: int, copies: int, *, streamed: bool
) -> dict[str, int]:
    """SBUF bytes per partition by purpose; the factors are the copies that the software pipeline keeps alive."""
    size = ITEMSIZE.get(problem.dtype, 4)
    d_tiles, width_v = -(-problem.head_dim // TILE), problem.head_dim_v
    tiles = -(-q_rows // TILE)
    alive = (tiles if streamed else min(tiles, 2)) * q_heads
    mask = problem.mask
    prepared = bounds or mask.ahead is not None or mask.window is not None or mask.bias is not None
    return {
        "k": copies * d_tiles * section * size,
        "v": copies * -(-section // TILE) * width_v * size,
        "q": 2 * d_tiles * q_heads * q_rows * size,
        "accumulators": alive * (4 * width_v + 3 * 4) + 2 * width_v * 4,
        "scores": 4 * BLOCK * 4 if prepared or problem.softcap is not None else 0,
        "mask": 3 * BLOCK * 4 + 2 * BLOCK if prepared else 0,
        "probabilities": 3 * BLOCK * size,
        "transposed": 3 * BLOCK * size,
        "out": 2 * q_heads * width_v * (size + 4 * problem.out_rest),
        "statistics": 2 * (4 * q_heads * tiles * 4 + (6 if problem.row_statistics else 4) * TILE * 4) + 2 * 4 * tiles * 2,
        "sink": 2 * 4 * problem.num_heads_q if problem.sink else 0,
    }
