"""The attention function of "paged|nki": continuous batching of the Transformers releases that put "paged|" before any name.

There the function writes the paged cache itself. Releases from `hub_kernel.FLOOR` on do that before, and take kernel names
only.
"""

from __future__ import annotations

from typing import Any

import torch

from nki_hf.adapters.decision import no_kernel
from nki_hf.adapters.flash_face import flash_attn_varlen_func
from nki_hf.adapters.transformers import nki_attention
from nki_hf.errors import UnsupportedProblem

__all__ = ["PAGED", "nki_paged_attention"]

PAGED = "paged|"


def nki_paged_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The function behind `generate_batch` with "nki".

    Args:
      module: the attention layer; its `layer_idx`, `scaling` and `sliding_window` are read.
      query: `[1, num_heads_q, tokens, head_dim]`, the new tokens of all requests one after the other.
      key, value: `[1, num_heads_kv, tokens, head_dim]`, the same tokens'.
      attention_mask: unused: the requests' lengths say it.
      kwargs: `cache`, the paged cache, with `read_index` and `write_index` for it; `cu_seq_lens_q` and `cu_seq_lens_k`, the
        latter by layer type where layers differ; scaling, softcap and sinks. Without `cache` the call is `nki_attention`'s.

    Returns:
      The output `[tokens, num_heads_q, head_dim_v]`, and None.

    Raises:
      UnsupportedProblem: a block table, which these releases offer for other devices only.
    """
    cache = kwargs.pop("cache", None)
    if cache is None:
        return nki_attention(module, query, key, value, attention_mask, **kwargs)
    if kwargs.get("block_table") is not None:
        limit = "must be None: the cache is read and written by index here"
        raise UnsupportedProblem([no_kernel("block_table", "given", limit, "Set max_blocks_per_request=0.")])
    window = getattr(module, "sliding_window", None) or None
    lengths = kwargs["cu_seq_lens_k"]
    if isinstance(lengths, dict):
        lengths = lengths["full_attention" if window is None else "sliding_attention"]
    keys, values = cache.update(
        key_states=key,
        value_states=value,
        layer_idx=module.layer_idx,
        read_index=kwargs["read_index"],
        write_index=kwargs["write_index"],
    )
    sinks = kwargs.get("s_aux")
    out = flash_attn_varlen_func(
        query[0].transpose(0, 1),
        keys,
        values,
        kwargs["cu_seq_lens_q"],
        lengths,
        softmax_scale=kwargs.get("scaling") or getattr(module, "scaling", None),
        causal=True,
        window_size=(-1, -1) if window is None else (window - 1, 0),
        softcap=kwargs.get("softcap") or 0.0,
        s_aux=kwargs.get("sinks") if sinks is None else sinks,
    )
    return out, None
