"""Front doors of random attention problems: functions to out `[batch, heads, seqlen_q, head_dim_v]` and lse, or None."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch

import nki_hf
from nki_hf.adapters.transformers import nki_attention
from nki_hf.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from tools.fuzz.attention_given import Given, passed_mask
from tools.fuzz.attention_packs import starts
from tools.fuzz.attention_problems import Case

__all__ = ["FRONTS"]

Results = tuple[torch.Tensor, torch.Tensor | None]


class _Layer(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """What Transformers' function reads of an attention layer."""

    def __init__(self, *, is_causal: bool, training: bool = False, indexer: Any = None) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.indexer = indexer
        self.train(training)


class _Indexer:
    """A model's own: within the mask that it is given, the keys of the blocks that each row names; negative = none."""

    def __init__(self, size: int) -> None:
        self.size = size

    def build_block_mask(self, chosen: Any, mask: Any, seqlen_kv: int, dtype: Any, device: Any, positions: Any) -> Any:
        block = torch.arange(seqlen_kv, device=device) // self.size
        return mask & (chosen[..., None] == block).any(-2)


def _attention(case: Case, given: Given, leaves: dict[str, Any], scale: Any) -> Results:
    whole = {name: _wrapped(case[name], case["whole"]) for name in ("window", "ahead", "q_offset")}
    found = nki_hf.attention(
        leaves["q"],
        leaves["k"],
        leaves["v"],
        passed_mask(case, leaves["mask"]),
        causal=case["causal"],
        lo=given.lo,
        hi=given.hi,
        scale=scale,
        softcap=case["softcap"],
        sink=leaves["sink"],
        return_lse=case["lse"],
        **whole,
    )
    return found if isinstance(found, tuple) else (found, None)


def _transformers(case: Case, given: Given, leaves: dict[str, Any], scale: Any) -> Results:
    by_argument = case["causal_by"] == "argument"
    options: dict[str, Any] = {"scaling": scale, "softcap": case["softcap"], "use_cache": True}
    options[case["sink_name"]] = leaves["sink"]
    if by_argument:
        options["is_causal"] = case["causal"]
    further = {"position_bias": leaves["position_bias"], "sliding_window": case["hint"]}
    further["indices"] = given.indices if case["chosen_blocks"] is None else None
    options.update({name: value for name, value in further.items() if value is not None})
    if case["lengths"] is not None:
        cu_q, cu_kv = starts(case)
        options.update(cu_seq_lens_q=cu_q, cu_seq_lens_k=cu_kv)
    if case["dropout"] is not None:
        options["dropout"] = case["dropout"]
    indexer = None
    if case["chosen_blocks"] is not None:
        options["block_indices"], indexer = given.indices, _Indexer(case["chosen_blocks"][0])
    layer = _Layer(is_causal=case["causal"] != by_argument, training=case["dropout"] is not None, indexer=indexer)
    out, _ = nki_attention(layer, leaves["q"], leaves["k"], leaves["v"], passed_mask(case, leaves["mask"]), **options)
    return out.transpose(1, 2), None


# ---- FlashAttention's functions -------------------------------------------------------------------------------------


def _flash(case: Case, given: Given, leaves: dict[str, Any], scale: Any) -> Results:
    q, k, v = (leaves[name].transpose(1, 2) for name in ("q", "k", "v"))
    found = flash_attn_func(q, k, v, return_attn_probs=case["lse"], **_flash_options(case, leaves, scale))
    out, lse = found[:2] if case["lse"] else (found, None)
    return out.transpose(1, 2), lse


def _varlen(case: Case, given: Given, leaves: dict[str, Any], scale: Any) -> Results:
    """Rows behind the last sequence are none's: q, k and v may be longer than the running sums say."""
    q, k, v = (leaves[name][0].transpose(0, 1) for name in ("q", "k", "v"))
    cu_q, cu_kv = starts(case)
    options = _flash_options(case, leaves, scale)
    if case["pages"] is not None:
        k, v = (given.extra["pages"](each) for each in (k, v))
        options["block_table"] = given.extra["table"]
    longest = [max(n for n, _ in case["lengths"]), max(n for _, n in case["lengths"])]
    found = flash_attn_varlen_func(q, k, v, cu_q, cu_kv, *longest, return_attn_probs=case["lse"], **options)
    out, lse = found[:2] if case["lse"] else (found, None)
    return out.transpose(0, 1)[None], None if lse is None else lse[None]


def _kvcache(case: Case, given: Given, leaves: dict[str, Any], scale: Any) -> Results:
    """The caches after the call must hold what they held and the new keys."""
    extra = given.extra
    caches = [each.clone() for each in extra["caches"]]
    options = _flash_options(case, leaves, scale)
    if case["lse"]:
        options["return_softmax_lse"] = True
    found = flash_attn_with_kvcache(extra["q"], *caches, **extra["arguments"], **options)
    for name, cache, wanted in zip(("k_cache", "v_cache"), caches, extra["after"], strict=True):
        if not torch.equal(cache.view(torch.uint8), wanted.view(torch.uint8)):
            raise AssertionError(f"{name} does not hold what it should after the call")
    out, lse = found if case["lse"] else (found, None)
    return out.transpose(1, 2), lse


def _flash_options(case: Case, leaves: dict[str, Any], scale: Any) -> dict[str, Any]:
    window, ahead = case["window"], case["ahead"]
    dropout = {} if case["dropout"] is None else {"dropout_p": case["dropout"]}
    return {
        **dropout,
        "softmax_scale": scale,
        "causal": case["causal"],
        "window_size": (-1 if window is None else window - 1, -1 if ahead is None else ahead - 1),
        "softcap": case["softcap"] or 0.0,
        "s_aux": leaves["sink"],
    }


# ---- parts of the keys ----------------------------------------------------------------------------------------------


def _merge(case: Case, given: Given, leaves: dict[str, Any], scale: Any) -> Results:
    """Attention over parts of the keys, joined; over all of them where a part has no lse."""
    rows, keys = case["seqlen_q"], case["seqlen_kv"]
    offset = keys - rows if case["q_offset"] is None else case["q_offset"]
    edges = [0, *case["parts"], keys]
    mask = passed_mask(case, leaves["mask"])
    outs, lses = [], []
    for number, (first, last) in enumerate(pairwise(edges)):
        part = {**case, "q_offset": offset - first, "lse": True}
        shared = mask is None or mask.shape[-1] != keys
        cut = {
            "k": leaves["k"][:, :, first:last],
            "v": leaves["v"][:, :, first:last],
            "mask": mask if shared else mask[..., first:last],
            "sink": leaves["sink"] if number == len(edges) // 2 - 1 else None,  # of one part only
        }
        out, lse = _attention({**part, "mask_form": "plain"}, given, {**leaves, **cut}, scale)
        if lse is None:
            return _attention({**case, "lse": True}, given, leaves, scale)
        outs.append(out)
        lses.append(lse)
    return nki_hf.merge(outs, lses)


FRONTS: dict[str, Callable[[Case, Given, dict[str, Any], Any], Results]] = {
    "attention": _attention,
    "transformers": _transformers,
    "flash": _flash,
    "varlen": _varlen,
    "kvcache": _kvcache,
    "merge": _merge,
}


def _wrapped(value: Any, how: str) -> Any:
    if type(value) is not int or not -(2**63) <= value < 2**63 or how == "int":
        return value
    return np.int64(value) if how == "numpy" else torch.tensor([value])
