"""Merge: the attention of one query over parts of its keys, from the results over each part."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nki_hf.adapters.row_parts import RowStatistics, join, of_lse

__all__ = ["merge"]


def merge(
    outs: Sequence[Tensor],
    lses: Sequence[Tensor],
    *,
    row_shifts: Sequence[Tensor] | None = None,
    row_sums: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Output and lse over all keys, from those of disjoint parts of the keys (split-K, sharded caches, ring attention).

        lse = log(sum of exp(lses)),  out = sum of exp(lses - lse) * outs

    Computed in float32; differentiable; the weights of the parts add up to 1 at any size of the scores. From lses alone they
    are as right as those: a float32 has steps of 0.06 at 1e6, of 8 at 1e8. With `row_shifts` and `row_sums`, which
    `torch.ops.nki_hf.attention_with_statistics` returns beside lse, they have no such steps. A sink belongs to one part only.

    Args:
      outs: outputs `[batch, num_heads_q, seqlen_q, head_dim_v]`, as `nki_hf.attention` returns them, all of one dtype.
      lses: their lse `[batch, num_heads_q, seqlen_q]`, natural log; -inf where a part has no key that the row sees.
      row_shifts, row_sums: the largest score of each row of each part and the sum relative to it, like `lses`, with
        `lse = row_shift + log(row_sum)`; gradients go through lses only. Both or neither.

    Returns:
      out in the dtype of `outs` and lse in float32; zeros and -inf for rows that see no key in any part.

    Raises:
      ValueError: no parts, unequal numbers of them, or shapes or dtypes that differ; row_shifts without row_sums.
    """
    if not outs or len(outs) != len(lses):
        raise ValueError(f"len(outs)={len(outs)} and len(lses)={len(lses)}: one lse for each output, and at least one.")
    for name, given in (("row_shifts", row_shifts), ("row_sums", row_sums)):
        if (given is None) != (row_shifts is None and row_sums is None):
            raise ValueError(f"{name}=None: row_shifts and row_sums say one thing together, so pass both or neither.")
        if given is not None and [each.shape for each in given] != [lse.shape for lse in lses]:
            shapes = [list(each.shape) for each in given]
            raise ValueError(f"the shapes of {name} are {shapes}: they must be those of lses, {[list(x.shape) for x in lses]}.")
    for number, (out, lse) in enumerate(zip(outs, lses, strict=True)):
        if out.shape != outs[0].shape or out.dtype != outs[0].dtype:
            raise ValueError(
                f"outs[{number}] is {list(out.shape)} {out.dtype}: it must be {list(outs[0].shape)} {outs[0].dtype} as outs[0]."
            )
        if lse.shape != out.shape[:-1]:
            raise ValueError(
                f"lses[{number}] is {list(lse.shape)}: it must be {list(out.shape[:-1])}, one for each row of outs."
            )
    statistics = of_lse(torch.stack([lse.float() for lse in lses]))
    if row_shifts is not None and row_sums is not None:
        shift, total = (torch.stack([each.detach().float() for each in given]) for given in (row_shifts, row_sums))
        statistics = RowStatistics(statistics.lse, shift, total)
    shares, whole = join(statistics, dim=0)
    merged = torch.zeros_like(outs[0], dtype=torch.float32)
    for share, out in zip(shares, outs, strict=True):
        merged = merged + share[..., None] * out.float()
    return merged.to(outs[0].dtype), whole.lse
