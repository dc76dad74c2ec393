"""Problem: the one noun all layers share: sizes, dtype, mask and options of one attention call."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

__all__ = ["BIAS_KINDS", "DTYPES", "LARGEST_SCALE", "SMALLEST_SOFTCAP", "Band", "Mask", "Problem", "chunk_begin"]

DTYPES = ("bfloat16", "float16", "float32")
"""Element types that the kernels compute with; anything else is refused by the dispatch rules, not here."""
LARGEST_SCALE = 3.4028234663852886e38
"""The largest softmax scale, in size, and the largest softcap: of float32, in which scores are computed."""
SMALLEST_SOFTCAP = 1e-45
"""Float32's smallest number above zero, to one digit."""

BIAS_KINDS = (None, "boolean", "additive")

_FAR = 1 << 23
"""Beyond: no position of a key, and sums of two of them and a length may leave what float32 counts exactly."""


@dataclass(frozen=True, kw_only=True)
class Band:
    """A static causal or windowed pattern. The formula of visibility stands here and nowhere else outside of kernels.

    Row `i` stands at position `q_offset + i` among the keys and sees keys `[first(i), stop(i))` of those that there are, with

        first = q_offset + i - window + 1    if window is given, else no limit
        stop  = q_offset + i + ahead         if ahead is given, else no limit

    Attributes:
      q_offset: position of query row 0 among the keys (any sign). Alignment is always explicit; kernels never guess.
      window: number of keys seen backwards, the query itself included (`kv > position - window`, the meaning of
        Transformers' sliding_window); None = unlimited.
      ahead: number of keys seen forwards, the query itself included (`kv < position + ahead`); 1 is causal,
        None = unlimited.
    """

    q_offset: int = 0
    window: int | None = None
    ahead: int | None = None

    @property
    def causal(self) -> bool:
        """True if a row sees no key after its own position."""
        return self.ahead == 1

    @property
    def banded(self) -> bool:
        """True if the band hides anything at all."""
        return self.window is not None or self.ahead is not None

    def first(self, row: Any) -> Any:
        """The first key that a row may see (an int or an array of rows), not cut to the keys; None = no limit."""
        return None if self.window is None else row + (self.q_offset - self.window + 1)

    def stop(self, row: Any) -> Any:
        """One past the last key that a row may see, not cut to the keys; None = no limit."""
        return None if self.ahead is None else row + (self.q_offset + self.ahead)

    def edges(self, row: Any, seqlen_kv: int) -> tuple[Any, Any]:
        """`first` and `stop` with the ends of the keys in place of no limit; a row or an array of rows."""
        first, stop = self.first(row), self.stop(row)
        return row * 0 if first is None else first, row * 0 + seqlen_kv if stop is None else stop

    def cut(self, row: Any, begin: Any, end: Any) -> tuple[Any, Any]:
        """`first` and `stop` of rows among the keys `[begin, end)`: arrays or tensors; a side without limit is `begin` or `end`
        as it was given.
        """
        first, stop = self.first(row), self.stop(row)
        return begin if first is None else first.clip(min=begin), end if stop is None else stop.clip(max=end)

    def narrowed(self, seqlen_q: int, seqlen_kv: int) -> Self:
        """The same with numbers that int32 and float32 hold: keys beyond either end are none, so that an edge is moved to where
        no row meets a key behind it.
        """
        if all(value is None or -_FAR < value < _FAR for value in (self.q_offset, self.window, self.ahead)):
            return self
        first, stop = self.first(0), self.stop(0)
        first = -seqlen_q if first is None else max(-seqlen_q, min(first, seqlen_kv))
        stop = seqlen_kv + 1 if stop is None else max(1 - seqlen_q, min(stop, seqlen_kv + 1))
        offset = max(first, min(self.q_offset, stop - 1))
        window = None if self.window is None else offset - first + 1
        return replace(self, q_offset=offset, window=window, ahead=None if self.ahead is None else stop - offset)

    def interval(self, row: int, seqlen_kv: int) -> tuple[int, int]:
        """Keys `[lo, hi)` of query row `row`, lo >= 0, hi <= seqlen_kv; `lo >= hi` means that it sees none."""
        first, stop = self.edges(row, seqlen_kv)
        return max(0, first), min(seqlen_kv, stop)


def chunk_begin(row: Any, begin: Any, chunk: int) -> Any:
    """First key of the chunk in which a row stands, of chunks that are counted from key `begin`; arrays or tensors."""
    return begin + (row - begin).clip(min=0) // chunk * chunk


