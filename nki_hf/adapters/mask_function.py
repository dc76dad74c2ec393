"""Transformers' mask function for "nki": None where nothing is hidden, a bool mask, a `DeviceMask` on Neuron devices, or a
float mask for eager-only code.

Without a mask function under the same name, models pass no mask at all. sdpa's own mask would break models whose
attention never asks for an implementation: they add the mask to their scores, so they get eager's float mask.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.masking_utils import and_masks, causal_mask_function, eager_mask, sdpa_mask

from nki_hf.adapters.device_mask import DeviceMask, band_mask, packed_mask, without_copies
from nki_hf.adapters.mask_band import band_of
from nki_hf.adapters.model_classes import calling_model, model_asks, model_like_sdpa, overlays_blocks, routing
from nki_hf.backends.neuron_world import device_world

__all__ = ["nki_mask"]

_INTERSECTION = and_masks(causal_mask_function).__qualname__
"""Name of Transformers' functions that intersect two others."""


def nki_mask(**kwargs: Any) -> torch.Tensor | DeviceMask | None:
    """The mask of one layer kind, from what Transformers' builders pass (all by keyword).

    * A model with a class that does not use the attention interface, or that declines sdpa, or of which nothing is known:
      eager's float mask, which is never left out for causal attention. On a Neuron device a `DeviceMask` stands for it where
      all classes use the interface.
    * Else None where nothing beyond the causal triangle is hidden. We never drop the mask for a static cache that is
      longer than the prompt, so None always means bottom-right causal: the last query row sees the last key.
    * Else, on a Neuron device, a `DeviceMask`: a band and the padding where the mask function is a band.
    * Else sdpa's bool mask, `[batch, 1, q_length, kv_length]`, True = may see.
    """
    config, padding = kwargs.get("config"), kwargs.get("attention_mask")
    if isinstance(padding, DeviceMask):  # made before the model was called, as generation does for static caches
        return padding
    found = (True, True) if config is None else routing(type(config))
    routed, sdpa_ok = (True, False) if found is None else found
    if config is not None and (found is None or (routed and sdpa_ok)) and not torch.compiler.is_compiling():
        model = calling_model()
        sdpa_ok = sdpa_ok if model is None else model_like_sdpa(model)
    if not routed:
        return eager_mask(**kwargs)
    device = _device(kwargs)
    on_device = device_world(device.type) is not None and (sdpa_ok or _only_declines(config, found))
    # Before transformers 5.4 the rows come as their positions.
    q_length = kwargs["q_length"] if "q_length" in kwargs else kwargs["cache_position"].shape[0]
    if sdpa_ok and _plainly_causal(kwargs, q_length):
        return None
    if on_device:
        made = _on_device(kwargs, q_length, device, may_be_none=sdpa_ok)
        if made is not None and not sdpa_ok:
            made.stands_as = kwargs.get("dtype", torch.float32)
        return made
    if not sdpa_ok:
        kwargs["allow_is_bidirectional_skip"] = False
        return eager_mask(**kwargs)
    # Asked only where it matters: for two symbolic lengths (cross attention) the answer would become a guard of the graph.
    if kwargs.get("allow_is_causal_skip", True) and q_length not in (1, kwargs["kv_length"]):
        kwargs["allow_is_causal_skip"] = False
    mask: torch.Tensor | None = sdpa_mask(**kwargs)
    return mask


def _only_declines(config: Any, found: tuple[bool, bool] | None) -> bool:
    """True if a model is known to hand its masks to the attention interface, and only does not take sdpa's."""
    if config is None or found is None:
        return False
    model = None if torch.compiler.is_compiling() else calling_model()
    return model is None or model_asks(model)


def _plainly_causal(kwargs: dict[str, Any], q_length: Any) -> bool:
    """True if nothing but the keys behind each row is hidden, as no value of a tensor has to be read to see.

    Transformers finds the same outside of tracers. While `torch.compile` traces, it leaves no mask out before torch 2.14.
    """
    if kwargs.get("attention_mask") is not None or not kwargs.get("allow_is_causal_skip", True):
        return False
    if kwargs.get("mask_function", causal_mask_function) is not causal_mask_function:
        return False
    return bool(q_length == kwargs["kv_length"]) and _rows_begin_with_keys(kwargs, q_length)


def _rows_begin_with_keys(kwargs: dict[str, Any], q_length: Any) -> bool:
    """True if row 0 is known to stand where key 0 does, so that as many rows as keys are a triangle."""
    offset = _q_offset(kwargs, q_length)
    return not isinstance(offset, torch.Tensor) and bool(offset == kwargs.get("kv_offset", 0))


def _q_offset(kwargs: dict[str, Any], q_length: Any) -> Any:
    """Position of the first row: an int, or a tensor where only that is known."""
    if "cache_position" not in kwargs:
        return kwargs.get("q_offset", 0)
    # As many rows as keys: they are the keys' own.
    own = kwargs.get("kv_offset", 0) == 0 and q_length == kwargs["kv_length"]
    return 0 if own else kwargs["cache_position"][0]


