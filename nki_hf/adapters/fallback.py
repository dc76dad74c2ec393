"""The stated fallback: torch's sdpa, or eager math where sdpa cannot, on the same call and under the same contract."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from nki_hf.adapters.call import Call
from nki_hf.adapters.context_parallel import context_parallel, torch_sdpa
from nki_hf.errors import Reason, UnsupportedProblem

__all__ = ["fallback_name", "run_fallback", "run_fallback_with_lse"]

_FUSED_SCALE = 1e3  # the largest of a model is 1 (head_dim^-0.5, or q and k normed)


def fallback_name(call: Call) -> str:
    """`sdpa`, or `eager` for what sdpa lacks: softcap, sinks, attention weights, derivatives of any kind and order, and
    gradients under a scale far above those of any model.
    """
    if call.softcap is not None or call.sink is not None or call.weights or _beyond_fused_gradients(call):
        return "eager"
    return "eager" if not torch.compiler.is_compiling() and call.transformed else "sdpa"


def _beyond_fused_gradients(call: Call) -> bool:
    """Torch's fused sdpa makes P again as exp(score - lse) in its backward pass, with scores that are rounded otherwise than
    in the forward pass: at a score of 1e8 the two differ by more than exp can take, and dv is infinite.
    """
    scale = 0.0 if call.scale is None else abs(call.scale)
    return scale > _FUSED_SCALE and torch.is_grad_enabled() and any(each.requires_grad for each in (call.q, call.k, call.v))


def run_fallback(call: Call) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Out `[batch, seqlen_q, num_heads_q, head_dim_v]`, contiguous, and the weights if asked for.

    Rows that see no key are zeros. Weights are `[batch, num_heads_q, seqlen_q, seqlen_kv]`. Both are in q's dtype, or, since
    averages are no integers, in the dtype of the computation where q holds integers.
    """
    dtype = _computing_dtype(call)
    if call.keys.bias is not None and not call.keys.hides and fallback_name(call) == "sdpa":
        # In 16 bits large biases would be rounded by more than a score is, and float32's lowest value would be -inf.
        dtype = torch.promote_types(dtype, call.keys.bias.dtype)
    if not call.q.dtype == call.k.dtype == call.v.dtype == dtype:
        cast = replace(call, q=call.q.to(dtype), k=call.k.to(dtype), v=call.v.to(dtype))
        out, weights = run_fallback(cast)
        kept = call.q.dtype if call.q.is_floating_point() else dtype
        return out.to(kept), None if weights is None else weights.to(kept)
    group = call.q.shape[1] // call.k.shape[1]
    k, v = call.k.repeat_interleave(group, dim=1), call.v.repeat_interleave(group, dim=1)
    scale = call.q.shape[3] ** -0.5 if call.scale is None else call.scale
    mask = call.keys.dense(call.q.shape[2], k.shape[2], call.q.device)
    if fallback_name(call) == "sdpa":
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(call.q.dtype)
        out = torch_sdpa()(call.q, k, v, attn_mask=mask, dropout_p=call.dropout, scale=scale)
        return out.transpose(1, 2).contiguous(), None
    if context_parallel():
        limit = "must be off under context parallelism, where only sdpa sees the keys of all shards"
        raise UnsupportedProblem([Reason(kernel="torch", field="softcap, sink, output_attentions", value="on", limit=limit)])
    weights, _ = _weights(call, k, scale, mask)
    out = F.dropout(weights, p=call.dropout) @ v
    return out.transpose(1, 2).contiguous(), weights if call.weights else None


def _computing_dtype(call: Call) -> torch.dtype:
    """What torch promotes q, k and v to; integers and 8-bit floats, which it has no attention of, count as float32."""
    native = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    q, k, v = (each.dtype if each.dtype in native else torch.float32 for each in (call.q, call.k, call.v))
    return torch.promote_types(torch.promote_types(q, k), v)


def run_fallback_with_lse(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Out as of `run_fallback`, and lse `[batch, num_heads_q, seqlen_q]` float32; by eager math, without dropout."""
    dtype = _computing_dtype(call)
    group = call.q.shape[1] // call.k.shape[1]
    k, v = (each.to(dtype).repeat_interleave(group, dim=1) for each in (call.k, call.v))
    cast = replace(call, q=call.q.to(dtype), k=k, v=v)
    scale = call.q.shape[3] ** -0.5 if call.scale is None else call.scale
    weights, lse = _weights(cast, k, scale, call.keys.dense(call.q.shape[2], k.shape[2], call.q.device))
    kept = call.q.dtype if call.q.is_floating_point() else dtype
    return (weights @ v).transpose(1, 2).to(kept).contiguous(), lse.to(torch.float32)


def _weights(call: Call, k: torch.Tensor, scale: float, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention weights in q's dtype, and the log-sum-exp of the scores and the sink."""
    exact = torch.promote_types(call.q.dtype, torch.float32)
    scores = (call.q @ k.transpose(2, 3)).to(exact) * scale
    if call.softcap is not None:
        scores = _capped(scores, call.softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    if call.sink is not None:
        sink = call.sink.to(exact)
        sink = sink.view(1, -1, 1, 1) if call.head_sink is not None else sink
        sink = sink.expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sink], dim=-1)
    # A row that sees nothing has no softmax: its weights are zero, and so is its gradient.
    dead = (scores == float("-inf")).all(dim=-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(dead, 0.0), dim=-1).masked_fill(dead, 0.0)
    return weights[..., : k.shape[2]].to(call.q.dtype), torch.logsumexp(scores, dim=-1)


def _capped(scores: torch.Tensor, softcap: float) -> torch.Tensor:
    """`softcap * tanh(scores / softcap)`. Autograd multiplies by the cap before it divides by it: caps that float32 does not
    hold the product of go through float64.
    """
    wide = scores if 1e-30 <= softcap <= 1e30 else scores.double()
    return (softcap * torch.tanh(wide / softcap)).to(scores.dtype)
