"""Call: one attention call in torch tensors, after every mask form has become bounds and bias. All adapters make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad

from nki_hf.adapters.keys import Keys
from nki_hf.adapters.packed.pieces import Segments
from nki_hf.errors import Reason, UnsupportedProblem
from nki_hf.problem import Mask, Problem

__all__ = [
    "COMPUTABLE",
    "Call",
    "ProblemKey",
    "check_tensors",
    "problem_from",
    "problem_key",
    "same_batch",
]

_NAMES = (
    "bfloat16 float16 float32 float64 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64"
)
COMPUTABLE = tuple(getattr(torch, name) for name in _NAMES.split() if hasattr(torch, name))
"""Dtypes of q, k and v that attention has a meaning for: signed floats and integers. What no kernel takes, torch computes."""
_COMPUTABLE = frozenset(COMPUTABLE)
_STRIDED = (torch.strided, torch.jagged)  # nested tensors are views of strided ones


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
      segments: the packed sequences of a batch of one, which `keys` says too: the call then runs in pieces. None = one launch.
      row_statistics: True if row_shift and row_sum are wanted (see `call_tensors.TENSORS`): gradients start from them, or
        the rows are parts of rows.
      out_rest: True if out_rest is wanted as well, which gradients start from.
      row_part: of gradients: True if the keys are a part of the rows' (see `Problem.row_part`).
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
    segments: Segments | None = None
    row_statistics: bool = False
    out_rest: bool = False
    row_part: bool = False

    @property
    def head_sink(self) -> torch.Tensor | None:
        """The sink as `[num_heads_q]` if it has one logit per head, which is what kernels take; else None."""
        sink, heads = self.sink, self.q.shape[1]
        return sink.reshape(-1) if sink is not None and (sink.shape == (heads,) or sink.shape == (1, heads, 1, 1)) else None

    @property
    def transformed(self) -> bool:
        """True inside a transform of `torch.func` or with a tangent of forward-mode AD: kernels know neither."""
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return True
        # Outside of any dual level no tensor has a tangent, and asking each would cost time.
        if forward_ad._current_level < 0:
            return False
        tensors = (self.q, self.k, self.v, self.sink, self.keys.bias)
        return any(each is not None and forward_ad.unpack_dual(each).tangent is not None for each in tensors)

    @property
    def row_sink(self) -> torch.Tensor | None:
        """The sink as `[batch or 1, num_heads_q or 1, seqlen_q or 1]` if it differs between rows; else None."""
        return None if self.sink is None or self.head_sink is not None else self.sink[..., 0]


def check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor | None = None) -> None:
    """Refuse tensors that describe no attention at all, so that no fallback could compute them either.

    Raises:
      UnsupportedProblem: wrong rank, no heads or no head_dim, sizes and heads that do not fit together, or a dtype that
        attention has no meaning for (complex, bool, packed bits); or tensors without strides (sparse, mkldnn).
    """
    for tensor in (q, k, v, sink):
        if tensor is not None and tensor.layout not in _STRIDED:
            _refuse_layouts(q=q, k=k, v=v, sink=sink)
    reasons = []
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    for name, tensor, shape in (("q", q, q_shape), ("k", k, k_shape), ("v", v, v_shape)):
        if len(shape) != 4:
            reasons.append(_shape_reason(f"{name}.shape", tensor, "must have 4 axes, [batch, heads, seqlen, head_dim]"))
        elif shape[1] == 0 or shape[3] == 0:
            reasons.append(_shape_reason(f"{name}.shape", tensor, "must have 1 or more heads and a head_dim of 1 or more"))
        if tensor.dtype not in _COMPUTABLE:
            limit = "must be a signed float or integer type of whole bytes"
            reasons.append(Reason(kernel="attention", field=f"{name}.dtype", value=_dtype_name(tensor.dtype), limit=limit))
    if not reasons:
        if q_shape[3] != k_shape[3]:
            reasons.append(_shape_reason("k.shape", k, f"must end with q's head_dim, {q_shape[3]}"))
        if k_shape[0] != v_shape[0] or k_shape[1] != v_shape[1] or k_shape[2] != v_shape[2]:
            reasons.append(_shape_reason("v.shape", v, f"must begin with k's batch, heads and length, {list(k_shape[:3])}"))
        if q_shape[0] != k_shape[0] and q_shape[0] != 1 and k_shape[0] != 1:
            reasons.append(_shape_reason("k.shape", k, f"must have q's batch, {q_shape[0]}, or 1"))
        if q_shape[1] % k_shape[1]:
            reasons.append(
                Reason(
                    kernel="attention",
                    field="num_heads_q",
                    value=str(q.shape[1]),
                    limit=f"must be a multiple of num_heads_kv={k.shape[1]}",
                )
            )
    if not reasons and sink is not None and sink.shape != (q.shape[1],):
        wanted = (max(q.shape[0], k.shape[0]), q.shape[1], q.shape[2], 1)
        if sink.dim() != 4 or any(have != 1 and have != want for have, want in zip(sink.shape, wanted, strict=True)):
            limit = f"must be [num_heads_q] = [{q.shape[1]}] or broadcast to [batch, num_heads_q, seqlen_q, 1] = {list(wanted)}"
            reasons.append(_shape_reason("sink.shape", sink, limit))
    if reasons:
        raise UnsupportedProblem(reasons)


def _refuse_layouts(**tensors: torch.Tensor | None) -> NoReturn:
    reasons = []
    for name, tensor in tensors.items():
        if tensor is not None and tensor.layout not in _STRIDED:
            limit, found = "must be an ordinary (strided) tensor", str(tensor.layout).removeprefix("torch.")
            advice = "Call to_dense()."
            reasons.append(Reason(kernel="attention", field=f"{name}.layout", value=found, limit=limit, advice=advice))
    raise UnsupportedProblem(reasons)


def same_batch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v of one batch. Learned queries come with batch 1 against a batch of keys, or the reverse: what has batch 1
    is repeated. It comes first, so that masks and bounds meet the batch of the result.
    """
    batch, batch_kv = q.shape[0], k.shape[0]
    if batch == batch_kv:
        return q, k, v
    if batch == 1:
        return q.expand(batch_kv, -1, -1, -1), k, v
    return q, k.expand(batch, -1, -1, -1), v.expand(batch, -1, -1, -1)


