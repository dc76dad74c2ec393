"""Call: one attention call in torch tensors, after every mask form has become bounds and bias. All adapters make it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from nki_hf.errors import Reason, UnsupportedProblem
from nki_hf.problem import Mask, Problem

__all__ = ["Call", "Keys", "check_shapes", "problem_of"]

_DTYPE_NAMES: dict[Any, str] = {
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.float32: "float32",
    torch.float64: "float64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Which keys each query row may see, in the words of `problem.Mask`.

    Attributes:
      q_offset, window, ahead: the static band (see `Mask`).
      lo, hi: int32 `[batch or 1, seqlen_q]` run-time bounds, both or neither.
      bias: bool (True = may see) or float (added to the scores), `[batch or 1, heads or 1, seqlen_q or 1, seqlen_kv]`.
    """

    q_offset: int = 0
    window: int | None = None
    ahead: int | None = None
    lo: torch.Tensor | None = None
    hi: torch.Tensor | None = None
    bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One attention call.

    Attributes:
      q: `[batch, num_heads_q, seqlen_q, head_dim]`, any strides.
      k: `[batch, num_heads_kv, seqlen_kv, head_dim]`, any strides.
      v: `[batch, num_heads_kv, seqlen_kv, head_dim_v]`, any strides.
      keys: which keys each row may see.
      scale: multiplies the scores; None = `head_dim ** -0.5`.
      softcap: `cap * tanh(scores / cap)` before the mask; None = off.
      sink: one more logit in each row's softmax, without a value: `[num_heads_q]`, or anything that broadcasts to
        `[batch, num_heads_q, seqlen_q, 1]`; None = off.
      dropout: probability of dropping an attention weight; 0.0 outside training.
      weights: True if the caller wants the attention weights as well.
      refused: what the adapter could not express; any entry sends the call to the fallback.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    keys: Keys
    scale: float | None = None
    softcap: float | None = None
    sink: torch.Tensor | None = None
    dropout: float = 0.0
    weights: bool = False
    refused: tuple[Reason, ...] = ()

    @property
    def head_sink(self) -> torch.Tensor | None:
        """The sink as `[num_heads_q]` if it has one logit per head, which is what kernels take; else None."""
        if self.sink is None or self.sink.numel() != self.q.shape[1]:
            return None
        return self.sink.reshape(-1)

    @property
    def row_sink(self) -> torch.Tensor | None:
        """The sink as `[batch or 1, num_heads_q or 1, seqlen_q or 1]` if it differs between rows; else None."""
        if self.sink is None or self.sink.numel() == self.q.shape[1]:
            return None
        return self.sink[..., 0]


def check_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Refuse q, k, v that describe no attention at all, so that no fallback could compute them either.

    Raises:
      UnsupportedProblem: wrong rank, or sizes and heads that do not fit together.
    """
    reasons = []
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            reasons.append(_shape_reason(f"{name}.shape", tensor, "must have 4 axes, [batch, heads, seqlen, head_dim]"))
    if not reasons:
        if q.shape[3] != k.shape[3]:
            reasons.append(_shape_reason("k.shape", k, f"must end with q's head_dim, {q.shape[3]}"))
        if k.shape[:3] != v.shape[:3]:
            reasons.append(_shape_reason("v.shape", v, f"must begin with k's batch, heads and length, {list(k.shape[:3])}"))
        if q.shape[0] != k.shape[0] and 1 not in (q.shape[0], k.shape[0]):
            reasons.append(_shape_reason("k.shape", k, f"must have q's batch, {q.shape[0]}, or 1"))
        if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
            reasons.append(
                Reason(
                    kernel="attention",
                    field="num_heads_q",
                    value=str(q.shape[1]),
                    limit=f"must be a multiple of num_heads_kv={k.shape[1]}",
                )
            )
    if reasons:
        raise UnsupportedProblem(reasons)


def problem_of(call: Call, *, needs_grad: bool) -> Problem:
    """The sizes and options of a call; equal calls share one object, so that decisions can be looked up by it."""
    q, v, keys = call.q, call.v, call.keys
    bias = keys.bias
    bias_kind: tuple[Any, ...] = (None, False, False, False)
    if bias is not None:
        kind = "boolean" if bias.dtype == torch.bool else "additive"
        bias_kind = (kind, bias.shape[0] > 1, bias.shape[1] > 1, bias.shape[2] > 1)
    return _problem(
        (q.shape[0], q.shape[1], v.shape[1], q.shape[2], v.shape[2], q.shape[3], v.shape[3]),
        _dtype_name(call),
        call.scale,
        (keys.q_offset, keys.window, keys.ahead, keys.lo is not None, *bias_kind),
        call.softcap,
        call.head_sink is not None,
        needs_grad,
    )


@lru_cache(maxsize=4096)
def _problem(
    sizes: tuple[int, ...],
    dtype: str,
    scale: float | None,
    mask: tuple[Any, ...],
    softcap: float | None,
    sink: bool,
    needs_grad: bool,
) -> Problem:
    batch, num_heads_q, num_heads_kv, seqlen_q, seqlen_kv, head_dim, head_dim_v = sizes
    q_offset, window, ahead, runtime_bounds, bias, bias_batch, bias_heads, bias_rows = mask
    return Problem(
        batch=batch,
        num_heads_q=num_heads_q,
        num_heads_kv=num_heads_kv,
        seqlen_q=seqlen_q,
        seqlen_kv=seqlen_kv,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        dtype=dtype,
        softmax_scale=scale,
        mask=Mask(
            q_offset=q_offset,
            window=window,
            ahead=ahead,
            runtime_bounds=runtime_bounds,
            bias=bias,
            bias_batch=bias_batch,
            bias_heads=bias_heads,
            bias_rows=bias_rows,
        ),
        softcap=softcap,
        sink=sink,
        needs_grad=needs_grad,
    )


def _dtype_name(call: Call) -> str:
    dtype = call.q.dtype
    if call.k.dtype == dtype == call.v.dtype:
        return _DTYPE_NAMES.get(dtype) or str(dtype).removeprefix("torch.")
    return "+".join(str(tensor.dtype).removeprefix("torch.") for tensor in (call.q, call.k, call.v))


def _shape_reason(field: str, tensor: torch.Tensor, limit: str) -> Reason:
    return Reason(kernel="attention", field=field, value=str(list(tensor.shape)), limit=limit)
