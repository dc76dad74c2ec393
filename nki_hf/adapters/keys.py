"""Keys: which keys each query row may see, in torch tensors, and the sets that are made of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from nki_hf.problem import Band, chunk_begin

__all__ = ["Keys"]

_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys(Band):
    """Which keys each query row may see, in the words of `problem.Mask`: band, bounds and bias combine (and).

    Attributes:
      q_offset, window, ahead: the static band (see `Band`).
      lo, hi: int32 `[batch or 1, seqlen_q]` run-time bounds, both or neither.
      inside: True if the bounds lie within the band and the keys already, so that they alone say what is visible.
      bias: bool or uint8 (True, or not 0 = may see) or float (added to the scores),
        `[batch or 1, heads or 1, seqlen_q or 1, seqlen_kv]`.
      told: what these bounds tell of a pack, once that is asked (see `packed.segments`); what is made of these keys begins
        without.
    """

    lo: torch.Tensor | None = None
    hi: torch.Tensor | None = None
    inside: bool = False
    bias: torch.Tensor | None = None
    told: Any = field(init=False, repr=False, compare=False, default=None)

    @property
    def hides(self) -> bool:
        """True if the bias only hides keys; False if it is added to the scores, or if there is none."""
        return self.bias is not None and self.bias.dtype in (torch.bool, torch.uint8)

    @property
    def added(self) -> torch.Tensor | None:
        """The bias as it is added to, or masks, scores in torch: bool or float."""
        return self.bias.to(torch.bool) if self.bias is not None and self.hides else self.bias

    # ---- sets -----------------------------------------------------------------------------------------------------------

    def within(self, lo: torch.Tensor, hi: torch.Tensor) -> Keys:
        """Only keys of integer bounds `[batch or 1, seqlen_q]` of any dtype and value."""
        lo, hi = _as_int32(lo), _as_int32(hi)
        if self.lo is not None and self.hi is not None:
            lo, hi = torch.maximum(lo, self.lo), torch.minimum(hi, self.hi)
        return replace(self, lo=lo, hi=hi, inside=False)

    def within_band(self, band: Band, seqlen_q: int, seqlen_kv: int, device: torch.device) -> Keys:
        """Only keys of another band. It stays one, so that kernels skip what it hides; at another offset than a band that there
        is already it becomes bounds.
        """
        if not self.banded:
            return replace(self, q_offset=band.q_offset, window=band.window, ahead=band.ahead, inside=False)
        if self.q_offset == band.q_offset:
            window, ahead = _least(self.window, band.window), _least(self.ahead, band.ahead)
            return replace(self, window=window, ahead=ahead, inside=False)
        return self.within(
            *Keys(q_offset=band.q_offset, window=band.window, ahead=band.ahead).bounds(seqlen_q, seqlen_kv, device)
        )

    def within_segments(
        self,
        cu_q: torch.Tensor,
        cu_kv: torch.Tensor,
        *,
        seqlen_q: int,
        window: int | None = None,
        ahead: int | None = None,
        chunk: int | None = None,
    ) -> Keys:
        """Only keys of each row's own segment of a packed batch of one.

        Args:
          cu_q, cu_kv: first row and first key of each segment and the total, int `[num_sequences + 1]`.
          seqlen_q: number of query rows.
          window, ahead: as in `Band`. The last row of a segment stands at its last key, the one before at the last but one, ...
          chunk: length of the chunks of keys that rows see their own of, counted from each segment's first; None = none.
        """
        cu_q, cu_kv = _as_int64(cu_q), _as_int64(cu_kv)
        rows = torch.arange(seqlen_q, device=cu_q.device)
        segment = torch.searchsorted(cu_q, rows, right=True) - 1
        segment = segment.clamp(0, cu_q.shape[0] - 2)
        lo, hi = cu_kv[segment], cu_kv[segment + 1]
        position = rows + hi - cu_q[segment + 1]
        if chunk is not None:
            lo = chunk_begin(position, lo, chunk)
        lo, hi = Band(window=window, ahead=ahead).cut(position, lo, hi)
        # Rows behind the last segment belong to nothing.
        hi = torch.where(rows < cu_q[-1], hi, lo)
        return self.within(lo[None], hi[None])

    def with_bias(self, bias: torch.Tensor) -> Keys:
        """The same keys with a float bias on top."""
        other = self.added
        if other is not None:
            bias = torch.where(other, bias, float("-inf")) if other.dtype == torch.bool else bias + other
        return replace(self, bias=bias)

    # ---- as tensors -----------------------------------------------------------------------------------------------------

    def bounds(self, seqlen_q: int, seqlen_kv: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The band and the run-time bounds in one, int32 `[batch or 1, seqlen_q]`, cut to the keys."""
        if self.inside and self.lo is not None and self.hi is not None:
            return self.lo, self.hi
        # Wide, because the edges of a band may lie anywhere before they are cut to the keys.
        rows = torch.arange(seqlen_q, device=device)[None]
        lo, hi = (edge.clamp(0, seqlen_kv).to(torch.int32) for edge in self.edges(rows, seqlen_kv))
        if self.lo is not None and self.hi is not None:
            lo = torch.maximum(lo, self.lo.clamp(0, seqlen_kv).to(torch.int32))
            hi = torch.minimum(hi, self.hi.clamp(0, seqlen_kv).to(torch.int32))
        return lo, hi

    def seen_by(self, start: int, stop: int, seqlen_kv: int) -> tuple[int, int]:
        """Keys `[first, last)` that the band leaves to any of the rows `[start, stop)`; at least one."""
        first, last = self.interval(start, seqlen_kv)[0], self.interval(stop - 1, seqlen_kv)[1]
        first = min(first, seqlen_kv - 1)
        return first, max(last, first + 1)

    def visible(self, rows: tuple[int, int], keys: tuple[int, int], device: torch.device) -> torch.Tensor | None:
        """Bool that broadcasts to `[batch, num_heads_q, rows, keys]` of these rows and keys, by band and bounds alone; None if
        neither hides anything.
        """
        (start, stop), (first, last) = rows, keys
        seen = None
        key = torch.arange(first, last, device=device)
        row = torch.arange(start, stop, device=device)[:, None]
        lower, upper = self.first(row), self.stop(row)
        if lower is not None:
            seen = (key >= lower)[None, None]
        if upper is not None:
            below = (key < upper)[None, None]
            seen = below if seen is None else seen & below
        if self.lo is not None and self.hi is not None:
            lo, hi = self.lo[:, None, start:stop, None], self.hi[:, None, start:stop, None]
            inside = (key >= lo) & (key < hi)
            seen = inside if seen is None else seen & inside
        return seen

    def dense(self, seqlen_q: int, seqlen_kv: int, device: torch.device) -> torch.Tensor | None:
        """One mask that broadcasts to `[batch, num_heads_q, seqlen_q, seqlen_kv]`: bool (True = may see), or float where there
        is a float bias; None if every row sees every key.
        """
        bias = self.added
        if not self.banded and self.lo is None:
            return bias
        seen = self.visible((0, seqlen_q), (0, seqlen_kv), device)
        if bias is None or seen is None:
            return seen
        return seen & bias if bias.dtype == torch.bool else torch.where(seen, bias, float("-inf"))


def _least(one: int | None, other: int | None) -> int | None:
    """The nearer of two limits; None is none."""
    return min((limit for limit in (one, other) if limit is not None), default=None)


def _as_int32(bound: torch.Tensor) -> torch.Tensor:
    """Bounds as int32. Those below the first key are the first; no key is numbered beyond int32."""
    if bound.dtype == torch.int32:
        return bound
    return _as_int64(bound).clamp(0, _INT32_MAX).to(torch.int32)


def _as_int64(counts: torch.Tensor) -> torch.Tensor:
    if counts.dtype != torch.uint64:
        return counts.to(torch.int64)
    counts = counts.view(torch.int64)
    return torch.where(counts < 0, _INT32_MAX, counts)  # what int64 does not hold arrives negative
