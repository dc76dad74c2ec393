"""The tensors of a random attention problem, and what its masks, bounds and band say in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, nan
from typing import Any

import numpy as np
import torch

from tools.fuzz.attention_forms import RUNS, UNREAD
from tools.fuzz.attention_packs import cached, paged, seen_in_pack
from tools.fuzz.attention_problems import Case, refused

__all__ = ["Given", "given_of", "passed_mask"]


@dataclass(frozen=True)
class Given:
    """The tensors of a case, and what they say: `bias` float64 `[batch, heads, seqlen_q, seqlen_kv]`, -inf = hidden.

    `mask` has axes of size 1 where it is the same for all; `passed_mask` makes the call's argument of it. `indices`: of keys,
    negative = none. `extra`: what only the fronts of attention_packs.py take.
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
    indices: torch.Tensor | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def given_of(case: Case) -> Given:
    """The tensors of a case."""
    generator = torch.Generator().manual_seed(case["seed"])
    dtype = getattr(torch, case["dtype"])
    heads, rows, keys = case["heads_kv"] * case["group"], case["seqlen_q"], case["seqlen_kv"]
    batch = max(case["batch_q"], case["batch_kv"]) if case["batch_q"] else 0

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q = normal(case["batch_q"], heads, rows, case["head_dim"])
    kv_dtype = dtype if case["kv_dtype"] is None else getattr(torch, case["kv_dtype"])
    k = normal(case["batch_kv"], case["heads_kv"], keys, case["head_dim"])
    v = normal(case["batch_kv"], case["heads_kv"], keys, case["head_dim_v"])
    if case["values"] == "wide":
        q = q * 10
    elif case["values"] == "outlier_key":
        k[:, :, keys // 3 : keys // 3 + 1] *= 100
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
        if case["bias_spare"]:  # what lies behind the last key is left out
            position_bias = torch.nn.functional.pad(position_bias, (0, case["bias_spare"]), value=nan)
    indices, chosen = _indices(case, (batch, rows, keys))
    bias = bias.masked_fill(~chosen, -inf)
    sink = None
    if case["sink"] is not None:
        own = [size if has else 1 for size, has in zip((batch, heads, rows), case["sink_axes"], strict=True)]
        sink = normal(*own, 1) if case["sink_rows"] else normal(heads)
        special = {"minus_inf": -inf, "inf": inf, "nan": nan, "lowest": -3.4e38}.get(case["sink"])
        if special is not None:
            sink.view(-1)[:1] = special
        sink = sink.float()
    laid = [_laid_out(each.to(kind), case["layout"]) for each, kind in ((q, dtype), (k, kv_dtype), (v, kv_dtype))]
    extra: dict[str, Any] = {}
    if case["cache"] is not None:
        extra = cached(case, generator, *laid)
        laid[:2] = extra["meant"]
        bias = torch.zeros_like(bias).masked_fill(~extra["seen"], -inf)
    elif case["pages"] is not None:
        extra = paged(case, generator)
    return Given(*laid, mask, position_bias, lo, hi, sink, normal(batch, heads, rows, case["head_dim_v"]), bias, indices, extra)


def passed_mask(case: Case, mask: torch.Tensor | None) -> torch.Tensor | None:
    """The mask as the call gets it."""
    if mask is None or case["mask_form"] != "expanded":
        return mask
    batch = max(case["batch_q"], case["batch_kv"]) if case["batch_q"] else 0
    return mask.expand(batch, case["heads_kv"] * case["group"], case["seqlen_q"], -1)


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
    if kind in RUNS:
        seen = _runs(kind, generator, seen.shape).reshape(seen.shape)
        if case["mask_dtype"] is None:
            return _laid_mask(seen, case), bias.masked_fill(~seen, -inf)
        hiding = getattr(torch, case["mask_dtype"])
        mask = torch.zeros(seen.shape, dtype=hiding).masked_fill(~seen, torch.finfo(hiding).min)
        # Where values cannot be read it is added, and a row of nothing else has the mean of all values, as eager's.
        return _laid_mask(mask, case), bias + mask.double() if case["way"] in UNREAD else bias.masked_fill(~seen, -inf)
    if kind in ("two_values", "low"):  # added: rows of nothing else see all keys
        low = -1e4 if kind == "low" else -5.0
        mask = torch.zeros(seen.shape, dtype=torch.float32).masked_fill(~seen, low)
        return _laid_mask(mask, case), bias + mask.double()
    if kind == "padding":
        seen = torch.arange(keys).expand(seen.shape) < torch.randint(0, keys + 1, (*own, 1), generator=generator)
    added = torch.randn(seen.shape, generator=generator, dtype=torch.float32)
    if kind in ("bool", "padding"):
        return _laid_mask(seen, case), bias.masked_fill(~seen, -inf)
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
            place = int(torch.randint(0, max(1, mask.numel()), (1,), generator=generator))
            mask.view(-1)[place : place + 1] = nan if kind == "nan" else inf
    return _laid_mask(mask, case), bias + mask.double()


def _runs(kind: str, generator: torch.Generator, shape: torch.Size) -> torch.Tensor:
    """Bool of that shape, with an axis of rows, True = seen, of which each row is one run of keys."""
    rows, keys = shape[-2] if len(shape) > 1 else 1, shape[-1]
    row, key = torch.arange(rows)[:, None], torch.arange(keys)

    def drawn(least: int, most: int, *axes: int) -> torch.Tensor:
        return torch.randint(least, max(most, least + 1), (*(axes or (1,)),), generator=generator)

    if kind == "band":
        place = row + (int(drawn(-10, 10)) if bool(drawn(0, 2)) else keys - rows)
        back, ahead = int(drawn(0, 40)), int(drawn(0, 20))
        seen = (key > place - back if back else key >= 0) & (key < place + ahead + 1 if ahead != 7 else key >= 0)
        return seen.expand((*shape[:-2], rows, keys)).contiguous()
    leading = shape[:-2]
    if kind == "runs":
        ends = drawn(0, keys + 1, *leading, rows, 2).sort(-1).values
        return (key >= ends[..., :1]) & (key < ends[..., 1:])
    if kind == "left_padding":
        first = drawn(0, keys + 1, *leading, 1, 1)
        return (key >= first) & (key <= row + keys - rows)
    begins = torch.rand((*leading, max(rows, keys)), generator=generator) < 0.1
    block = begins.cumsum(-1)
    seen = (block[..., :rows, None] == block[..., None, :keys]) & (key <= row)
    window = int(drawn(0, 3)) * 9
    return seen & (key > row - window) if window else seen


def _laid_mask(mask: torch.Tensor, case: Case) -> torch.Tensor:
    """The mask at other strides."""
    if case["mask_form"] == "strided":
        wide = torch.full((*mask.shape[:-1], 3 * mask.shape[-1] + 2), True).to(mask.dtype)
        wide[..., 2::3] = mask
        return wide[..., 2::3]
    if case["mask_form"] == "turned" and mask.dim() > 1:
        return mask.transpose(-1, -2).contiguous().transpose(-1, -2)
    return mask


def _indices(case: Case, shape: tuple[int, int, int]) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Of `chosen_keys`: int64 `[batch, rows, count]`, and bool `[batch, 1, rows, keys]`, True = named; of `chosen_blocks` the
    same with an axis of heads `[batch, 1, rows, count]`.
    """
    if case["chosen_blocks"] is not None:
        apart = torch.Generator().manual_seed(case["seed"] + 2)
        batch, rows, keys = shape
        size, count = case["chosen_blocks"]
        chosen = torch.randint(-1, -(-keys // size), (batch, 1, rows, count), generator=apart)
        named = (chosen[..., None] == torch.arange(keys) // size).any(-2)
        return chosen, named
    if case["chosen_keys"] is None:
        return None, torch.ones(1, dtype=torch.bool)
    apart = torch.Generator().manual_seed(case["seed"] + 2)
    batch, rows, keys = shape
    indices = torch.randint(-2, keys, (batch, rows, case["chosen_keys"]), generator=apart)
    seen = (indices[..., None] == torch.arange(keys)).any(-2)[:, None]
    if case["mask"] is None and case["causal"]:
        seen = seen & (torch.arange(keys) <= torch.arange(rows)[:, None] + keys - rows)
    return indices, seen


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
    lo, hi = (torch.from_numpy(np.array(each, dtype=case["bounds"]).reshape(rows)) for each in ends)
    return lo, hi, torch.tensor(seen, dtype=torch.bool).reshape(rows[0], 1, rows[1], shape[3])


def _band(case: Case) -> torch.Tensor:
    """Bool `[seqlen_q, seqlen_kv]`, in Python's integers of any size."""
    if case["lengths"] is not None:
        return seen_in_pack(case)
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
        ],
        dtype=torch.bool,
    ).reshape(rows, keys)


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