@dataclass(frozen=True, kw_only=True)
class Mask(Band):
    """Which keys each query row may see: a static band, and what the call brings as tensors; they combine (and).

    Attributes:
      q_offset, window, ahead: see `Band`.
      runtime_bounds: True if the call also passes int32 tensors `lo` and `hi`, `[batch or 1, seqlen_q]`: row i sees keys
        `lo <= key < hi` only.
      bias: None, `boolean` (True = may see) or `additive` (added to the scaled, capped score; -inf hides the key).
      bias_batch: the bias has a batch axis of full size (else 1).
      bias_heads: the bias has one plane per query head (else 1).
      bias_rows: the bias has one row per query (else 1).
    """

    runtime_bounds: bool = False
    bias: str | None = None
    bias_batch: bool = False
    bias_heads: bool = False
    bias_rows: bool = False

    def __post_init__(self) -> None:
        for name in ("window", "ahead"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} is not a mask: {name} counts the query itself, so it is >= 1 or None.")
        if self.bias not in BIAS_KINDS:
            raise ValueError(f"bias={self.bias!r} is not a mask: bias is one of {BIAS_KINDS}.")
        if self.bias is None and (self.bias_batch or self.bias_heads or self.bias_rows):
            raise ValueError("bias=None has no axes: leave bias_batch, bias_heads and bias_rows False.")

    @property
    def kind(self) -> str:
        """`none`, `interval` or `bias`: the most general of the parts present."""
        if self.bias is not None:
            return "bias"
        return "interval" if self.banded or self.runtime_bounds else "none"

    @property
    def form(self) -> str:
        """The parts present in words: band, bounds, and of the bias whether it is one row for all queries or dense."""
        parts = ["band"] if self.banded else []
        if self.runtime_bounds:
            parts.append("bounds")
        if self.bias is not None:
            rows = "dense" if self.bias_rows else "key"
            parts.append(f"{rows} {'mask' if self.bias == 'boolean' else 'bias'}")
        return " + ".join(parts) or "none"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Sizes and options of one attention call, `out = softmax(mask(cap(q @ k.T * softmax_scale))) @ v`.

    Tensors: q `[batch, num_heads_q, seqlen_q, head_dim]`, k `[batch, num_heads_kv, seqlen_kv, head_dim]`,
    v `[batch, num_heads_kv, seqlen_kv, head_dim_v]`, out `[batch, num_heads_q, seqlen_q, head_dim_v]`,
    lse `[batch, num_heads_q, seqlen_q]` float32 (natural log). Query head `h` uses kv head `h // group_size`.

    Attributes:
      dtype: common element type of q, k, v and out, in NumPy's words (`bfloat16`, `float16`, `float32`; others may be
        described and are refused by the rules).
      softmax_scale: multiplies the scores; None = `head_dim ** -0.5`.
      mask: see `Mask`.
      softcap: `cap * tanh(scores / cap)` after the scale and before the mask; None = off.
      sink: True if the call passes one logit per query head, `[num_heads_q]`, that joins the softmax denominator only.
      bias_gradient: of the gradients of a call: True if that of its additive bias is wanted.
      row_statistics: of a forward call: True if the kernel also returns `row_shift` and `row_sum` (see
        `call_tensors.TENSORS`); of its gradients: True if the kernel gets them.
      out_rest: of a forward call: True if the kernel also returns `out_rest`; of its gradients: True if the kernel gets it.
      row_part: of the gradients of a call: True if its keys are a part of those of its rows; out, lse and the row statistics
        that the kernel gets are those of the whole rows.
      dtypes: the element types of q, k and v where they differ, which no kernel takes; `dtype` is then q's. None = all are
        `dtype`.

    Raises:
      ValueError: sizes that describe no attention (negative sizes, heads that do not divide).
    """

    batch: int
    num_heads_q: int
    num_heads_kv: int
    seqlen_q: int
    seqlen_kv: int
    head_dim: int
    head_dim_v: int
    dtype: str = "bfloat16"
    softmax_scale: float | None = None
    mask: Mask = field(default_factory=Mask)
    softcap: float | None = None
    sink: bool = False
    bias_gradient: bool = False
    row_statistics: bool = False
    out_rest: bool = False
    row_part: bool = False
    dtypes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "seqlen_q", "seqlen_kv"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} is not a size: {name} must be 0 or more.")
        for name in ("num_heads_q", "num_heads_kv", "head_dim", "head_dim_v"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is not a size: {name} must be 1 or more.")
        if self.num_heads_q % self.num_heads_kv:
            raise ValueError(
                f"num_heads_q={self.num_heads_q} does not divide into num_heads_kv={self.num_heads_kv}: "
                "num_heads_q must be a multiple of num_heads_kv."
            )
        if self.out_rest and not self.row_statistics:
            raise ValueError("out_rest=True needs row_statistics=True: kernels return, and take, it beside them.")
        if self.softcap is not None and not self.softcap > 0:
            raise ValueError(f"softcap={self.softcap} is not a cap: softcap must be above 0, or None for no cap.")

    @property
    def group_size(self) -> int:
        """Query heads per kv head."""
        return self.num_heads_q // self.num_heads_kv

    @property
    def scale(self) -> float:
        """The softmax scale with its default filled in: `softmax_scale` or `head_dim ** -0.5`."""
        return self.head_dim**-0.5 if self.softmax_scale is None else self.softmax_scale
