"""Transformers' attention function: its signature and keyword arguments in, one `Call` out. Names change here, once."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers.configuration_utils import PretrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from nki_hf.adapters.attend import attend
from nki_hf.adapters.call import Call, same_batch
from nki_hf.adapters.decision import no_kernel
from nki_hf.adapters.device_mask import DeviceMask
from nki_hf.adapters.flash_checks import check_index, check_starts, refuse
from nki_hf.adapters.hub_kernel import serving
from nki_hf.adapters.keys import Keys
from nki_hf.adapters.mask_fit import as_bias
from nki_hf.adapters.masks import read_mask, restrict_to_indices, triangle, with_position_bias
from nki_hf.adapters.model_arguments import MEANINGFUL, PASSED_ALONG
from nki_hf.adapters.model_classes import declines_sdpa
from nki_hf.adapters.packed.mixed import warn_if_mixed
from nki_hf.adapters.packed.segments import first_rows, segments_of, segments_of_bounds, worth
from nki_hf.adapters.recorded_weights import sink_outside, weights_recorded
from nki_hf.adapters.scalars import as_float, learned_scale
from nki_hf.errors import Reason, UnsupportedProblem

__all__ = ["HARMLESS", "HONOURED", "call_of", "layer_name", "nki_attention"]

HONOURED = {
    "scaling": "the softmax scale; None = head_dim ** -0.5",
    "dropout": "fallback to torch when above 0 in training",
    "is_causal": "what a missing mask means; beats module.is_causal",
    "softcap": "cap of the scaled scores, before the mask",
    "s_aux": "attention sinks, one logit per query head",
    "sinks": "the same under another name; also one logit per row",
    "position_bias": "added to the scores besides the mask",
    "sliding_window": "informational: the mask holds the window; without a mask every key is seen, as in eager",
    "indices": "sparse attention: the keys each query may see",
    "block_indices": "sparse attention by blocks of keys",
    "cu_seq_lens_q": "packed sequences: first row of each; alone it stands for the keys too, if both are equally long",
    "cu_seq_lens_k": "packed sequences: first key of each; alone it stands for the rows too, if both are equally long",
    "output_attentions": "fallback to eager, which returns the weights",
}
"""Keyword arguments with meaning, and what becomes of each."""

HARMLESS = PASSED_ALONG | {"num_logits_to_keep", "rope_deltas"}
"""Keyword arguments that models pass along and that do not concern the attention: accepted and ignored."""

_CUT_MASKS = ": key.shape[-2]]" in inspect.getsource(sdpa_attention_forward)
"""True if this release's own functions leave out what a mask holds beyond the keys, as those before Transformers 5 do."""

_HEAD_MASKS = {name for name in MEANINGFUL if name.endswith("head_mask")}


