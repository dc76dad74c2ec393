"""`flash_attn_with_kvcache`: new keys and values written into a cache in place, and the attention of new queries over it."""

from __future__ import annotations

from dataclasses import replace

import torch

from nki_hf.adapters.attend import attend, check_call
from nki_hf.adapters.call import Call
from nki_hf.adapters.flash_cache_checks import NewTokens, check_lengths, check_options, check_shapes
from nki_hf.adapters.flash_checks import check_pages, check_values, readable, refuse
from nki_hf.adapters.flash_face import lse_of, read_options
from nki_hf.adapters.keys import Keys
from nki_hf.adapters.scalars import as_int, learned_scale

__all__ = ["flash_attn_with_kvcache"]


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    s_aux: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention `[batch, seqlen_q, num_heads_q, head_dim_v]` of new queries over a cache, whose lengths are data.

    Everything is checked before anything is written. Values of index tensors are read on the CPU only: on a device that would
    wait for it, and a graph has none, so that there their types and shapes are checked and the values are the caller's affair.

    Args:
      q: `[batch, seqlen_q, num_heads_q, head_dim]`.
      k_cache: `[batch_cache, seqlen_cache, num_heads_kv, head_dim]`; with `block_table` pages
        `[num_blocks, page_block_size, num_heads_kv, head_dim]`, of any size.
      v_cache: the same with head_dim_v.
      k, v: `[batch, seqlen_new, num_heads_kv, ...]` in the caches' dtype, written in place at `cache_seqlens`; both or neither.
      rotary_cos, rotary_sin: `[seqlen_rotary, rotary_dim / 2]`, applied to k at its positions, and to q at those from
        `cache_seqlens` on (all at `cache_seqlens` where the mask is neither causal nor windowed); with k only.
      cache_seqlens: keys in the cache before the new ones, an int or int `[batch]`, at most `seqlen_cache - seqlen_new`;
        None = `seqlen_cache`, without k only.
      cache_batch_idx: int `[batch]`: the cache's row of each batch entry; None = the same, of the first rows. Of entries that
        share a row, whose new keys stay is undefined. Not with `block_table`.
      cache_leftpad: int `[batch]`: the first key of each sequence; None = 0. Not with `block_table`.
      block_table: int `[batch, max_blocks]`: the pages of each sequence in order; entries that no row sees may be any number.
      rotary_interleaved: True pairs neighbouring elements of head_dim, False its two halves.
      num_splits: an integer from 0 on, accepted; it changes no result.
      return_softmax_lse: True also returns lse.
      softmax_scale, causal, window_size, softcap, alibi_slopes, s_aux: as in `flash_attn_func`, seqlen_kv being
        `cache_seqlens + seqlen_new`.

    Returns:
      out, or (out, lse) with lse `[batch, num_heads_q, seqlen_q]` float32, the sink included.

    Raises:
      UnsupportedProblem: ALiBi; arguments that exclude or need each other; tensors that describe no attention; lengths, rows
        or pages beyond the cache. The caches are unchanged then. (It is a ValueError.)
    """
    cap, band = read_options(softcap, causal, window_size, alibi_slopes)
    if as_int("num_splits", num_splits) < 0:
        refuse("num_splits", num_splits, "must be 0 or more: how many parts the keys are cut into, 0 for the best")
    new = NewTokens(k, v, rotary_cos, rotary_sin)
    check_options(new, cache_seqlens, cache_batch_idx, cache_leftpad, block_table)
    check_shapes(q, k_cache, v_cache, new, cache_seqlens, cache_batch_idx, cache_leftpad, block_table)
    batch, seqlen_q, page = q.shape[0], q.shape[1], k_cache.shape[1]
    capacity = page if block_table is None else block_table.shape[1] * page
    seqlen_new = 0 if k is None else k.shape[1]
    one_place = not band.banded
    check_lengths(cache_seqlens, capacity, seqlen_new, 1 if one_place else seqlen_q, rotary_cos)
    before = _per_sequence(capacity if cache_seqlens is None else cache_seqlens, batch, q.device)
    if cache_batch_idx is not None:
        check_values("cache_batch_idx", cache_batch_idx, 0, k_cache.shape[0] - 1, "a row of the cache", "Pass existing rows.")
    if cache_leftpad is not None:
        check_values("cache_leftpad", cache_leftpad, 0, capacity, "a key of the cache", "Pass the first key of each sequence.")
    if block_table is not None and readable(before):
        seen = [(band.interval(n + seqlen_new - seqlen_q, n)[0], n) for n in before.tolist()]
        check_pages(block_table, [(min(first, n), n + seqlen_new) for first, n in seen], page, k_cache.shape[0])
    live = before + seqlen_new
    position = (live - seqlen_q)[:, None] + torch.arange(seqlen_q, device=q.device)
    first = torch.zeros_like(live) if cache_leftpad is None else cache_leftpad.to(q.device, torch.int64)
    lo, hi = (each.expand_as(position) for each in band.cut(position, first[:, None], live[:, None]))
    q, scale = learned_scale(q, softmax_scale, "softmax_scale")
    alike = [cache.new_empty(()).expand(batch, cache.shape[2], capacity, cache.shape[3]) for cache in (k_cache, v_cache)]
    call = Call(
        q=q.transpose(1, 2),
        k=alike[0],
        v=alike[1],
        keys=Keys().within(lo.contiguous(), hi.contiguous()),
        scale=scale,
        softcap=cap,
        sink=s_aux,
    )
    check_call(call)  # the last that may refuse: from here on the caches change
    if k is not None and v is not None:
        if rotary_cos is not None and rotary_sin is not None:
            q = _rotated(q, rotary_cos, rotary_sin, before, rotary_interleaved, one_place=one_place)
            k = _rotated(k, rotary_cos, rotary_sin, before, rotary_interleaved)
        for cache, tokens in ((k_cache, k), (v_cache, v)):
            _write(cache, tokens, before, cache_batch_idx, block_table)
    slots = torch.arange(capacity, device=q.device)
    filled = ((slots >= first[:, None]) & (slots < live[:, None]))[:, :, None, None]
    # an unfilled slot may hold NaN, which no weight of zero takes away from a sum
    keys, values = (_read(cache, batch, cache_batch_idx, block_table).masked_fill(~filled, 0) for cache in (k_cache, v_cache))
    call = replace(call, q=q.transpose(1, 2), k=keys.transpose(1, 2), v=values.transpose(1, 2))
    out, lse, _ = attend(call, "flash_attn_with_kvcache")
    return (out, lse_of(call, lse)) if return_softmax_lse else out


def _per_sequence(number: int | torch.Tensor, batch: int, device: torch.device) -> torch.Tensor:
    if isinstance(number, torch.Tensor):
        return number.to(device, torch.int64)
    return torch.full((batch,), as_int("cache_seqlens", number), dtype=torch.int64, device=device)


def _rotated(
    tensor: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    start: torch.Tensor,
    interleaved: bool,
    *,
    one_place: bool = False,
) -> torch.Tensor:
    """The first `2 * cos.shape[1]` elements of head_dim turned by the angles of positions `start`, `start + 1`, ... (or of
    `start` alone), in float32.
    """
    steps = torch.arange(tensor.shape[1], device=tensor.device)
    place = start[:, None] + (steps * 0 if one_place else steps)
    cosine, sine = (table.to(tensor.device)[place].float()[:, :, None] for table in (cos, sin))  # [batch, seqlen, 1, half]
    half = cos.shape[1]
    turned, rest = tensor[..., : 2 * half].float(), tensor[..., 2 * half :]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    parts = (a * cosine - b * sine, a * sine + b * cosine)
    both = torch.stack(parts, dim=-1).flatten(-2) if interleaved else torch.cat(parts, dim=-1)
    return torch.cat([both.to(tensor.dtype), rest], dim=-1)


def _write(
    cache: torch.Tensor, new: torch.Tensor, before: torch.Tensor, batch_idx: torch.Tensor | None, table: torch.Tensor | None
) -> None:
    """Put the new tokens of each sequence into the cache, in place; what they are was checked."""
    batch, seqlen = new.shape[0], new.shape[1]
    place = before[:, None] + torch.arange(seqlen, device=cache.device)
    if table is None:
        row = torch.arange(batch, device=cache.device) if batch_idx is None else batch_idx.to(cache.device, torch.int64)
        cache[row[:, None].expand_as(place), place] = new
        return
    page = cache.shape[1]
    block = table.to(cache.device, torch.int64).gather(1, place // page)
    cache[block, place % page] = new


def _read(cache: torch.Tensor, batch: int, batch_idx: torch.Tensor | None, table: torch.Tensor | None) -> torch.Tensor:
    """`[batch, capacity, num_heads_kv, head_dim]`: the cache of each sequence."""
    if table is not None:
        pages = table.to(cache.device, torch.int64).clamp(0, cache.shape[0] - 1)  # those that no row sees may be anything
        return cache[pages].flatten(1, 2)
    if batch_idx is not None:
        return cache[batch_idx.to(cache.device, torch.int64)]
    return cache[:batch]
