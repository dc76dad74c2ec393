"""Transformers' mask function for "nki": a bool mask, None where nothing is hidden, or a float mask for eager-only code.

Without a mask function under the same name, models pass no mask at all. sdpa's own mask would break models whose
attention never asks for an implementation: they add the mask to their scores, so they get eager's float mask.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.masking_utils import eager_mask, sdpa_mask

from nki_hf.adapters.model_classes import calling_model, model_like_sdpa, routing

__all__ = ["nki_mask"]


def nki_mask(**kwargs: Any) -> torch.Tensor | None:
    """The mask of one layer kind, from what Transformers' builders pass (all by keyword).

    * A model with a class that does not use the attention interface, or that declines sdpa, or of which nothing is known:
      eager's float mask, which is never left out for causal attention.
    * Else sdpa's bool mask, `[batch, 1, q_length, kv_length]`, True = may see; None where nothing beyond the causal
      triangle is hidden. None is not used when a static cache is longer than the prompt: None then always means that
      the last query row sees the last key.
    """
    config = kwargs.get("config")
    found = (True, True) if config is None else routing(type(config))
    routed, sdpa_ok = (True, False) if found is None else found
    if config is not None and (found is None or (routed and sdpa_ok)) and not torch.compiler.is_compiling():
        model = calling_model()
        sdpa_ok = sdpa_ok if model is None else model_like_sdpa(model)
    if not (routed and sdpa_ok):
        if routed:
            kwargs["allow_is_bidirectional_skip"] = False
        return eager_mask(**kwargs)
    padding = kwargs.get("attention_mask")
    if padding is not None and padding.device.type == "xla":
        # torch_neuronx.trace is no tracing that Transformers sees: a look at the padding would become part of the graph.
        kwargs["allow_is_causal_skip"] = kwargs["allow_is_bidirectional_skip"] = False
    # Before transformers 5.4 the rows come as their positions.
    q_length = kwargs["q_length"] if "q_length" in kwargs else kwargs["cache_position"].shape[0]
    # Asked only where it matters: for two symbolic lengths (cross attention) the answer would become a guard of the graph.
    if kwargs.get("allow_is_causal_skip", True) and q_length not in (1, kwargs["kv_length"]):
        kwargs["allow_is_causal_skip"] = False
    return sdpa_mask(**kwargs)