def nki_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | DeviceMask | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The function behind `attn_implementation="nki"`.

    Args:
      module: the attention layer; its `training`, `is_causal` and `layer_idx` are read, where it has them.
      query: `[batch or 1, num_heads_q, seqlen_q, head_dim]`.
      key: `[batch or 1, num_heads_kv, seqlen_kv, head_dim]`.
      value: `[batch or 1, num_heads_kv, seqlen_kv, head_dim_v]`.
      attention_mask: what `mask_function.nki_mask` gave; or any mask that `masks.read_mask` takes.
      kwargs: see `HONOURED` and `HARMLESS`; any other that is not None sends the call to the fallback.

    Returns:
      The output `[batch, seqlen_q, num_heads_q, head_dim_v]`, contiguous, in query's dtype; and None, or the weights
      `[batch, num_heads_q, seqlen_q, seqlen_kv]` if the model records them.

    Raises:
      UnsupportedProblem: see `attend.attend`; or `cu_seq_lens` of one side only, where the other side has another length.
    """
    call = call_of(module, query, key, value, attention_mask, kwargs)
    out, _, weights = attend(call, layer_name(module))
    if weights is not None and call.sink is not None and sink_outside(type(module)):
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    return out, weights


def call_of(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | DeviceMask | None,
    kwargs: dict[str, Any],
) -> Call:
    """The `Call` of `nki_attention`'s arguments; `kwargs` is used up."""
    take = kwargs.pop
    batches = query.shape[0], key.shape[0]
    if batches[0] != batches[1] and 1 in batches and query.dim() == key.dim() == value.dim() == 4:
        query, key, value = same_batch(query, key, value)
    query, scale = learned_scale(query, take("scaling", None), "scaling")
    seqlen_q, seqlen_kv = query.shape[2], key.shape[2]
    is_causal = take("is_causal", None)
    # In this order: a symbolic length must not decide what type `causal` has.
    causal = mask is None and _causal_without_mask(module, is_causal)
    indices, block_indices = take("indices", None), take("block_indices", None)
    window, known = take("sliding_window", None), None
    if isinstance(mask, DeviceMask):
        known = mask.keys(seqlen_q, seqlen_kv, cut=_CUT_MASKS) if indices is None and block_indices is None else None
        mask = None if known is not None else mask.tensor()
    if indices is not None:
        mask = restrict_to_indices(indices, mask, seqlen_q=seqlen_q, seqlen_kv=seqlen_kv, causal=causal)
    if block_indices is not None:
        mask = None if mask is None else as_bias(mask)
        mask = _block_mask(module, block_indices, mask, query, seqlen_kv, causal)
    keys = known or read_mask(mask, q=query, seqlen_kv=seqlen_kv, causal=causal, window=window, cut=_CUT_MASKS, layer=module)
    position_bias = take("position_bias", None)
    if position_bias is not None:
        keys = with_position_bias(keys, position_bias, q=query, seqlen_kv=seqlen_kv)
    softcap, dropout = take("softcap", None), take("dropout", 0.0)
    s_aux, sinks = take("s_aux", None), take("sinks", None)
    cu_q, cu_kv = take("cu_seq_lens_q", None), take("cu_seq_lens_k", None)
    weights = bool(take("output_attentions", False)) or weights_recorded()
    _refuse_paged(kwargs)
    positions = kwargs.get("position_ids")
    refused = _unknown(kwargs) if kwargs else []
    packed = [cu for cu in (cu_q, cu_kv) if cu is not None]
    segments, hidden = None, False
    if packed and query.shape[0] != 1:
        name = "cu_seq_lens_k" if cu_q is None else "cu_seq_lens_q"
        refused.append(no_kernel(name, f"{packed[0].numel()} entries", "needs a batch of 1", "Pass a mask."))
    elif len(packed) == 1 and seqlen_q != seqlen_kv:
        name = "cu_seq_lens_q" if cu_q is None else "cu_seq_lens_k"
        limit = f"must be given, since seqlen_q={seqlen_q} and seqlen_kv={seqlen_kv} are packed differently"
        raise UnsupportedProblem([no_kernel(name, "None", limit, "Pass both, or a mask.")])
    elif packed:
        chunk = _chunk_of(module)
        if chunk is not None or mask is None:
            # The mask's chunks are counted over the whole pack: they are counted anew in each sequence. No mask means the
            # triangle of each sequence, whose position among its keys is its own.
            keys, causal = Keys(), causal or chunk is not None
        ahead = 1 if causal else None
        _check_packed(cu_q, cu_kv, seqlen_q, seqlen_kv)
        segments = segments_of(packed[0], packed[-1], ahead=ahead, chunk=chunk)
        hidden = keys.banded or keys.lo is not None or keys.bias is not None
        keys = keys.within_segments(packed[0], packed[-1], seqlen_q=seqlen_q, ahead=ahead, chunk=chunk)
    if hidden:
        segments = None
    if (
        segments is None
        and keys.lo is not None
        and seqlen_q == seqlen_kv
        and query.shape[0] == 1
        and not torch.compiler.is_compiling()
    ):
        segments = segments_of_bounds(keys, seqlen_q)
    if positions is not None and not packed and segments is None and seqlen_q == seqlen_kv > 1:
        warn_if_mixed(positions, keys, seqlen_q, lambda: layer_name(module))
    return Call(
        q=query,
        k=key,
        v=value,
        keys=keys,
        scale=scale,
        softcap=None if softcap is None else as_float("softcap", softcap),
        sink=sinks if s_aux is None else s_aux,
        dropout=as_float("dropout", dropout) if dropout and getattr(module, "training", False) else 0.0,
        weights=weights,
        refused=tuple(refused),
        segments=worth(segments, seqlen_q, seqlen_kv),
    )


