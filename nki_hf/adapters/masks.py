"""Every form of mask that Transformers or a user passes -> `Keys`. The one place where a mask becomes bounds.

A dense mask whose every row is one run of keys becomes int32 bounds, and a static band where the rows lie on one
(mask_values.py). That reads the mask's values, so it happens only outside compilation and export and not on Neuron devices;
there the mask stays dense. The layers of a model share a mask: what was found is kept with a copy of the values, and stands
only while the mask still holds them.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from nki_hf.adapters.keys import Keys
from nki_hf.adapters.layouts import keep_conversions
from nki_hf.adapters.mask_fit import as_bias, check_mask, fitted
from nki_hf.adapters.mask_values import bits_of, keys_of_values, same_values
from nki_hf.adapters.tracing import traced, tracing
from nki_hf.backends.neuron_world import device_world
from nki_hf.problem import Band

__all__ = ["read_mask", "restrict_to_indices", "triangle", "with_position_bias"]

_AS_BYTES = 1 << 16  # elements up to which two copies compare faster than two arrays


class _Seen(NamedTuple):
    """What a mask said.

    Attributes:
      where: address, shape, strides and dtype of the mask, and what else `keys` follow from.
      keys: the answer; None: the mask itself is the bias, whatever it holds.
      now: the mask's memory as integers, kept alive by this view; None if it has to be fetched.
      then: its values when they were read; None if `keys` is.
    """

    where: tuple[Any, ...]
    keys: Keys | None
    now: Any
    then: Any


class _Pass(NamedTuple):
    """What one pass of a model on a device shares of a mask.

    Attributes:
      version: of the mask's values.
      keys: the answer.
      layers: those that have asked, by identity. One that asks again begins another pass, in which the mask may hold other
        values, written in a way that no version tells.
    """

    version: int
    keys: Keys
    layers: set[int]


_passes: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


# A tensor's version would be cheaper to compare, but writes through `.data` or a shared NumPy array do not change it.
_seen: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def read_mask(
    mask: torch.Tensor | None,
    *,
    q: torch.Tensor,
    seqlen_kv: int,
    causal: bool,
    window: int | None = None,
    cut: bool = False,
    layer: object = None,
) -> Keys:
    """What a mask says, as `Keys`.

    Args:
      mask: None; bool (True = may see); float or integer (added to the scores). Any shape that broadcasts to
        `[batch, num_heads_q, seqlen_q, seqlen_kv]`.
      q: `[batch, num_heads_q, seqlen_q, head_dim]`.
      seqlen_kv: number of keys.
      causal: what None means: True = the last query row sees every key, the one before all but one, ...
      window: the layer's sliding window; a hint that lets a mask with run-time bounds keep a static band. None = none.
      cut: True = keys of the mask beyond `seqlen_kv` are left out instead of refused.
      layer: who asks. The layers of one pass of a model share what kernels make of a mask on a device; None = nobody shares.

    Raises:
      UnsupportedProblem: the mask's shape fits neither q nor the keys; or its values are no mask (see `mask_fit.check_mask`).
    """
    seqlen_q = q.shape[2]
    if window is not None and not torch.compiler.is_compiling() and window >= seqlen_kv:
        window = None  # hides nothing, and may be more than int64 holds
    if mask is None:
        # One query is the newest token: it sees every key.
        if not causal or seqlen_q == 1:
            return Keys()
        offset = seqlen_kv - seqlen_q
        if torch.compiler.is_compiling() or type(offset) is not int:  # symbols are in no cache
            return Keys(q_offset=offset, ahead=1)
        return _causal(offset)
    check_mask(mask, "attention_mask")
    if _values_unreadable(mask):
        return _unread(mask, q, seqlen_kv, cut=cut, layer=layer)
    where = (mask.data_ptr(), mask.shape, mask.stride(), mask.dtype, q.shape[:3], seqlen_kv, window, cut)
    found = _seen.get(mask)
    if found is not None and found.where == where:
        if found.keys is not None and found.now is not None and same_values(found.now, found.then):
            return found.keys
        if found.keys is None:
            return Keys(bias=as_bias(fitted(mask, q, seqlen_kv, cut=cut)))
    as_it_fits = fitted(mask, q, seqlen_kv, cut=cut)
    if found is not None and found.where == where and same_values(bits_of(as_it_fits), found.then):
        return found.keys
    with torch.inference_mode(False):  # or what is kept could not be used in training
        keys = keys_of_values(as_it_fits, seqlen_q, window)
    if keys is None:  # what it holds is not kept, or it would never be freed
        _seen[mask] = _Seen(where, None, None, None)
        return Keys(bias=as_bias(as_it_fits))
    if all(each is None or type(each) is torch.Tensor for each in (keys.lo, keys.hi, keys.bias)):
        now = bits_of(as_it_fits)
        then = now.tobytes() if now.size <= _AS_BYTES else now.copy()
        shared = now.__array_interface__["data"][0] == as_it_fits.data_ptr()
        _seen[mask] = _Seen(where, keys, now if shared else None, then)
    return keys


def _unread(mask: torch.Tensor, q: torch.Tensor, seqlen_kv: int, *, cut: bool, layer: object) -> Keys:
    """A mask as the bias that it is."""
    if layer is None or tracing() or mask.requires_grad or mask.is_inference() or device_world(mask.device.type) is None:
        return Keys(bias=as_bias(fitted(mask, q, seqlen_kv, cut=cut)))
    shared = _passes.setdefault(mask, {})
    where = (mask.shape, mask.stride(), mask.dtype, q.shape[:3], seqlen_kv, cut)
    found = shared.get(where)
    if found is None or found.version != mask._version or id(layer) in found.layers:
        bias = as_bias(fitted(mask, q, seqlen_kv, cut=cut))
        if bias is mask:
            bias = mask.view(mask.shape)  # what is kept with it goes with this pass
        keep_conversions(bias)
        found = shared[where] = _Pass(mask._version, Keys(bias=bias), {id(layer)})  # never without who asked for it
    found.layers.add(id(layer))
    return found.keys


@functools.lru_cache(maxsize=256)
def _causal(q_offset: int) -> Keys:
    return Keys(q_offset=q_offset, ahead=1)


def with_position_bias(keys: Keys, position_bias: torch.Tensor, *, q: torch.Tensor, seqlen_kv: int) -> Keys:
    """`keys` with an additive bias `[1 or batch, heads or 1, seqlen_q or 1, >= seqlen_kv]` on top.

    Raises:
      UnsupportedProblem: the bias's shape fits neither q nor the keys.
    """
    check_mask(position_bias, "position_bias")
    bias = fitted(position_bias, q, seqlen_kv, "position_bias", cut=True)
    return keys.with_bias(bias)


def restrict_to_indices(
    indices: torch.Tensor, mask: torch.Tensor | None, *, seqlen_q: int, seqlen_kv: int, causal: bool
) -> torch.Tensor:
    """The mask that also hides every key not named in `indices` (`[batch, seqlen_q, topk]`, negative = none).

    Returns a mask of the kind of `mask`, float32 for integers; without one, a bool mask that includes the causal triangle.
    """
    batch = indices.shape[0]
    indices = indices.long()  # first: a narrow dtype may not hold the spare column's number
    # One spare column takes the negative entries.
    slots = torch.where(indices < 0, seqlen_kv, indices)
    keep = torch.zeros((batch, seqlen_q, seqlen_kv + 1), dtype=torch.bool, device=indices.device)
    keep = keep.scatter(-1, slots, True)[:, None, :, :seqlen_kv]
    if mask is None:
        return keep & triangle(seqlen_q, seqlen_kv, keep.device) if causal else keep
    mask = as_bias(mask[..., :seqlen_kv])
    return mask & keep if mask.dtype == torch.bool else mask.masked_fill(~keep, torch.finfo(mask.dtype).min)


def triangle(seqlen_q: int, seqlen_kv: int, device: torch.device) -> torch.Tensor:
    """Bool `[seqlen_q, seqlen_kv]`, True where a causal row sees the key; the last row sees all."""
    band = Band(q_offset=seqlen_kv - seqlen_q, ahead=1)
    return torch.arange(seqlen_kv, device=device) < band.stop(torch.arange(seqlen_q, device=device)[:, None])


def _values_unreadable(mask: torch.Tensor) -> bool:
    # On a Neuron device reading waits for it, and inside torch_neuronx.trace it would freeze the example's values for good.
    return traced(mask) or mask.requires_grad or (not mask.is_cpu and device_world(mask.device.type) is not None)
