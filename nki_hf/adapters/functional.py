"""`nki_hf.attention(q, k, v, ...)`: attention of a call without a model."""

from __future__ import annotations

import torch

from nki_hf.adapters.attend import attend
from nki_hf.adapters.call import Call, check_tensors, same_batch
from nki_hf.adapters.keys import Keys
from nki_hf.adapters.masks import read_mask
from nki_hf.adapters.scalars import as_float, as_int, learned_scale

__all__ = ["attention"]


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    ahead: int | None = None,
    q_offset: int | None = None,
    lo: torch.Tensor | None = None,
    hi: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: torch.Tensor | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]:
    """Attention `[batch, num_heads_q, seqlen_q, head_dim_v]` in q's dtype, through a kernel or the counted fallback.

    The fallback takes what kernels do not: q, k and v of different dtypes are computed in the dtype that torch promotes
    them to; integers and 8-bit floats in float32. Where q holds integers the result is in the dtype of the computation.

    Args:
      q: `[batch, num_heads_q, seqlen_q, head_dim]`, any strides, on the CPU (simulator) or a Neuron device.
      k: `[batch or 1, num_heads_kv, seqlen_kv, head_dim]`; query head h uses kv head `h // (num_heads_q / num_heads_kv)`.
      v: `[batch or 1, num_heads_kv, seqlen_kv, head_dim_v]`, the batch of k. A batch of 1 serves every query batch, and
        q of batch 1 meets every batch of k and v.
      mask: bool (True = may see) or float (added to the scores), broadcast to `[batch, num_heads_q, seqlen_q, seqlen_kv]`.
        It combines with everything below (and).
      causal: the same as `ahead=1`.
      window: number of keys a row sees backwards, itself included; None = unlimited.
      ahead: number of keys a row sees forwards, itself included; None = unlimited.
      q_offset: position of query row 0 among the keys; None = `seqlen_kv - seqlen_q`, so that the last row stands at
        the last key.
      lo, hi: integers `[batch or 1, seqlen_q]` of any dtype and value: row i sees keys `[lo, hi)` only; both or neither.
      scale: multiplies the scores; None = `head_dim ** -0.5`. A tensor of one element gets its gradient.
      softcap: `cap * tanh(scores / cap)` before the mask, above 0; None = off.
      sink: one more logit per query head in the softmax, `[num_heads_q]`; None = off.
      return_lse: True also returns lse.

    Returns:
      out, or (out, lse) with lse `[batch, num_heads_q, seqlen_q]` float32, natural log, the sink included; None in its
      place after a fallback. Rows that see no key are zeros, and their lse is the sink, or -inf without one.
      flash_const_max, which takes bfloat16, sums probabilities as they are rounded: its lse is within 2**-8 of the exact one,
      and nearer where a row sees many keys (of normal scores and 64 keys on, beyond 1e-3 for one row in some thousands).

    Raises:
      UnsupportedProblem: the tensors describe no attention; or no kernel takes them and the settings are strict.
      TypeError: something that is not a torch tensor where one is due.
      ValueError: options that exclude each other or mean nothing.
    """
    tensors = {"q": q, "k": k, "v": v, "mask": mask, "lo": lo, "hi": hi, "sink": sink}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) and (tensor is not None or name in ("q", "k", "v")):
            raise TypeError(f"{name}={type(tensor).__name__} is not a torch tensor: pass one, such as torch.as_tensor({name}).")
    window = None if window is None else as_int("window", window, least=1)
    ahead = None if ahead is None else as_int("ahead", ahead, least=1)
    softcap = None if softcap is None else as_float("softcap", softcap)
    if causal and ahead not in (None, 1):
        raise ValueError(f"causal=True is ahead=1, but ahead={ahead}: give one of them.")
    if (lo is None) != (hi is None):
        raise ValueError("lo and hi come together: give both or neither.")
    check_tensors(q, k, v, sink)
    q, scale = learned_scale(q, scale)
    q, k, v = same_batch(q, k, v)
    seqlen_q, seqlen_kv = q.shape[2], k.shape[2]
    ahead = 1 if causal else ahead
    offset = seqlen_kv - seqlen_q if q_offset is None else as_int("q_offset", q_offset)
    banded = window is not None or ahead is not None
    band = Keys(q_offset=offset if banded else 0, window=window, ahead=ahead)
    # A graph's lengths are symbols, and the op does it with the real ones, but the op takes int64 only.
    if not torch.compiler.is_compiling() or any(_beyond_int64(value) for value in (offset, window, ahead)):
        band = band.narrowed(seqlen_q, seqlen_kv)
    keys = band
    if mask is not None:
        keys = read_mask(mask, q=q, seqlen_kv=seqlen_kv, causal=False)
        if banded:
            keys = keys.within_band(band, seqlen_q, seqlen_kv, q.device)
    if lo is not None and hi is not None:
        for name, bound in (("lo", lo), ("hi", hi)):
            if bound.layout != torch.strided:
                raise ValueError(f"{name}.layout={bound.layout} is not supported: call to_dense().")
            if bound.dtype.is_floating_point or bound.dtype.is_complex or bound.dtype == torch.bool:
                raise ValueError(f"{name}.dtype={bound.dtype} is not supported: {name} counts keys, so it must be integer.")
            if bound.shape != (1, seqlen_q) and bound.shape != (q.shape[0], seqlen_q):
                raise ValueError(
                    f"{name}.shape={list(bound.shape)} is not supported: it must be [batch or 1, seqlen_q], "
                    f"[{q.shape[0]} or 1, {seqlen_q}]."
                )
        keys = keys.within(lo, hi)
    call = Call(q=q, k=k, v=v, keys=keys, scale=scale, softcap=softcap, sink=sink)
    out, lse, _ = attend(call)
    out = out.transpose(1, 2)
    return (out, lse) if return_lse else out


def _beyond_int64(value: int | None) -> bool:
    return type(value) is int and not -(1 << 63) <= value < 1 << 63
