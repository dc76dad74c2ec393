"""Every form of mask that Transformers or a user passes -> `Keys`. The one place where a mask becomes bounds.

A dense mask whose every row is one run of keys becomes int32 bounds, and a static band where the rows lie on one.
That reads the mask's values, so it happens only outside compilation and export and not on Neuron devices; there the mask
stays dense. The layers of a model share a mask: what was found is kept with a copy of the values, and stands only while the
mask still holds them.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from nki_hf.adapters.keys import Keys
from nki_hf.adapters.layouts import keep_conversions
from nki_hf.backends.neuron_world import device_world
from nki_hf.errors import Reason, UnsupportedProblem
from nki_hf.problem import Band
from nki_hf.sim.host import as_numpy, as_torch

__all__ = [
    "as_bias",
    "read_mask",
    "restrict_to_indices",
    "traced",
    "triangle",
    "with_position_bias",
]

_MASK_DTYPES = (
    torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip
_SCAN_ELEMENTS = 1 << 22  # elements looked at in one go: bounds the scan's scratch memory

_TRACERS = (
    torch._C._TorchDispatchModeKey.FAKE,
    torch._C._TorchDispatchModeKey.PROXY,
    torch._C._TorchDispatchModeKey.FUNCTIONAL,
)

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
      UnsupportedProblem: the mask's shape fits neither q nor the keys; or its values are no mask (see `_check_values`).
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
    _check_values(mask, "attention_mask")
    if _values_unreadable(mask):
        return _unread(mask, q, seqlen_kv, cut=cut, layer=layer)
    where = (mask.data_ptr(), mask.shape, mask.stride(), mask.dtype, q.shape[:3], seqlen_kv, window, cut)
    found = _seen.get(mask)
    if found is not None and found.where == where:
        if found.keys is not None and found.now is not None and _same(found.now, found.then):
            return found.keys
        if found.keys is None:
            return Keys(bias=as_bias(_fit(mask, q, seqlen_kv, cut=cut)))
    fitted = _fit(mask, q, seqlen_kv, cut=cut)
    if found is not None and found.where == where and _same(_bits(fitted), found.then):
        return found.keys
    with torch.inference_mode(False):  # or what is kept could not be used in training
        keys = _interpret(fitted, seqlen_q, window)
    if keys is None:  # what it holds is not kept, or it would never be freed
        _seen[mask] = _Seen(where, None, None, None)
        return Keys(bias=as_bias(fitted))
    if all(each is None or type(each) is torch.Tensor for each in (keys.lo, keys.hi, keys.bias)):
        now = _bits(fitted)
        then = now.tobytes() if now.size <= _AS_BYTES else now.copy()
        shared = now.__array_interface__["data"][0] == fitted.data_ptr()
        _seen[mask] = _Seen(where, keys, now if shared else None, then)
    return keys


def _unread(mask: torch.Tensor, q: torch.Tensor, seqlen_kv: int, *, cut: bool, layer: object) -> Keys:
    """A mask as the bias that it is."""
    if layer is None or _traced() or mask.requires_grad or mask.is_inference() or device_world(mask.device.type) is None:
        return Keys(bias=as_bias(_fit(mask, q, seqlen_kv, cut=cut)))
    shared = _passes.setdefault(mask, {})
    where = (mask.shape, mask.stride(), mask.dtype, q.shape[:3], seqlen_kv, cut)
    found = shared.get(where)
    if found is None or found.version != mask._version or id(layer) in found.layers:
        bias = as_bias(_fit(mask, q, seqlen_kv, cut=cut))
        if bias is mask:
            bias = mask.view(mask.shape)  # what is kept with it goes with this pass
        keep_conversions(bias)
        found = shared[where] = _Pass(mask._version, Keys(bias=bias), set())
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
    _check_values(position_bias, "position_bias")
    bias = _fit(position_bias, q, seqlen_kv, "position_bias", cut=True)
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


def _check_values(mask: torch.Tensor, name: str) -> None:
    """Refuse what cannot be added to scores or select keys: complex numbers, floats of 8 bits and less, and tensors without
    strides (sparse, mkldnn).
    """
    if mask.layout != torch.strided:
        _refuse(f"{name}.layout", mask.layout, "must be an ordinary (strided) tensor", "Call to_dense().")
    if mask.dtype not in _MASK_DTYPES:
        limit = "must be bool, float16, bfloat16, float32, float64 or an integer type"
        _refuse(f"{name}.dtype", mask.dtype, limit, "Convert it.")


def _refuse(field: str, value: torch.dtype | torch.layout, limit: str, advice: str) -> NoReturn:
    found = str(value).removeprefix("torch.")
    raise UnsupportedProblem([Reason(kernel="attention", field=field, value=found, limit=limit, advice=advice)])


def traced(tensor: torch.Tensor) -> bool:
    """True if a tensor has no values yet, or they would become constants of the graph or the transform that is being made."""
    return _traced() or type(tensor) is not torch.Tensor or tensor.is_meta


def _traced() -> bool:
    """True where what is made of a tensor belongs to a graph or a transform."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None:  # in a transform of torch.func tensors are wrapped
        return True
    if torch._C._len_torch_dispatch_stack():
        for mode in _TRACERS:
            if torch._C._get_dispatch_mode(mode) is not None:
                return True
    return False


