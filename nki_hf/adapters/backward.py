"""The gradients of attention in torch, in blocks of query rows: no seqlen x seqlen tensor is kept.

On a Neuron device every block is unrolled into the graph and in float32, so blocks are few there and take memory: with 16
heads and 16,384 tokens a block is 512 rows, 512 MiB for each tensor of its scores.

With scores S = cap(q k^T * scale) + bias, P = softmax(S, sink) over the keys and p = softmax(S, sink) of the sink:

    delta = rowsum(P * (dout v^T)) - dlse
    dS = P * (dout v^T - delta)        (of the capped score; through the cap: * (1 - (S / cap)^2))
    dq = scale * dS k,  dk = scale * dS^T q,  dv = P^T dout,  dbias = dS,  dsink = -sum(p * delta)

A block holds its rows whole, so P and delta come from S as it is rounded here. exp(S - lse) with the kernel's lse is the same
in exact arithmetic; in float32 the two roundings differ by abs(S) / 2^24, which the exponential turns into a factor.
Rows that see no key, whose every S is -inf, have zeros for P and for every gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nki_hf.adapters.call import Call
from nki_hf.adapters.keys import Keys
from nki_hf.kernels.call_tensors import LOWEST

__all__ = ["Gradients", "attention_gradients"]

_DENSE = torch.contiguous_format
_BLOCK_ELEMENTS = 1 << 22  # scores held at once, over batch and heads: the backward's scratch memory
_DEVICE_BLOCKS = 32  # at most so many off the CPU, where a graph repeats the block's operations for each


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """Gradients of one call, each in its tensor's dtype and shape; contiguous.

    Attributes:
      dq, dk, dv: of q, k, v.
      dsink: of the sink, None if there is none.
      dbias: of the bias, None if it was not asked for.
    """

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    dsink: torch.Tensor | None
    dbias: torch.Tensor | None


def attention_gradients(
    call: Call, dout: torch.Tensor, dlse: torch.Tensor | None, *, bias: bool, whole: tuple[torch.Tensor, ...] | None = None
) -> Gradients:
    """The gradients of `call`.

    Args:
      call: the call; its sink has one logit per head.
      dout: the output's gradient, `[batch, seqlen_q, num_heads_q, head_dim_v]`.
      dlse: that of the log-sum-exp (None = zero), `[batch, num_heads_q, seqlen_q]` float32.
      bias: True also computes `dbias`.
      whole: of a call with `row_part`: out, lse, row_shift, row_sum and, if it is known, out_rest of its whole rows.
    """
    q, k, v, keys = call.q, call.k, call.v, call.keys
    batch, num_heads_q, seqlen_q, head_dim = q.shape
    num_heads_kv, seqlen_kv = k.shape[1], k.shape[2]
    group = num_heads_q // num_heads_kv
    scale = head_dim**-0.5 if call.scale is None else call.scale
    k32, v32 = k.float(), v.float()
    dq = torch.empty((batch, num_heads_q, seqlen_q, head_dim), dtype=q.dtype, device=q.device)
    dk, dv = torch.zeros_like(k32, memory_format=_DENSE), torch.zeros_like(v32, memory_format=_DENSE)
    dbias = None
    if bias and keys.bias is not None:
        dbias = torch.zeros_like(keys.bias, dtype=torch.float32, memory_format=_DENSE)
    sink = None if call.sink is None else call.sink.float().view(1, -1, 1, 1)
    dsink = None if call.sink is None else torch.zeros_like(call.sink, dtype=torch.float32, memory_format=_DENSE)
    if dsink is not None and dlse is not None and seqlen_kv == 0:
        dsink = dlse.sum(dim=(0, 2))  # without keys, lse is the sink
    if seqlen_kv == 0:
        dq.zero_()
    rows = max(1, _BLOCK_ELEMENTS // max(1, batch * num_heads_q * seqlen_kv))
    if q.device.type != "cpu":
        rows = max(rows, -(-seqlen_q // _DEVICE_BLOCKS))
    for start in range(0, seqlen_q if seqlen_kv else 0, rows):
        stop = min(start + rows, seqlen_q)
        first, last = keys.seen_by(start, stop, seqlen_kv)
        # [batch, num_heads_kv, group * rows, ...]: the group's heads share k and v, so they are rows of one product.
        block = (batch, num_heads_kv, group, stop - start)
        q_rows = q[:, :, start:stop].float().reshape(batch, num_heads_kv, group * (stop - start), head_dim)
        dout_rows = dout[:, start:stop].transpose(1, 2).float().reshape(*q_rows.shape[:3], v.shape[3])
        k_cols, v_cols = k32[:, :, first:last], v32[:, :, first:last]
        scores = (q_rows @ k_cols.transpose(2, 3)).mul_(scale)
        slope = None
        if call.softcap is not None:
            scores = torch.tanh(scores.div_(call.softcap))
            slope = 1 - scores.square()
            scores = scores.mul_(call.softcap)
        scores = scores.view(batch, num_heads_q, stop - start, last - first)
        scores, visible = _masked(scores, keys, start, stop, first, last)
        if visible is not None:
            scores = scores.masked_fill(~visible, -torch.inf)
        probs, sink_prob = _softmax(scores, sink) if whole is None else (_part(scores, whole[2], whole[3], start), None)
        flat = probs.view(*q_rows.shape[:3], last - first)
        dscores = (dout_rows @ v_cols.transpose(2, 3)).view_as(probs)
        delta = (probs * dscores).sum(-1, keepdim=True)  # [batch, num_heads_q, rows, 1]
        if whole is not None:
            out = sum(each[:, start:stop].float() for each in (whole[0], *whole[4:]))
            delta = (out * dout[:, start:stop]).sum(-1).transpose(1, 2)[..., None]
        dscores = dscores.sub_(delta)
        if dlse is not None:  # after the difference, which is exactly 0 in a row with one key: no rounding of delta joins dlse
            dscores = dscores.add_(dlse[:, :, start:stop, None])
            delta = delta - dlse[:, :, start:stop, None]
        dscores = dscores.mul_(probs)
        if dsink is not None and sink_prob is not None:
            dsink -= (sink_prob * delta).sum(dim=(0, 2, 3))
        dv[:, :, first:last] += flat.transpose(2, 3) @ dout_rows
        if dbias is not None:
            _add_bias_gradient(dbias, dscores, start, stop, first, last)
        dscores = dscores.view_as(flat)
        if slope is not None:
            dscores = dscores.mul_(slope)
        dscores = dscores.mul_(scale)
        dq[:, :, start:stop] = (dscores @ k_cols).view(*block, head_dim).flatten(1, 2).to(q.dtype)
        dk[:, :, first:last] += dscores.transpose(2, 3) @ q_rows
    return Gradients(
        dq=dq,
        dk=dk.to(k.dtype),
        dv=dv.to(v.dtype),
        dsink=None if dsink is None or call.sink is None else dsink.to(call.sink.dtype),
        dbias=None if dbias is None or keys.bias is None else dbias.to(keys.bias.dtype),
    )


def _softmax(scores: torch.Tensor, sink: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The softmax of each row over its keys and the sink, and the sink's share; zeros for rows without both."""
    top = scores.amax(-1, keepdim=True)
    if sink is not None:
        top = torch.maximum(top, sink)
    top = top.masked_fill(top == -torch.inf, 0.0)
    probs = scores.sub_(top).exp_()
    total = probs.sum(-1, keepdim=True)
    share = None
    if sink is not None:
        share = torch.exp(sink - top)
        total = total + share
    total = total.masked_fill(total == 0, 1.0)
    return probs.div_(total), None if share is None else share / total