def _causal_without_mask(module: Any, is_causal: bool | None) -> bool:
    """What None means: the causal triangle or nothing hidden.

    A model that is run as eager only always builds its causal masks, so that None hides nothing there, as in eager.
    """
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    config = getattr(module, "config", None)
    if not causal or not isinstance(config, PretrainedConfig) or not declines_sdpa(type(config), module):
        return causal
    if is_causal:
        limit = "needs a mask here: its model does not support sdpa, and eager hides nothing without one"
        advice = "Pass a mask, or set _supports_sdpa = True in the model class if None is to mean causal."
        raise UnsupportedProblem([no_kernel("is_causal", f"True for {type(module).__name__}", limit, advice)])
    return False


def _check_packed(cu_q: Any, cu_kv: Any, seqlen_q: int, seqlen_kv: int) -> None:
    """Refuse first rows and keys that describe no packed sequences, as far as they can be read.

    Raises:
      TypeError, UnsupportedProblem: see `flash_checks`.
    """
    entries = None
    for name, cu, tokens in (("cu_seq_lens_q", cu_q, seqlen_q), ("cu_seq_lens_k", cu_kv, seqlen_kv)):
        if cu is None:
            continue
        check_index(name, cu, "[num_sequences + 1]", (entries,))
        if cu.shape[0] < 2:
            refuse(f"{name}.shape", list(cu.shape), "must be [num_sequences + 1], 2 entries or more")
        entries, starts = cu.shape[0], first_rows(cu)
        if starts is not None:
            check_starts(name, starts, tokens)


def _chunk_of(module: Any) -> int | None:
    """The chunk length of a layer with chunked attention; None for any other layer."""
    config, number = getattr(module, "config", None), getattr(module, "layer_idx", None)
    kinds = getattr(config, "layer_types", None)
    if number is None or not kinds or kinds[number] != "chunked_attention":
        return None
    chunk: int | None = getattr(config, "attention_chunk_size", None)
    return chunk


def layer_name(module: Any) -> str:
    """The layer's class and number, as reports show it."""
    number = getattr(module, "layer_idx", None)
    name = type(module).__name__
    return name if number is None else f"{name} {number}"


def _refuse_paged(kwargs: dict[str, Any]) -> None:
    """Refuse a paged cache, whose other keys this function would not see."""
    if kwargs.get("cache") is None or "read_index" not in kwargs:
        return
    found = serving()
    limit = "must be None: this name is not the one of continuous batching"
    advice = f"Use attn_implementation={found.name!r}." if found.name else found.problem
    raise UnsupportedProblem([no_kernel("cache", type(kwargs["cache"]).__name__, limit, advice)])


def _unknown(kwargs: dict[str, Any]) -> list[Reason]:
    given = {name: value for name, value in kwargs.items() if value is not None and value is not False}
    lost = [name for name in given if name in _HEAD_MASKS]
    if lost:  # the fallback has no place for it either
        limit = "must be None: it multiplies the weights, which neither a kernel nor torch's sdpa returns"
        raise UnsupportedProblem([no_kernel(name, "given", limit, "Use attn_implementation='eager'.") for name in lost])
    return [
        no_kernel(name, type(value).__name__, "is not a known argument: it may change the result", "Do not pass it.")
        for name, value in given.items()
        if name not in HARMLESS
    ]


def _block_mask(
    module: Any,
    block_indices: torch.Tensor,
    mask: torch.Tensor | None,
    query: torch.Tensor,
    seqlen_kv: int,
    causal: bool,
) -> torch.Tensor:
    seqlen_q = query.shape[2]
    if mask is None:
        full = torch.ones((seqlen_q, seqlen_kv), dtype=torch.bool, device=query.device)
        mask = (triangle(seqlen_q, seqlen_kv, query.device) if causal else full)[None, None]
    # With a mask given, the positions are not read.
    positions = torch.arange(seqlen_kv - seqlen_q, seqlen_kv, device=query.device).expand(query.shape[0], -1)
    built = module.indexer.build_block_mask(block_indices, mask, seqlen_kv, query.dtype, query.device, positions)
    return built
