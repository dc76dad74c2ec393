"""Merge: the attention of one query over parts of its keys, from the results over each part."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["merge"]


def merge(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Output and lse over all keys, from those of disjoint parts of the keys (split-K, sharded caches, ring attention).

        lse = log(sum of exp(lses)),  out = sum of exp(lses - lse) * outs

    Computed in float32; differentiable. A sink belongs to one part only.

    Args:
      outs: outputs `[batch, num_heads_q, seqlen_q, head_dim_v]`, as `nki_hf.attention` returns them, all of one dtype.
      lses: their lse `[batch, num_heads_q, seqlen_q]`, natural log; -inf where a part has no key that the row sees.

    Returns:
      out in the dtype of `outs` and lse in float32; zeros and -inf for rows that see no key in any part.

    Raises:
      ValueError: no parts, unequal numbers of them, or shapes or dtypes that differ.
    """
    if not outs or len(outs) != len(lses):
        raise ValueError(f"len(outs)={len(outs)} and len(lses)={len(lses)}: one lse for each output, and at least one.")
    for number, (out, lse) in enumerate(zip(outs, lses, strict=True)):
        if out.shape != outs[0].shape or out.dtype != outs[0].dtype:
            raise ValueError(
                f"outs[{number}] is {list(out.shape)} {out.dtype}: it must be {list(outs[0].shape)} {outs[0].dtype} as outs[0]."
            )
        if lse.shape != out.shape[:-1]:
            raise ValueError(
                f"lses[{number}] is {list(lse.shape)}: it must be {list(out.shape[:-1])}, one for each row of outs."
            )
    stacked = torch.stack([lse.float() for lse in lses])
    total = torch.logsumexp(stacked, dim=0)
    # A row without keys has lse -inf everywhere: relative to 0 its weights are 0, not NaN.
    weights = torch.exp(stacked - torch.where(torch.isneginf(total), 0.0, total))
    merged = torch.zeros_like(outs[0], dtype=torch.float32)
    for weight, out in zip(weights, outs, strict=True):
        merged = merged + weight[..., None] * out.float()
    return merged.to(outs[0].dtype), total
