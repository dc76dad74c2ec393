"""What the values of a mask say: nothing, a static band, run-time bounds inside one, a mask of truth values; and whether a
mask still holds the values that were read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from nki_hf.adapters.keys import Keys
from nki_hf.sim.host import as_numpy, as_torch

__all__ = ["bits_of", "keys_of_values", "same_values"]

_SCAN_ELEMENTS = 1 << 22  # elements looked at in one go: bounds the scan's scratch memory


def keys_of_values(mask: torch.Tensor, seqlen_q: int, window: int | None) -> Keys | None:
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


def bits_of(mask: torch.Tensor) -> Any:
    """The values as an integer array of the same shape, so that NaN equals itself; shares memory on the CPU."""
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return as_numpy(mask.detach().view(words[mask.element_size()]).cpu())


def same_values(now: Any, then: Any) -> bool:
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