def _device(kwargs: dict[str, Any]) -> torch.device:
    """The device of the layers; "cpu" if nothing names it."""
    for name in ("cache_position", "attention_mask"):
        if isinstance(kwargs.get(name), torch.Tensor):
            return torch.device(kwargs[name].device)
    return torch.device(kwargs.get("device", "cpu"))


def _on_device(kwargs: dict[str, Any], q_length: Any, device: torch.device, *, may_be_none: bool) -> DeviceMask | None:
    """The mask on a Neuron device, whose values are not read: `torch_neuronx.trace` is no tracing that Transformers sees, and
    a look at the padding would become part of the graph.

    `may_be_none`: None = causal or nothing hidden, as sdpa has it.
    """
    padding, kv_length = kwargs.get("attention_mask"), kwargs["kv_length"]
    kv_offset = kwargs.get("kv_offset", 0)
    if padding is not None and _nothing_padded(padding, kv_offset + kv_length, device):
        padding = kwargs["attention_mask"] = None
        if may_be_none and _plainly_causal(kwargs, q_length):
            return None
    may_skip = kwargs.get("allow_is_bidirectional_skip", False)
    plain = kwargs.get("allow_is_causal_skip", True) or may_skip
    # A decode step's band would be a kernel of its own for each token: its one row of a mask stays a mask.
    function = kwargs.get("mask_function", causal_mask_function)
    band = band_of(function) if plain and q_length != 1 and not _chunked(kwargs) else None
    if band is None and _packed_in_a_graph(kwargs, q_length):
        return packed_mask(device, kwargs["batch_size"], q_length, function, window=kwargs.get("local_size"))
    if band is None and _chunks_of_a_prompt(kwargs, q_length):
        chunk = kwargs["local_size"]
        return packed_mask(device, kwargs["batch_size"], q_length, function, window=chunk, padding=padding)
    if band is None:
        if not may_be_none or padding is not None or q_length not in (1, kv_length):
            kwargs["allow_is_causal_skip"] = kwargs["allow_is_bidirectional_skip"] = False
        mask = sdpa_mask(**kwargs)
        return None if mask is None else without_copies(mask, device)
    window, ahead = band
    if may_be_none and may_skip and padding is None and window is None and ahead is None:
        return None
    offset = _q_offset(kwargs, q_length)
    return band_mask(
        device,
        kwargs["batch_size"],
        q_length,
        kv_length,
        q_offset=offset,
        window=window,
        ahead=ahead,
        padding=padding,
        kv_offset=kv_offset,
    )


def _packed_in_a_graph(kwargs: dict[str, Any], q_length: Any) -> bool:
    """True for the causal function, or window, that Transformers restricts to packed sequences.

    While `torch.compile` traces a call without cache and mask, it cannot see whether the positions start anew somewhere, so it
    always takes them for packed. Its functions have no marks; what else could be under this name is ruled out one by one.
    """
    if not torch.compiler.is_compiling() or kwargs.get("attention_mask") is not None:
        return False
    if kwargs.get("allow_is_causal_skip", True) or kwargs.get("allow_is_bidirectional_skip", False):
        return False
    offset = _q_offset(kwargs, q_length)
    if isinstance(offset, torch.Tensor) or q_length != kwargs["kv_length"] or offset != kwargs.get("kv_offset", 0):
        return False
    # Functions of the user come with vmap; chunks and blocks of images are not runs of keys that end at the row.
    if kwargs.get("use_vmap", True) or _chunked(kwargs) or kwargs.get("config") is None:
        return False
    return kwargs["mask_function"].__qualname__ == _INTERSECTION and not overlays_blocks(type(kwargs["config"]))


def _chunks_of_a_prompt(kwargs: dict[str, Any], q_length: Any) -> bool:
    """True for Transformers' own chunks over as many rows as keys: each row sees a run of keys that ends with its own."""
    if q_length == 1 or not _chunked(kwargs) or kwargs.get("use_vmap", True):  # functions of the user come with vmap
        return False
    if q_length != kwargs["kv_length"] or not _rows_begin_with_keys(kwargs, q_length) or kwargs.get("kv_offset", 0) != 0:
        return False
    return kwargs["mask_function"].__qualname__ == _INTERSECTION and not overlays_blocks(type(kwargs["config"]))


def _nothing_padded(padding: torch.Tensor, length: Any, device: torch.device) -> bool:
    """True if no key is padding, asked only where an answer stands for this call alone: eager, in the native world."""
    if device_world(device.type) != "native" or torch.compiler.is_compiling():
        return False
    return bool(padding.shape[1] >= length) and bool(padding.all())


def _chunked(kwargs: dict[str, Any]) -> bool:
    """True for chunked attention, whose function looks at the padding: no band, and nothing that a tracer may call."""
    chunk = getattr(kwargs.get("config"), "attention_chunk_size", None)
    return chunk is not None and kwargs.get("local_size") == chunk
