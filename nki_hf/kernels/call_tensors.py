"""Tensors of a call by their names in kernels: their axes, and what stands in for -inf where a kernel knows none."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["HIDDEN", "LOWEST", "TENSORS"]

_Q = ("batch", "num_heads_q", "seqlen_q")


_KV = ("batch", "num_heads_kv", "seqlen_kv")


TENSORS: Mapping[str, tuple[str, ...]] = {
    "q": (*_Q, "head_dim"),
    "k": (*_KV, "head_dim"),
    "v": (*_KV, "head_dim_v"),
    "lo": ("batch", "seqlen_q"),
    "hi": ("batch", "seqlen_q"),
    "bias": (*_Q, "seqlen_kv"),
    "sink": ("num_heads_q",),
    "out": ("batch", "seqlen_q", "num_heads_q", "head_dim_v"),
    "out_rest": ("batch", "seqlen_q", "num_heads_q", "head_dim_v"),
    "lse": _Q,
    "row_shift": _Q,
    "row_sum": _Q,
    "dout": ("batch", "seqlen_q", "num_heads_q", "head_dim_v"),
    "dlse": _Q,
    "dq": (*_Q, "head_dim"),
    "dk": (*_KV, "head_dim"),
    "dv": (*_KV, "head_dim_v"),
    "dbias": (*_Q, "seqlen_kv"),
    "dsink": ("num_heads_q",),
}
"""Axes of the tensors that a call has and gets, as the adapters hold them. Each axis is a size of `Problem`.

`row_shift` and `row_sum` say what lse says, and what one float32 cannot hold of it where scores are large:
`probs = exp(scores - row_shift) / row_sum`, so `lse = row_shift + log(row_sum)`. A kernel that looks for the largest score of a
row returns that, or the sink above it, as `row_shift`; another may return what it subtracted instead. Rows that see no key have
a `row_shift` of -inf (with a sink: the sink), and any positive `row_sum`.

`out_rest` is what 16 bits do not hold of out: the output in float32 minus out, in float32.
"""


HIDDEN = -3.4028234663852886e38
"""What a bias holds where a key is hidden, for kernels that know no -inf: float32's lowest value."""


LOWEST = -1e38
"""What finite biases are raised to, so that a row of finfo.min stays a row of (equal) scores and is not taken as empty."""