ProblemKey = tuple[Any, ...]
"""What `problem_from` makes a `Problem` of. Calls are many and problems few: decisions are looked up by this key."""


def problem_key(call: Call) -> ProblemKey:
    """The sizes and options of a call, hashable."""
    q, k, v, keys = call.q, call.k, call.v, call.keys
    bias = keys.bias
    return (
        tuple(q.shape),
        tuple(v.shape),
        q.dtype if q.dtype == k.dtype == v.dtype else (q.dtype, k.dtype, v.dtype),
        call.scale,
        call.softcap,
        call.sink is not None and call.head_sink is not None,
        keys.q_offset,
        keys.window,
        keys.ahead,
        keys.lo is not None,
        None if bias is None else (keys.hides, bias.shape[0] > 1, bias.shape[1] > 1, bias.shape[2] > 1),
        call.row_statistics,
        call.out_rest,
        call.row_part,
    )


def problem_from(key: ProblemKey) -> Problem:
    """The problem of a key."""
    q, v, dtype, scale, softcap, sink, q_offset, window, ahead, bounds, bias, row_statistics, out_rest, row_part = key
    boolean, per_batch, per_head, per_row = bias or (False, False, False, False)
    kind = None if bias is None else "boolean" if boolean else "additive"
    return Problem(
        batch=q[0],
        num_heads_q=q[1],
        num_heads_kv=v[1],
        seqlen_q=q[2],
        seqlen_kv=v[2],
        head_dim=q[3],
        head_dim_v=v[3],
        dtype=_dtype_name(dtype[0] if isinstance(dtype, tuple) else dtype),
        dtypes=tuple(map(_dtype_name, dtype)) if isinstance(dtype, tuple) else None,
        softmax_scale=scale,
        mask=Mask(
            q_offset=q_offset,
            window=window,
            ahead=ahead,
            runtime_bounds=bounds,
            bias=kind,
            bias_batch=per_batch,
            bias_heads=per_head,
            bias_rows=per_row,
        ),
        softcap=softcap,
        sink=sink,
        row_statistics=row_statistics,
        out_rest=out_rest,
        row_part=row_part,
    )


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape_reason(field: str, tensor: torch.Tensor, limit: str) -> Reason:
    return Reason(kernel="attention", field=field, value=str(list(tensor.shape)), limit=limit)
