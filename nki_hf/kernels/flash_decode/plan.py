"""The plan of `flash_decode`: how many chunks are visited, what fits the chip, and the envelope."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nki_hf.chips import Chip
from nki_hf.errors import Reason
from nki_hf.kernels.flash_decode.work import PAIR, PAIRS, VALUES, tiles_of
from nki_hf.kernels.limits import ITEMSIZE, Refusals, sbuf_limit
from nki_hf.problem import Problem

__all__ = ["DecodePlan", "bucket_of", "decode_reasons", "plan_decode", "visited_keys"]

TILE = 128
MAX_ROWS = 16
MAX_HEAD_DIM = 256
CHUNK_BYTES = 8192
"""Most bytes per partition of a chunk's keys; also what one descriptor of a transfer moves."""
BUCKET_KEYS = 2048
"""Keys of a chunk from which on two chunks are a bucket of their own."""
PREFETCH = (3, 4)
"""Chunks of keys that are loaded ahead: of up to two chunks, whose steps are single ones, and of more. With fewer the transfers
pause, and each buffer more is zeroed at the start. Where SBUF cannot hold as many, fewer are, down to FEWEST.
"""
FEWEST = 2
SLOPES = (1e-20, 1e6)
"""What may multiply scores: below, hidden ones would not be hidden; above, float32's range ends."""


@dataclass(frozen=True, kw_only=True)
class DecodePlan:
    """Everything that `flash_decode` is told besides its tensors; equal plans run the same program.

    Attributes:
      seqlen_kv: keys that the cache is filled up to where it is copied anyway, a bucket.
      chunks: chunks that a sequence's visible keys may take.
      per_partition: keys in a row on each partition; a chunk has 128 times as many.
      prefetch: chunks that loads are ahead of their use.
      softmax_scale, softcap, row_statistics, out_rest: as in `Problem`.
      budget: SBUF bytes per partition by purpose.
    """

    seqlen_kv: int
    chunks: int
    per_partition: int
    prefetch: int
    softmax_scale: float
    softcap: float | None
    row_statistics: bool
    out_rest: bool
    budget: Mapping[str, int]

    def __hash__(self) -> int:
        return hash((self.seqlen_kv, self.chunks, self.per_partition, self.softmax_scale, self.softcap))

    @property
    def sbuf_bytes(self) -> int:
        """SBUF bytes per partition."""
        return sum(self.budget.values())

    def constants(self) -> dict[str, Any]:
        """The kernel's compile-time arguments, by name and in its order."""
        return {
            "chunks": self.chunks,
            "per_partition": self.per_partition,
            "prefetch": self.prefetch,
            "softmax_scale": self.softmax_scale,
            "softcap": self.softcap,
            "row_statistics": self.row_statistics,
            "out_rest": self.out_rest,
        }


