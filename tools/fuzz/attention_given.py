"""The tensors of a random attention problem, and what its masks, bounds and band say in float64."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan

import numpy as np
import torch

from tools.fuzz.attention_problems import Case, refused

__all__ = ["Given", "given_of", "passed_mask"]


@dataclass(frozen=True)
class Given:
    """The tensors of a case, and what they say: `bias` float64 `[batch, heads, seqlen_q, seqlen_kv]`, -inf = hidden.

    `mask` has axes of size 1 where it is the same for all; `passed_mask` makes the call's argument of it.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None
    position_bias: torch.Tensor | None
    lo: torch.Tensor | None
    hi: torch.Tensor | None
    sink: torch.Tensor | None
    weight: torch.Tensor
    bias: torch.Tensor


def given_of(case: Case) -> Given:
    """The tensors of a case."""
    generator = torch.Generator().manual_seed(case["seed"])
    dtype = getattr(torch, case["dtype"])
    heads, rows, keys = case["heads_kv"] * case["group"], case["seqlen_q"], case["seqlen_kv"]
    batch = max(case["batch_q"], case["batch_kv"])

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q = normal(case["batch_q"], heads, rows, case["head_dim"])
    k = normal(case["batch_kv"], case["heads_kv"], keys, case["head_dim"])
    v = normal(case["batch_kv"], case["heads_kv"], keys, case["head_dim_v"])
    if case["values"] == "wide":
        q = q * 10
    elif case["values"] == "outlier_key":
        k[:, :, keys // 3] *= 100
    elif case["values"] == "equal":
        k = k[:, :, :1].repeat(1, 1, keys, 1)
    elif case["values"] == "negative":
        q, k = q.abs(), -k.abs()
    mask, bias = _mask(case, generator, (batch, heads, rows, keys))
    lo, hi, within = _bounds(case, generator, (batch, heads, rows, keys))
    bias = bias.masked_fill(~_band(case) | ~within, -inf)
    position_bias = None
    if case["position_bias"] is not None:  # drawn apart, so that the rest of a seed's tensors does not depend on it
        apart = torch.Generator().manual_seed(case["seed"] + 1)
        axes = (1 - case["mask_axes"][0], heads > 1, rows > 1)
        own = [size if has else 1 for size, has in zip((batch, heads, rows), axes, strict=True)]
        position_bias = torch.randn((*own, keys), generator=apart, dtype=torch.float64).to(dtype)
        bias = bias + position_bias.double()
    sink = None
    if case["sink"] is not None:
        sink = normal(batch, heads, rows, 1) if case["sink_rows"] else normal(heads)
        special = {"minus_inf": -inf, "inf": inf, "nan": nan, "lowest": -3.4e38}.get(case["sink"])
        if special is not None:
            sink.view(-1)[0] = special
        sink = sink.float()
    laid = [_laid_out(each.to(dtype), case["layout"]) for each in (q, k, v)]
    return Given(*laid, mask, position_bias, lo, hi, sink, normal(batch, heads, rows, case["head_dim_v"]), bias)


def passed_mask(case: Case, mask: torch.Tensor | None) -> torch.Tensor | None:
    """The mask as the call gets it."""
    if mask is None or case["mask_form"] != "expanded":
        return mask
    return mask.expand(max(case["batch_q"], case["batch_kv"]), case["heads_kv"] * case["group"], case["seqlen_q"], -1)


def _mask(case: Case, generator: torch.Generator, shape: tuple[int, ...]) -> tuple[torch.Tensor | None, torch.Tensor]:
    bias = torch.zeros(shape, dtype=torch.float64)
    kind = case["mask"]
    if kind is None:
        return None, bias
    own = [size if has else 1 for size, has in zip(shape[:3], case["mask_axes"], strict=True)]
    while case["mask_form"] == "short" and own and own[0] == 1:
        del own[0]
    keys = 1 if case["mask_form"] == "one_key" else shape[3]
    seen = torch.rand((*own, keys), generator=generator) < 0.7
    if kind == "padding":
        seen = torch.arange(keys).expand(seen.shape) < torch.randint(0, keys + 1, (*own, 1), generator=generator)
    added = torch.randn(seen.shape, generator=generator, dtype=torch.float32)
    if kind in ("bool", "padding"):
        return seen, bias.masked_fill(~seen, -inf)
    if kind in ("lowest", "minus_inf"):
        low = torch.finfo(torch.float32).min if kind == "lowest" else -inf
        mask: torch.Tensor = torch.zeros(seen.shape, dtype=torch.float32).masked_fill(~seen, low)
        # One that has a gradient is what it holds: the scores beside float32's lowest number vanish.
        return mask, bias + mask.double() if case["mask_learns"] and case["gradients"] else bias.masked_fill(~seen, -inf)
    if kind == "int64":
        mask = (added * 3).to(torch.int64)
    else:
        mask = added.double().float().double() if kind == "float64" else added.masked_fill(~seen, -inf)
        if kind in ("nan", "inf"):
            mask.view(-1)[int(torch.randint(0, mask.numel(), (1,), generator=generator))] = nan if kind == "nan" else inf
    return mask, bias + mask.double()


def _bounds(
    case: Case, generator: torch.Generator, shape: tuple[int, ...]
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor]:
    if case["bounds"] is None:
        return None, None, torch.ones(1, dtype=torch.bool)
    limits = torch.iinfo(getattr(torch, case["bounds"]))
    rows = (shape[0] if case["mask_axes"][0] else 1, shape[2])
    ends = []
    for extreme in (limits.min, limits.max):
        drawn = torch.randint(0, min(shape[3], limits.max) + 1, rows, generator=generator).tolist()
        far = (torch.rand(rows, generator=generator) < 0.3).tolist()
        ends.append(
            [[extreme if is_far else key for key, is_far in zip(*each, strict=True)] for each in zip(drawn, far, strict=True)]
        )
    seen = [
        [[lo <= key < hi for key in range(shape[3])] for lo, hi in zip(*row, strict=True)] for row in zip(*ends, strict=True)
    ]
    lo, hi = (torch.from_numpy(np.array(each, dtype=case["bounds"])) for each in ends)
    return lo, hi, torch.tensor(seen)[:, None]


def _band(case: Case) -> torch.Tensor:
    """Bool `[seqlen_q, seqlen_kv]`, in Python's integers of any size."""
    rows, keys = case["seqlen_q"], case["seqlen_kv"]
    offset = keys - rows if case["q_offset"] is None else case["q_offset"]
    window, ahead = case["window"], 1 if case["causal"] else case["ahead"]
    if refused(case):
        return torch.ones(rows, keys, dtype=torch.bool)
    return torch.tensor(
        [
            [
                (window is None or key > offset + row - window) and (ahead is None or key < offset + row + ahead)
                for key in range(keys)
            ]
            for row in range(rows)
        ]
    )


def _laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values at other strides."""
    if layout == "transposed":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "sliced":
        wide = torch.full((*tensor.shape[:3], 2 * tensor.shape[3] + 1), nan, dtype=tensor.dtype)
        wide[..., 1::2] = tensor
        return wide[..., 1::2]
    if layout == "expanded" and tensor.shape[1] > 1:
        tensor[:] = tensor[:, :1].clone()
        return tensor[:, :1].expand(tensor.shape)
    return tensor.contiguous()
