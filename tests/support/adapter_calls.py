"""Calls of the adapter by Transformers' signature: a layer, its tensors, eager and the comparison with it."""

from types import SimpleNamespace

import torch

__all__ = ["check", "eager", "layer", "tensors", "triangle"]


def layer(**attributes):
    return SimpleNamespace(training=False, **attributes)


def tensors(batch=2, heads=4, heads_kv=2, seqlen_q=6, seqlen_kv=6, head_dim=8, head_dim_v=8):
    generator = torch.Generator().manual_seed(0)
    shapes = (
        (batch, heads, seqlen_q, head_dim),
        (batch, heads_kv, seqlen_kv, head_dim),
        (batch, heads_kv, seqlen_kv, head_dim_v),
    )
    return [torch.randn(shape, generator=generator) for shape in shapes]


def eager(query, key, value, mask=None, scaling=None, softcap=None, sink=None, bias=None):
    """Eager's formulas in float64, `[batch, seqlen_q, heads, head_dim_v]`; masks are float or bool, sinks `[..., 1]`."""
    query, key, value = (tensor.double() for tensor in (query, key, value))
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.transpose(2, 3) * (query.shape[3] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    if sink is not None:
        scores = torch.cat([scores, sink.double().expand(*scores.shape[:3], 1)], -1)
    return (torch.softmax(scores, -1)[..., : key.shape[2]] @ value).transpose(1, 2)


def triangle(seqlen_q, seqlen_kv):
    return (torch.arange(seqlen_kv) <= torch.arange(seqlen_q)[:, None] + seqlen_kv - seqlen_q)[None, None]


def check(out, expected, tolerance=2e-6):
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
