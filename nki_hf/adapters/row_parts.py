"""Rows whose softmax was computed in parts: of their keys, or of their keys and a sink. What share each part has.

A part's share is exp(lse) over the sum of those of all parts. At scores of 1e6 lse has steps of 0.06, at 1e8 of 8, as every
float32: shares would be off by such factors, outputs as well as gradients. row_shift and row_sum (`call_tensors.TENSORS`)
say the same without the steps. Only lse has a gradient, so shares have the values of the two and the gradient of lse.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["RowStatistics", "join", "of_lse"]


class RowStatistics(NamedTuple):
    """Of each row, or of each part of each row, float32 in one shape.

    Attributes:
      lse: log of the sum of exp of its scores; -inf if there are none.
      row_shift, row_sum: the same as `lse = row_shift + log(row_sum)`, without gradients.
    """

    lse: torch.Tensor
    row_shift: torch.Tensor
    row_sum: torch.Tensor


def of_lse(lse: torch.Tensor) -> RowStatistics:
    """Parts of which only lse is known, whose steps then remain; or logits, each of which is the lse of itself."""
    lse = lse.float()
    return RowStatistics(lse, lse.detach(), torch.ones_like(lse))


def join(parts: RowStatistics, dim: int) -> tuple[torch.Tensor, RowStatistics]:
    """Shares of the parts along axis `dim`, which add up to 1, and the statistics of whole rows, without that axis.

    A row without scores has shares of 0 and an lse of -inf.
    """
    lse, shift, total = parts
    top = shift.amax(dim, keepdim=True)
    finite = top.masked_fill(top == -torch.inf, 0.0)
    known = lse.masked_fill(lse == -torch.inf, 0.0)  # no gradient of the difference of two infinities
    weights = total * torch.exp(shift - finite + (known - known.detach()))
    whole = weights.sum(dim, keepdim=True)
    empty = whole == 0
    whole = whole.masked_fill(empty, 1.0)
    joined = (finite + torch.log(whole)).masked_fill(empty, -torch.inf)
    return weights / whole, RowStatistics(joined.squeeze(dim), top.squeeze(dim), whole.detach().squeeze(dim))
