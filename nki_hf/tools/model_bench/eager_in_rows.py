"""Eager attention computed a block of query rows at a time: the reference at lengths whose scores would not fit memory.

Row for row the same arithmetic as Transformers' eager attention (scores in the model's dtype, additive mask, softmax in
at least float32, probabilities cast back), so the outputs differ by the matmul's blocking only.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["NAME", "eager_in_rows", "register"]

NAME = "eager_in_rows"
BLOCK_BYTES = 512 * 2**20
"""Scores of one block of rows, all heads, in the softmax's dtype."""


def eager_in_rows(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Output `[batch, seqlen_q, num_heads_q, head_dim_v]` and None; the signature is Transformers'."""
    batch, heads, seqlen_q, _width = query.shape
    group = heads // key.shape[1]
    keys = key.repeat_interleave(group, dim=1).transpose(2, 3)
    values = value.repeat_interleave(group, dim=1)
    softmax_dtype = torch.promote_types(query.dtype, torch.float32)
    rows = max(1, BLOCK_BYTES // (batch * heads * key.shape[2] * softmax_dtype.itemsize))
    out = query.new_empty(batch, heads, seqlen_q, value.shape[3])
    for start in range(0, seqlen_q, rows):
        block = slice(start, start + rows)
        scores = torch.matmul(query[:, :, block], keys) * scaling
        if attention_mask is not None:
            scores = scores + attention_mask[:, :, block]
        probs = torch.softmax(scores, dim=-1, dtype=softmax_dtype).to(query.dtype)
        out[:, :, block] = torch.matmul(probs, values)
    return out.transpose(1, 2).contiguous(), None


def register() -> str:
    """Make the name known to Transformers, with eager's mask; returns it. Idempotent."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, eager_in_rows)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    return NAME
