"""From torch tensors to a kernel's layouts and back: views where memory allows it, copies only where it does not."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nki_hf.backends.base import KernelCall, RunResult
from nki_hf.kernels.flash_prefill.plan import PrefillPlan
from nki_hf.problem import Problem

__all__ = ["attention_call", "attention_result", "trivial_result"]

HIDDEN = torch.finfo(torch.float32).min
"""What an additive bias holds where a key is hidden; the kernel knows no -inf."""
LOWEST = -1e38
"""Finite biases are raised to this, so that a row of finfo.min stays a row of (equal) scores and is not taken as empty."""


def attention_call(
    problem: Problem,
    plan: PrefillPlan,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    bias: Tensor | None = None,
    sink: Tensor | None = None,
    lnc: int = 1,
) -> KernelCall:
    """The `flash_prefill` call of one attention call.

    Args:
      problem, plan: what `plan_prefill(problem, ...)` gave.
      q, k, v: `[batch, heads, seqlen, head_dim]` as in `Problem`; any strides. k and v are extended if the plan has a bucket.
      lo, hi: run-time key bounds, integers `[batch or 1, seqlen_q]`.
      bias: `[batch or 1, num_heads_q or 1, seqlen_q or 1, seqlen_kv]`, bool or float.
      sink: `[num_heads_q]`, any float dtype.
      lnc: logical-core degree of the launch.

    Returns:
      Tensors q and k as `[batch, heads, head_dim, seqlen]` views, v as it is, lo and hi int32 (static mask included),
      bias uint8 or float32, sink float32 `[1, num_heads_q]`.
    """
    extra = plan.seqlen_kv - problem.seqlen_kv
    lower, upper = _bounds(problem, lo, hi, q.device) if plan.bounds else (None, None)
    tensors = {
        "q": q.transpose(-1, -2),
        "k": k.transpose(-1, -2),
        "v": v,
        "lo": lower,
        "hi": upper,
        "bias": None if bias is None else _bias(problem, bias, extra),
        "sink": None if sink is None else _sink(problem, sink),
    }
    extended = {"k": (3, plan.seqlen_kv), "v": (2, plan.seqlen_kv)} if extra else {}
    return KernelCall(kernel="flash_prefill", tensors=tensors, extended=extended, constants=plan.constants(), lnc=lnc)


def attention_result(problem: Problem, result: RunResult, sink: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Output `[batch, seqlen_q, num_heads_q, head_dim_v]` in the problem's dtype, as the kernel wrote it, and lse
    `[batch, num_heads_q, seqlen_q]` float32.
    """
    out, lse = result.outputs
    if sink is not None:
        # The kernel was given a higher one than the lowest of sinks (see `_sink`), and calls such a row's lse -inf.
        lse = torch.maximum(lse, sink.detach().to(torch.float32)[None, :, None])
    return out, lse


def trivial_result(problem: Problem, q: Tensor, v: Tensor, sink: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
    """The result of a call that needs no kernel (no batch, no queries or no keys), in the layouts of
    `attention_result`; None if it needs one. Without keys every row is empty: zeros, and lse = sink or -inf.
    """
    if problem.batch and problem.seqlen_q and problem.seqlen_kv:
        return None
    dtype = q.dtype if q.is_floating_point() else torch.float32
    out = q.new_zeros((problem.batch, problem.seqlen_q, problem.num_heads_q, problem.head_dim_v), dtype=dtype)
    shape = (problem.batch, problem.num_heads_q, problem.seqlen_q)
    lse = torch.full(shape, -torch.inf, dtype=torch.float32, device=q.device)
    if sink is not None:
        # a copy even where the shapes are equal: an op may not return a view of its input
        lse = sink.to(torch.float32)[None, :, None].expand_as(lse).clone(memory_format=torch.contiguous_format)
    return out, lse


def _bounds(problem: Problem, lo: Tensor | None, hi: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Static and run-time bounds in one, int32 `[batch or 1, seqlen_q]`."""
    mask, length = problem.mask, problem.seqlen_kv
    if mask.rows is None:
        # Wide, because the edges of a band may lie anywhere before they are cut to the keys.
        position = torch.arange(problem.seqlen_q, device=device, dtype=torch.int64) + mask.q_offset
        lower = torch.zeros_like(position) if mask.window is None else position - (mask.window - 1)
        upper = torch.full_like(position, length) if mask.ahead is None else position + mask.ahead
    else:
        rows = [mask.interval(row, length) for row in range(problem.seqlen_q)]
        inside = [(max(0, min(lower, length)), max(0, min(upper, length))) for lower, upper in rows]
        edges = torch.tensor(inside, dtype=torch.int64, device=device)
        lower, upper = edges[:, 0], edges[:, 1]
    lower, upper = (edge.clamp(0, length).to(torch.int32)[None] for edge in (lower, upper))
    if mask.runtime_bounds:
        if lo is None or hi is None:
            raise ValueError("mask.runtime_bounds=True needs the tensors lo and hi: pass both, [batch or 1, seqlen_q].")
        lower = torch.maximum(lower, lo.clamp(0, length).to(torch.int32))
        upper = torch.minimum(upper, hi.clamp(0, length).to(torch.int32))
    return lower, upper


def _sink(problem: Problem, sink: Tensor) -> Tensor:
    """float32 `[1, num_heads_q]`, -inf and what is as low raised above the scores of hidden keys, which lie at HIDDEN times
    the slope of the kernel's scores: a row that sees no key would take those for its keys.
    """  # fmt: skip
    slope = problem.scale if problem.softcap is None else problem.softcap
    if slope <= 0 or problem.mask.bias == "additive":
        slope = 1.0
    return sink.detach().to(torch.float32).clamp(min=0.95 * HIDDEN * min(slope, 1.0)).reshape(1, -1)


def _bias(problem: Problem, bias: Tensor, extra: int) -> Tensor:
    if problem.mask.bias == "boolean":
        return F.pad(bias.to(torch.bool).view(torch.uint8), (0, extra))
    values = bias.detach().to(torch.float32)
    values = torch.where(torch.isneginf(values), HIDDEN, values.clamp(min=LOWEST))
    return F.pad(values, (0, extra), value=HIDDEN)
