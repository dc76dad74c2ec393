"""The plan of `flash_const_max`: what it visits, tile sizes, what fits the chip, and the envelope."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nki_hf.chips import Chip
from nki_hf.errors import Reason
from nki_hf.kernels.flash_const_max.tuning import Tuning, tuning_of
from nki_hf.kernels.limits import Refusals, sbuf_limit
from nki_hf.kernels.spans import TILE, Span, blocks_of, half_of, spans_of
from nki_hf.problem import Problem

__all__ = ["ConstMaxPlan", "const_max_reasons", "estimated_us", "plan_const_max"]

BANK = 512
"""float32 elements of a PSUM bank, and columns of a moving tile."""
MAX_HEAD_DIM = 512
SHORT = 32
"""Up to this many query rows a call belongs to a cache that grows."""
SHIFT = -32.0
"""Row maxima from here on, for 85 nats less the logarithm of the number of keys, pass the certificate. Maxima of -0.4 to 40.6
were seen in Gemma 3 270M, on 1,424 tokens of English."""


@dataclass(frozen=True, kw_only=True)
class ConstMaxPlan:
    """Everything that `flash_const_max` is told besides its tensors; equal plans run the same program.

    Attributes:
      bounds: the kernel gets int32 `lo` and `hi` for every row; else the edges are affine (q_offset, window, ahead).
      spans: one `Span` per query tile.
      row_split: query tiles of the first core, where two cores share one (batch, kv head).
      block_tiles: column tiles of a block.
      group: key tiles of a step (of 512 columns each).
      lag: steps that the output product is behind the scores, `copied` at least.
      copied: steps behind each one whose exp reads PSUM, whose scores Vector copies to SBUF, where one exp reads them faster.
      late: steps that a block's end is behind its last output product.
      prefetch: steps that a load may be ahead of its use.
      chunk: keys of a load.
      resident: k and v of a kv head are read once; else once per block.
      room: bytes per partition for k and v.
      share_masks: who shares masks of bounds per row: 0 nobody, 1 the heads of a group, 2 those of a batch entry.
      shift: what is subtracted from every score before exp.
      softmax_scale, q_offset, window, ahead: as in `Problem`; positions are None or 0 where `bounds` holds them.
      row_statistics, out_rest: as in `Problem`.
      instructions: about how many instructions a launch has, on all cores together.
      budget: SBUF bytes per partition by purpose.
    """

    bounds: bool
    spans: tuple[Span, ...]
    row_split: int
    block_tiles: int
    group: int
    lag: int
    late: int
    copied: int
    prefetch: int
    chunk: int
    resident: bool
    room: int
    share_masks: int
    shift: float
    softmax_scale: float
    q_offset: int
    window: int | None
    ahead: int | None
    row_statistics: bool
    out_rest: bool
    instructions: int
    budget: Mapping[str, int]

    def __hash__(self) -> int:
        return hash((self.bounds, self.spans, self.block_tiles, self.group, self.resident, self.softmax_scale))

    @property
    def sbuf_bytes(self) -> int:
        """SBUF bytes per partition."""
        return sum(self.budget.values())

    def constants(self) -> dict[str, Any]:
        """The kernel's compile-time arguments, by name and in its order."""
        return {
            "spans": self.spans,
            "row_split": self.row_split,
            "block_tiles": self.block_tiles,
            "group": self.group,
            "lag": self.lag,
            "late": self.late,
            "copied": self.copied,
            "prefetch": self.prefetch,
            "chunk": self.chunk,
            "resident": self.resident,
            "room": self.room,
            "share_masks": self.share_masks,
            "shift": self.shift,
            "softmax_scale": self.softmax_scale,
            "q_offset": self.q_offset,
            "window": self.window,
            "ahead": self.ahead,
            "count_failed": False,
            "row_statistics": self.row_statistics,
            "out_rest": self.out_rest,
        }

    def tiles(self) -> dict[str, Any]:
        """What a `Decision` shows of the plan."""
        return {
            "tile_q": self.block_tiles * TILE,
            "tile_kv": TILE,
            "group": self.group,
            "shift": self.shift,
            "blocks_per_head": blocks_of(self.spans),
            "kv_passes": 1 if self.resident else -(-len(self.spans) // self.block_tiles),
            "sbuf_bytes": self.sbuf_bytes,
            "instructions": self.instructions,
        }


def const_max_reasons(problem: Problem, chip: Chip) -> tuple[Reason, ...]:
    """Why `flash_const_max` cannot take the problem on that chip; empty if it can. This is its whole envelope."""
    refusals = Refusals("flash_const_max", problem)
    refuse = refusals.refuse
    mask = problem.mask
    if 0 < problem.seqlen_q <= SHORT:
        short = f"must be above {SHORT}: caches that grow would need a kernel for every length"
        refuse("seqlen_q", f"1 to {SHORT}", short)
    if problem.dtype != "bfloat16":
        refuse("dtype", problem.dtype, "must be bfloat16: probabilities far from 1 need its exponents")
    refusals.head_dims(MAX_HEAD_DIM)
    refusals.keys()
    if problem.softcap is not None:
        refuse("softcap", problem.softcap, "must be None: a cap costs the Scalar engine a second pass over the scores")
    if not 1e-20 <= abs(problem.scale) <= 1e20:
        refuse("softmax_scale", problem.scale, "must be 1e-20 to 1e20 in size: masks are added before the scale")
    if mask.bias is not None and (mask.bias_rows or mask.bias_heads):
        refuse("mask.bias", mask.bias, "must be the same for all rows and heads: it rides on exp, per key")
    if not refusals.found and problem.seqlen_q and problem.seqlen_kv:
        refusals.sbuf(plan_const_max(problem, chip).sbuf_bytes, chip)
    return tuple(refusals.found)


@functools.lru_cache(maxsize=512)
def plan_const_max(problem: Problem, chip: Chip, lnc: int = 1, tuning: Tuning | None = None) -> ConstMaxPlan:
    """The plan of one call. It depends on `lnc` only for where two cores divide the query tiles of one (batch, kv head)."""
    mask = problem.mask
    bounds = mask.runtime_bounds
    spans = spans_of(problem, problem.seqlen_kv)
    tuned = tuning or tuning_of(problem, chip)
    if bounds:
        tuned = replace(tuned, copied=0, lag=min(tuned.lag, 3))  # Vector makes masks; a longer lag is for copies
    tuned = replace(tuned, lag=max(tuned.lag, tuned.copied))
    budget, room = _budget(problem, tuned), sbuf_limit(chip)
    room -= sum(budget.values())
    needed = _kept_keys(problem, spans, tuned.chunk) // TILE * _key_bytes(problem)
    few = min(needed, 6 * tuned.chunk // TILE * _key_bytes(problem))
    budget["masks"], share = _masks(problem, spans, bounds, tuned.block_tiles, room - (needed if needed <= room // 2 else few))
    room -= budget["masks"]
    resident = needed <= room
    # What the kv head needs, and as much again for the next ones; where it does not fit, what a few chunks take.
    room = min(room, max(2 * needed, AHEAD_BYTES)) if resident else min(room, few)
    budget["keys"] = room
    return ConstMaxPlan(
        bounds=bounds,
        spans=spans,
        row_split=half_of(spans) if lnc > 1 else len(spans),
        block_tiles=tuned.block_tiles,
        group=tuned.group,
        lag=tuned.lag,
        late=tuned.late,
        copied=tuned.copied,
        prefetch=tuned.prefetch,
        chunk=tuned.chunk,
        resident=resident,
        room=room,
        share_masks=share,
        shift=SHIFT,
        softmax_scale=float(problem.scale),
        q_offset=0 if bounds else mask.q_offset,
        window=None if bounds else mask.window,
        ahead=None if bounds else mask.ahead,
        row_statistics=problem.row_statistics,
        out_rest=problem.out_rest,
        instructions=_instructions(problem, spans, tuned, bounds, share),
        budget=budget,
    )


def _instructions(problem: Problem, spans: tuple[Span, ...], tuned: Tuning, bounds: bool, share: int) -> int:
    """Products and exps of the visited key tiles, what masks their edges, and what a block's end takes; loads are few."""
    pieces, depth = -(-(problem.head_dim_v + 1) // BANK), -(-problem.head_dim // TILE)
    total, masks = 0.0, 0.0
    for begin in range(0, len(spans), tuned.block_tiles):
        tiles = spans[begin : begin + tuned.block_tiles]
        seen = [(first // TILE, -(-last // TILE)) for first, last, _, _ in tiles if first < last]
        rows = max(1, min(tuned.block_tiles // len(tiles), problem.group_size))  # heads that are multiplied together
        cells = max((last for _, last in seen), default=0) - min((first for first, _ in seen), default=0)
        edges = sum(_edge_tiles(span) for span in tiles)
        masks += 2 * edges * TILE / WIDE + (len(tiles) if edges else 0)
        turns = cells / tuned.group / (tuned.copied + 1)  # of a step and the copied ones behind it
        runs = cells if problem.mask.bias is not None else turns * min(2, tuned.copied + 1) + 2
        copies = turns * tuned.copied
        per_block = cells * depth + runs + copies + rows * (sum(last - first for first, last in seen) * pieces + edges)
        end = len(tiles) * pieces + (len(tiles) + 1 if rows > 1 else 0)
        total += (per_block + rows * end + 8) * problem.group_size / rows
    if problem.seqlen_q % TILE:
        total += 3 * problem.group_size  # lse and failed rows are written head by head
    units = problem.batch * problem.num_heads_kv
    shared = 0.0 if not bounds else masks * (problem.group_size if share == 0 else 1) * units
    return round(total * units + (shared / problem.num_heads_kv if share == 2 else shared)) + 40


def _edge_tiles(span: Span) -> int:
    """Key tiles of a query tile of which some row does not see some key."""
    first, last, full_first, full_last = span
    full = max(0, full_last // TILE - -(-full_first // TILE))
    return -(-last // TILE) - first // TILE - full


def estimated_us(problem: Problem, chip: Chip, lnc: int = 1) -> float:
    """The busiest of Tensor, Scalar and DMA on the visited key tiles at their rates, and what starting and ending take: within
    half of the timing model (tested), which a call never runs.
    """
    spans = spans_of(problem, problem.seqlen_kv)
    heads = problem.batch * problem.num_heads_q
    cells = heads * sum(-(-last // TILE) - first // TILE for first, last, _, _ in spans)
    bounds = problem.mask.runtime_bounds
    columns = TILE * (-(-problem.head_dim // TILE) + bounds) + problem.head_dim_v + 1
    tensor_ns = cells * columns / chip.tensor_ghz
    scalar_ns = cells * (TILE + chip.scalar_overhead_cycles / 8) / chip.scalar_ghz
    rows_kv = problem.batch * problem.num_heads_kv * problem.seqlen_kv
    read = (rows_kv + heads * problem.seqlen_q) * (problem.head_dim + problem.head_dim_v) * 2
    moved_ns = read / (chip.dma_engines * chip.dma_engine_bytes_per_ns * chip.dma_small_packet_fraction)
    vector_ns = heads * len(spans) * 2 * (2 * chip.vector_overhead_cycles + problem.head_dim_v) / chip.vector_ghz
    return (chip.kernel_fixed_ns + 6000 + max(tensor_ns, scalar_ns, moved_ns, vector_ns) / lnc) / 1e3


def _key_bytes(problem: Problem) -> int:
    """Bytes per partition of 128 keys and their values, with the ones column."""
    return 2 * (-(-problem.head_dim // TILE) * TILE + problem.head_dim_v + 1)


def _kept_keys(problem: Problem, spans: tuple[Span, ...], chunk: int) -> int:
    """Keys that are in SBUF at once if each is read once: from the first that a query tile or a later one needs to the last
    that it or an earlier one has needed, in whole chunks, and two chunks more, which come and go.
    """
    most, last, first_after = 0, 0, [0] * len(spans)
    first = problem.seqlen_kv
    for i in range(len(spans) - 1, -1, -1):
        if spans[i][0] < spans[i][1]:
            first = min(first, spans[i][0])
        first_after[i] = first
    for i, span in enumerate(spans):
        last = max(last, span[1])
        most = max(most, last - first_after[i])
    return min(-(-most // chunk) * chunk + 2 * chunk, -(-problem.seqlen_kv // TILE) * TILE)


def _masks(problem: Problem, spans: tuple[Span, ...], bounds: bool, block_tiles: int, room: int) -> tuple[int, int]:
    """Bytes per partition of the masks of bounds per row, and who shares them (`ConstMaxPlan.share_masks`) within that room."""
    if not bounds:
        return 0, 0
    sizes = []
    for begin in range(0, len(spans), block_tiles):
        edge = [s for s in spans[begin : begin + block_tiles] if s[0] < s[2] or s[1] > s[3]]
        sizes.append(sum(2 * (-(-(last - first) // TILE) * TILE) for first, last, _, _ in edge))
    # Beside the kept ones: those that are made ahead of their use, bounds as they are loaded, numbers, the identity.
    few = min(8 * block_tiles * WIDE, 2 * max(sizes, default=0)) + 16 * WIDE + 8 * len(spans) * 4 + 8 * TILE * 4
    for share, size, heads in ((2, sum(sizes), problem.num_heads_kv), (1, max(sizes, default=0), problem.group_size)):
        if heads > 1 and size + few <= room:
            return size + few, share
    return few, 0


WIDE = 1024
"""Keys of one mask of bounds per row."""
AHEAD_BYTES = 48 * 1024
"""SBUF per partition that keys and values of several short kv heads may take."""


def _budget(problem: Problem, tuned: Tuning) -> dict[str, int]:
    """SBUF bytes per partition by purpose, keys and values aside; factors are the copies that the pipeline keeps alive."""
    columns, width = tuned.block_tiles * TILE, problem.head_dim_v
    slots = problem.group_size * -(-problem.seqlen_q // TILE)
    biases = problem.batch if problem.mask.bias_batch else 1
    return {
        "q": 4 * -(-problem.head_dim // TILE) * columns * 2,
        "probs": (tuned.lag + 1 + max(1, tuned.copied)) * tuned.group * BANK * 2,
        "scores": 2 * tuned.copied * tuned.group * BANK * 4,
        "accumulators": 2 * tuned.block_tiles * (width + 1) * 4,
        "out": 3 * tuned.block_tiles * width * (2 + 4 * problem.out_rest),
        "statistics": 9 * slots * 4 + (10 if problem.row_statistics else 8) * TILE * 4 + 2048,
        "constants": 8 * -(-problem.seqlen_kv // TILE) * biases + 8 * problem.num_heads_q,
    }
