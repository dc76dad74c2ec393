"""Transformers' mask function for "nki": a bool mask, None where nothing is hidden, or a float mask for eager-only code.

Without a mask function under the same name, models pass no mask at all. sdpa's own mask would break models whose
attention never asks for an implementation: they add the mask to their scores, so they get eager's float mask.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.masking_utils import eager_mask, sdpa_mask

__all__ = ["nki_mask", "routing"]


def nki_mask(**kwargs: Any) -> torch.Tensor | None:
    """The mask of one layer kind, from what Transformers' builders pass (all by keyword).

    * A model with a class that does not use the attention interface, or that declines sdpa: eager's float mask, which
      is never left out for causal attention.
    * Else sdpa's bool mask, `[batch, 1, q_length, kv_length]`, True = may see; None where nothing beyond the causal
      triangle is hidden. None is not used when a static cache is longer than the prompt: None then always means that
      the last query row sees the last key.
    """
    config = kwargs.get("config")
    routed, sdpa_ok = (True, True) if config is None else routing(type(config))
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


@torch.compiler.assume_constant_result
def routing(config_class: type) -> tuple[bool, bool]:
    """(every model class of this config uses the attention interface, every one of them supports sdpa).

    Model classes are those with this `config_class` in the loaded modelling files beside the config's own file. Without
    any, both are True.
    """
    classes = _model_classes(config_class, len(sys.modules))
    routed = all(each._can_set_attn_implementation() for each in classes)
    return routed, all(each._supports_sdpa for each in classes)


@functools.lru_cache(maxsize=1024)
def _model_classes(config_class: type, loaded: int) -> tuple[type[PreTrainedModel], ...]:
    package = config_class.__module__.rpartition(".")[0]
    found = [
        each
        for name, module in list(sys.modules.items())
        if name.startswith(f"{package}.modeling_")
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, PreTrainedModel) and each.__dict__.get("config_class") is config_class
    ]
    return tuple(dict.fromkeys(found))