def _values_unreadable(mask: torch.Tensor) -> bool:
    # On a Neuron device reading waits for it, and inside torch_neuronx.trace it would freeze the example's values for good.
    return traced(mask) or mask.requires_grad or (not mask.is_cpu and device_world(mask.device.type) is not None)


def _fit(
    mask: torch.Tensor, q: torch.Tensor, seqlen_kv: int, name: str = "attention_mask", *, cut: bool = False
) -> torch.Tensor:
    """The mask with four axes, broadcast axes of size 1 and exactly `seqlen_kv` keys; `cut`: keys beyond them are left out."""
    shape = list(mask.shape)
    while mask.dim() < 4:
        mask = mask[None]
    if cut:
        mask = mask[..., :seqlen_kv]
    for axis in range(3):
        # An expanded axis must fit as well, or it belongs to another batch; q of batch 1 meets every batch of keys.
        if mask.shape[axis] > 1 and mask.stride(axis) == 0:
            if mask.shape[axis] == q.shape[axis] or (axis == 0 and q.shape[0] == 1):
                mask = mask.narrow(axis, 0, 1)
    if mask.shape[3] == 1 and seqlen_kv != 1:
        mask = mask.expand(-1, -1, -1, seqlen_kv)
    wanted = (*q.shape[:3], seqlen_kv)
    if mask.dim() != 4 or mask.shape[3] != seqlen_kv:
        _misfit(name, shape, wanted)
    for axis in range(3):  # not any() of a generator, which Dynamo of torch 2.9 does not enter
        if mask.shape[axis] not in (1, wanted[axis]):
            _misfit(name, shape, wanted)
    return mask


def _misfit(name: str, shape: list[int], wanted: tuple[int, ...]) -> NoReturn:
    raise UnsupportedProblem(
        [
            Reason(
                kernel="attention",
                field=f"{name}.shape",
                value=str(shape),
                limit=f"must broadcast to [batch, num_heads_q, seqlen_q, seqlen_kv] = {list(wanted)}",
            )
        ]
    )


def as_bias(mask: torch.Tensor) -> torch.Tensor:
    """The mask in a dtype that a kernel adds or selects by; integers, which are added, warn."""
    if mask.dtype in (torch.bool, torch.float32, torch.bfloat16, torch.float16):
        return mask
    if not mask.dtype.is_floating_point and not torch.compiler.is_compiling():
        warnings.warn(
            f"attention_mask.dtype={str(mask.dtype).removeprefix('torch.')}: integers are added to the scores, as in eager, "
            "so that 0 and 1 hide no key. Pass a bool mask (True = may see) to hide keys.",
            stacklevel=2,
        )
    return mask.to(torch.float32)


def _bits(mask: torch.Tensor) -> Any:
    """The values as an integer array of the same shape, so that NaN equals itself; shares memory on the CPU."""
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return as_numpy(mask.detach().view(words[mask.element_size()]).cpu())


def _same(now: Any, then: Any) -> bool:
    """True if an array holds what it held, of which `then` are the bytes or a copy."""
    return bool(now.tobytes() == then) if isinstance(then, bytes) else _equal(now, then)


def _equal(one: Any, other: Any) -> bool:
    """True if two arrays of one shape hold the same values; looks at `_SCAN_ELEMENTS` in one go."""
    if one.size <= _SCAN_ELEMENTS or one.ndim == 1:
        return bool((one == other).all())
    if len(one) == 1:
        return _equal(one[0], other[0])
    half = len(one) // 2
    return _equal(one[:half], other[:half]) and _equal(one[half:], other[half:])


