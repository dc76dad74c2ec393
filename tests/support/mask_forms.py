"""Masks as tests of the adapter make them, and what `Keys` say of them."""

import torch


def q_of(batch=1, heads=2, seqlen_q=7):
    return torch.zeros(batch, heads, seqlen_q, 4)


def causal_mask(seqlen_q, seqlen_kv, q_offset=None):
    rows = torch.arange(seqlen_q)[:, None] + (seqlen_kv - seqlen_q if q_offset is None else q_offset)
    return (torch.arange(seqlen_kv) <= rows)[None, None]


def shown(keys, seqlen_q, seqlen_kv):
    mask = keys.dense(seqlen_q, seqlen_kv, torch.device("cpu"))
    return torch.ones(1, 1, seqlen_q, seqlen_kv, dtype=torch.bool) if mask is None else mask


def says(keys, mask, seqlen_kv):
    """True if `keys` hides exactly what the bool mask hides."""
    mask = mask[..., :seqlen_kv]
    seqlen_q = mask.shape[2]
    return bool((shown(keys, seqlen_q, seqlen_kv) == mask).all())
