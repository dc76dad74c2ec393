"""Attention of packed sequences in float64, by the formulas of FlashAttention's own documentation."""

import torch


def visible(seqlen_q, seqlen_kv, *, causal=False, window=(-1, -1)):
    """Bool `[seqlen_q, seqlen_kv]`: row i sees keys `p - left` to `p + right` with `p = i + seqlen_kv - seqlen_q`."""
    place = torch.arange(seqlen_q)[:, None] + seqlen_kv - seqlen_q
    key = torch.arange(seqlen_kv)[None]
    seen = torch.ones((seqlen_q, seqlen_kv), dtype=torch.bool)
    if window[0] >= 0:
        seen &= key >= place - window[0]
    if causal or window[1] >= 0:
        seen &= key <= place + (0 if causal else window[1])
    return seen


def attention(q, k, v, seen, *, softcap=0.0, sink=None, scale=None):
    """Out `[rows, num_heads_q, head_dim]` and lse `[num_heads_q, rows]`; zeros and -inf for rows that see nothing."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * (q.shape[2] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen, -torch.inf)
    lse = torch.logsumexp(scores, -1)
    if sink is not None:
        lse = torch.logaddexp(lse, sink.double()[:, None].expand_as(lse))
    probs = torch.exp(scores - lse[..., None]).nan_to_num(0.0)
    return torch.einsum("hqk,khd->qhd", probs, v), lse


def packed(q, k, v, lengths_q, lengths_kv, **options):
    """The same of sequences one after the other."""
    mask = {name: options.pop(name) for name in ("causal", "window") if name in options}
    outs, lses = [], []
    for each in zip(q.split(lengths_q), k.split(lengths_kv), v.split(lengths_kv), strict=True):
        out, lse = attention(*each, visible(len(each[0]), len(each[1]), **mask), **options)
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses, 1)


def starts(lengths):
    """First row of each sequence and the total, int32."""
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