def _interpret(mask: torch.Tensor, seqlen_q: int, window: int | None) -> Keys | None:
    """What the values say; None if the mask stays the dense bias that it is."""
    visible = mask
    if mask.dtype != torch.bool:
        found = _two_valued(mask)
        if found is None:
            return None
        visible = found
    bounds = _runs(visible[:, 0]) if visible.shape[1] == 1 else None
    if bounds is not None:
        return _keys_of(*bounds, seqlen_q, visible.shape[3], mask.device, window)
    return None if visible is mask else Keys(bias=visible)


def _two_valued(mask: torch.Tensor) -> torch.Tensor | None:
    """A float mask of zeros and `finfo.min`-like or -inf entries as bool; None if it is a real bias."""
    if not mask.dtype.is_floating_point:
        return None
    # Half of the smallest number: 0 and finfo.min differ by far more than scores do, whatever was added to either.
    visible = mask == 0
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    return visible if bool((visible | hidden).all()) else None


def _runs(visible: torch.Tensor) -> tuple[Any, Any] | None:
    """First key and one past the last key of each row of bool `[batch or 1, rows, seqlen_kv]`, int64 arrays
    `[batch or 1, rows]`; None if some row is not one run. A row without keys is (0, 0).
    """
    values = as_numpy(visible.cpu())
    batch, rows, seqlen_kv = values.shape
    if seqlen_kv == 0 or rows == 0 or batch == 0:
        return np.zeros((batch, rows), np.int64), np.zeros((batch, rows), np.int64)
    lo, hi = np.empty((batch, rows), np.int64), np.empty((batch, rows), np.int64)
    step = max(1, _SCAN_ELEMENTS // seqlen_kv)
    for b in range(batch):
        for start in range(0, rows, step):
            part = values[b, start : start + step]
            count = np.count_nonzero(part, axis=1)
            first = part.argmax(axis=1)
            last = seqlen_kv - part[:, ::-1].argmax(axis=1)
            if not ((last - first == count) | (count == 0)).all():
                return None
            lo[b, start : start + step] = np.where(count == 0, 0, first)
            hi[b, start : start + step] = np.where(count == 0, 0, last)
    return lo, hi


def _keys_of(lo: Any, hi: Any, seqlen_q: int, seqlen_kv: int, device: torch.device, window: int | None) -> Keys:
    """The smallest description of the runs: nothing, a static band, or run-time bounds inside one."""
    if bool((lo == 0).all() and (hi == seqlen_kv).all()):
        return Keys()
    # One row (decode): a static band would change with every token, and every change is a new kernel.
    band, exact = _band(lo, hi, seqlen_kv, window) if lo.shape[1] > 1 else (Keys(), False)
    if exact:
        return band
    bounds = [np.broadcast_to(part, (part.shape[0], seqlen_q)).astype(np.int32) for part in (lo, hi)]
    lo_tensor, hi_tensor = (as_torch(part).to(device) for part in bounds)
    return replace(band, lo=lo_tensor, hi=hi_tensor, inside=True)


def _band(lo: Any, hi: Any, seqlen_kv: int, window: int | None) -> tuple[Keys, bool]:
    """A static band that contains every run, for rows that end with the keys or start with them; True if it is the runs.

    An inexact band is only ever causal with `window`, which do not depend on the values, so that the same layer gives
    the same band at every step.
    """
    seqlen_q = lo.shape[1]
    some, rows = hi > lo, np.arange(seqlen_q)
    for q_offset in (seqlen_kv - seqlen_q, 0):
        # The narrowest band at this offset: what its most far-sighted rows see.
        ahead = int(np.where(some & (hi < seqlen_kv), hi - rows - q_offset, 0).max(initial=0))
        back = int(np.where(some & (lo > 0), rows + q_offset - lo + 1, 0).max(initial=0))
        band = Keys(q_offset=q_offset, window=back if back > 0 else None, ahead=ahead if ahead > 0 else None)
        band_lo, band_hi = band.edges(rows, seqlen_kv)
        band_lo, band_hi = np.maximum(0, band_lo), np.minimum(seqlen_kv, band_hi)
        same = (lo == band_lo) & (hi == band_hi) | ~some & (band_lo >= band_hi)
        if bool(same.all()):
            return band, True
    for q_offset in sorted((seqlen_kv - seqlen_q, 0)):
        band = Keys(q_offset=q_offset, window=window, ahead=1)
        first, stop = band.edges(rows, seqlen_kv)
        if bool((~some | (hi <= stop)).all()):
            return band if bool((~some | (lo >= first)).all()) else replace(band, window=None), False
    return Keys(), False