def _part(scores: torch.Tensor, row_shift: torch.Tensor, row_sum: torch.Tensor, start: int) -> torch.Tensor:
    """Probabilities of some keys of rows whose shift and sum are known; zeros for rows without keys, whose shift is -inf."""
    rows = slice(start, start + scores.shape[2])
    shift = row_shift[:, :, rows, None]
    return scores.sub_(shift.masked_fill(shift == -torch.inf, 0.0)).exp_().div_(row_sum[:, :, rows, None]).clamp_(max=1.0)


def _masked(
    scores: torch.Tensor, keys: Keys, start: int, stop: int, first: int, last: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scores with the additive bias, and which of them count (None = all)."""
    visible = keys.visible((start, stop), (first, last), scores.device)
    if keys.bias is None:
        return scores, visible
    bias = keys.bias[..., first:last]
    bias = bias[:, :, start:stop] if bias.shape[2] > 1 else bias
    if keys.hides:
        bias = bias.to(torch.bool)
        return scores, bias if visible is None else visible & bias
    lowest = bias.float().clamp(min=LOWEST)  # as the kernel gets it
    return scores + torch.where(torch.isneginf(bias), -torch.inf, lowest), visible


def _add_bias_gradient(dbias: torch.Tensor, dscores: torch.Tensor, start: int, stop: int, first: int, last: int) -> None:
    """Add the scores' gradient of one block to the bias's, summed over the axes that the bias shares."""
    rows = slice(start, stop) if dbias.shape[2] > 1 else slice(None)
    target = dbias[:, :, rows, first:last]
    shared = [axis for axis in range(3) if target.shape[axis] == 1 and dscores.shape[axis] != 1]
    target += dscores.sum(dim=shared, keepdim=True) if shared else dscores