def bucket_of(keys: int, chunk: int) -> int:
    """Chunks of the smallest bucket that holds `keys`: 1, 2, 3, 5, 9, 17, ... = 2^n + 1.

    Caches are mostly a power of two, a prompt's padded length, and some generated tokens. With chunks of 2,048 keys six buckets
    reach to 34,816 keys. Of smaller chunks there is no bucket of 2, so that six of 1,024 keys reach to 33,792.
    """
    needed = max(1, -(-keys // chunk))
    if needed == 1 or (needed == 2 and chunk >= BUCKET_KEYS):
        return needed
    return int((1 << (needed - 2).bit_length()) + 1) if needed > 2 else 3


def decode_reasons(problem: Problem, chip: Chip) -> tuple[Reason, ...]:
    """Why `flash_decode` cannot take the problem on that chip; empty if it can. This is its whole envelope."""
    refusals = Refusals("flash_decode", problem)
    refuse = refusals.refuse
    mask = problem.mask
    refusals.dtype()
    if problem.seqlen_q > MAX_ROWS:
        # The same words for all lengths: fallbacks are counted, and warned of, by their reasons.
        refuse("seqlen_q", f"{MAX_ROWS + 1} or more", f"must be 1 to {MAX_ROWS}")
    refusals.head_dims(MAX_HEAD_DIM)
    refusals.keys()
    if mask.bias is not None:
        refuse("mask.bias", mask.bias, "must be None: the kernel knows keys from lo to hi for each row")
    for value, name in ((problem.scale, "softmax_scale"), (problem.softcap, "softcap")):
        if value and not SLOPES[0] <= abs(value) <= SLOPES[1]:
            refuse(name, value, f"must be {SLOPES[0]:g} to {SLOPES[1]:g} in size")
    if not refusals.found and problem.seqlen_q and problem.seqlen_kv:
        refusals.sbuf(plan_decode(problem, chip).sbuf_bytes, chip)
    return tuple(refusals.found)


@functools.lru_cache(maxsize=512)
def plan_decode(problem: Problem, chip: Chip) -> DecodePlan:
    """The plan of one call."""
    per_partition = _per_partition(problem)
    chunk = per_partition * TILE
    chunks = bucket_of(visited_keys(problem), chunk)
    room = sbuf_limit(chip)
    for prefetch in range(PREFETCH[chunks > 2], FEWEST - 1, -1):
        budget = _budget(problem, per_partition, chunks, prefetch)
        if sum(budget.values()) <= room:
            break
    capacity = bucket_of(problem.seqlen_kv, chunk) * chunk
    return DecodePlan(
        seqlen_kv=capacity,
        chunks=chunks,
        per_partition=per_partition,
        prefetch=prefetch,
        softmax_scale=float(problem.scale),
        softcap=None if problem.softcap is None else float(problem.softcap),
        row_statistics=problem.row_statistics,
        out_rest=problem.out_rest,
        budget=budget,
    )


def _per_partition(problem: Problem) -> int:
    """Keys in a row: 16, as few bytes as that may be, down to what fits. It depends on head sizes and dtype only, so that
    results do not depend on the bucket.
    """
    width = max(problem.head_dim, problem.head_dim_v) * ITEMSIZE.get(problem.dtype, 4)
    per_partition = 16
    while per_partition > 4 and per_partition * width > CHUNK_BYTES:
        per_partition //= 2
    return per_partition


def visited_keys(problem: Problem) -> int:
    """Most keys from the first that a row of a sequence sees to the last, by the static part of the mask."""
    edges = [problem.mask.interval(row, problem.seqlen_kv) for row in range(problem.seqlen_q)]
    seen = [edge for edge in edges if edge[0] < edge[1]]
    return max((hi for _, hi in seen), default=0) - min((lo for lo, _ in seen), default=0)


def _budget(problem: Problem, per_partition: int, chunks: int, prefetch: int) -> dict[str, int]:
    """SBUF bytes per partition by purpose; the factors are the copies that the software pipeline keeps alive."""
    size, entries = ITEMSIZE.get(problem.dtype, 4), problem.batch if problem.mask.runtime_bounds else 1
    spare = int(entries > 1)
    rows = min(TILE, problem.group_size * problem.seqlen_q)
    all_rows, units = problem.group_size * problem.seqlen_q, problem.batch * problem.num_heads_kv
    tiles = math.prod(tiles_of(per_partition, rows))
    blocks = -(-all_rows // rows)
    keys = chunks * per_partition
    return {
        "k": (prefetch + 3 + spare) * per_partition * problem.head_dim * size,
        "v": (prefetch + VALUES + spare) * per_partition * problem.head_dim_v * size,
        "turned": 3 * -(-problem.head_dim // TILE) * tiles * TILE * size,
        "q": -(-problem.head_dim // TILE) * units * all_rows * size + 2 * problem.head_dim * size,
        "probs": 3 * tiles * rows * (size + 4) + (6 * tiles * rows * 4 if problem.softcap is not None else 0),
        "accumulators": 2 * blocks * (problem.head_dim_v + 2) * 4
        + 2 * problem.head_dim_v * size
        + (units * blocks * problem.head_dim_v * 4 if problem.out_rest else 0),
        "statistics": 8 * rows * 4
        + (PAIRS * (PAIR + all_rows) * 4 if all_rows <= PAIR else 0)
        + 8 * units * blocks * 4
        + 10 * TILE * 4,
        "masks": entries * keys * problem.seqlen_q * 2 + 2 * keys * problem.seqlen_q * 2 + 2 * keys * 4,
        "bounds": 8 * entries * problem.seqlen_q * 4 + 7 * entries * chunks * 4,
    }
