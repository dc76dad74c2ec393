"""`flash_attn_with_kvcache`: new keys and values written into a cache in place, and the attention of new queries over it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from nki_hf.adapters.attend import attend, check_call
from nki_hf.adapters.call import Call
from nki_hf.adapters.flash_checks import check_index, check_pages, check_tensor, check_values, readable, refuse
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
      num_splits: accepted; it changes no result.
      return_softmax_lse: True also returns lse.
      softmax_scale, causal, window_size, softcap, alibi_slopes, s_aux: as in `flash_attn_func`, seqlen_kv being
        `cache_seqlens + seqlen_new`.

    Returns:
      out, or (out, lse) with lse `[batch, num_heads_q, seqlen_q]` float32.

    Raises:
      UnsupportedProblem: ALiBi; arguments that exclude or need each other; tensors that describe no attention; lengths, rows
        or pages beyond the cache. The caches are unchanged then. (It is a ValueError.)
    """
    cap, (behind, ahead) = read_options(softcap, causal, window_size, alibi_slopes)
    del num_splits
    new = _New(k, v, rotary_cos, rotary_sin)
    _check_options(new, cache_seqlens, cache_batch_idx, cache_leftpad, block_table)
    _check_shapes(q, k_cache, v_cache, new, cache_seqlens, cache_batch_idx, cache_leftpad, block_table)
    batch, seqlen_q, page = q.shape[0], q.shape[1], k_cache.shape[1]
    capacity = page if block_table is None else block_table.shape[1] * page
    seqlen_new = 0 if k is None else k.shape[1]
    one_place = behind is None and ahead is None
    _check_lengths(cache_seqlens, capacity, seqlen_new, 1 if one_place else seqlen_q, rotary_cos)
    before = _per_sequence(capacity if cache_seqlens is None else cache_seqlens, batch, q.device)
    if cache_batch_idx is not None:
        check_values("cache_batch_idx", cache_batch_idx, 0, k_cache.shape[0] - 1, "a row of the cache", "Pass existing rows.")
    if cache_leftpad is not None:
        check_values("cache_leftpad", cache_leftpad, 0, capacity, "a key of the cache", "Pass the first key of each sequence.")
    if block_table is not None and readable(before):
        seen = [(max(0, n + seqlen_new - seqlen_q - behind) if behind is not None else 0, n) for n in before.tolist()]
        check_pages(block_table, [(min(first, n), n + seqlen_new) for first, n in seen], page, k_cache.shape[0])
    live = before + seqlen_new
    position = (live - seqlen_q)[:, None] + torch.arange(seqlen_q, device=q.device)
    first = torch.zeros_like(live) if cache_leftpad is None else cache_leftpad.to(q.device, torch.int64)
    lo = first[:, None].expand_as(position) if behind is None else torch.maximum(first[:, None], position - behind)
    hi = live[:, None].expand_as(position) if ahead is None else torch.minimum(live[:, None], position + ahead + 1)
    q, scale = learned_scale(q, softmax_scale, "softmax_scale")
    alike = [cache.new_empty(()).expand(batch, cache.shape[2], capacity, cache.shape[3]) for cache in (k_cache, v_cache)]
    call = Call(
        q=q.transpose(1, 2), k=alike[0], v=alike[1], keys=Keys().within(lo.contiguous(), hi.contiguous()), scale=scale,
        softcap=cap, sink=s_aux,
    )  # fmt: skip
    check_call(call)  # the last that may refuse: from here on the caches change
    if k is not None and v is not None:
        if rotary_cos is not None and rotary_sin is not None:
            q = _rotated(q, rotary_cos, rotary_sin, before, rotary_interleaved, one_place=one_place)
            k = _rotated(k, rotary_cos, rotary_sin, before, rotary_interleaved)
        for cache, tokens in ((k_cache, k), (v_cache, v)):
            _write(cache, tokens, before, cache_batch_idx, block_table)
    keys, values = (_read(cache, batch, cache_batch_idx, block_table) for cache in (k_cache, v_cache))
    call = replace(call, q=q.transpose(1, 2), k=keys.transpose(1, 2), v=values.transpose(1, 2))
    out, lse, _ = attend(call, "flash_attn_with_kvcache")
    return (out, lse_of(call, lse)) if return_softmax_lse else out


class _New(NamedTuple):
    """New keys and values, and the tables that turn them."""

    k: torch.Tensor | None
    v: torch.Tensor | None
    cos: torch.Tensor | None
    sin: torch.Tensor | None


def _check_options(new: _New, seqlens: object, batch_idx: object, leftpad: object, table: object) -> None:
    if (new.k is None) != (new.v is None):
        refuse("k and v", "one of them", "must come together")
    if (new.cos is None) != (new.sin is None):
        refuse("rotary_cos and rotary_sin", "one of them", "must come together")
    if new.cos is not None and new.k is None:
        refuse("rotary_cos", "given", "must be None without k: positions are those of new keys", "Rotate q before the call.")
    if new.k is not None and seqlens is None:
        refuse("cache_seqlens", "None", "must be given with k: it says where the new keys go")
    for name, value in (("cache_batch_idx", batch_idx), ("cache_leftpad", leftpad)):
        if value is not None and table is not None:
            refuse(name, "given", "must be None with block_table", "Change the table's rows instead.")


def _check_shapes(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, new: _New, seqlens: object, batch_idx: object,
    leftpad: object, table: object,
) -> None:  # fmt: skip
    """Refuse tensors of another type or shape than the docstring says; nothing is broadcast."""
    check_tensor("q", q, "[batch, seqlen_q, num_heads_q, head_dim]")
    cached = "[batch_cache, seqlen_cache, num_heads_kv, head_dim]"
    if table is not None:
        cached = "[num_blocks, page_block_size, num_heads_kv, head_dim]"
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        check_tensor(name, cache, cached)
        if cache.device != q.device:
            refuse(f"{name}.device", cache.device, f"must be q's, {q.device}")
    if v_cache.shape[:3] != k_cache.shape[:3]:
        refuse("v_cache.shape", list(v_cache.shape), f"must begin with k_cache's {list(k_cache.shape[:3])}")
    batch = q.shape[0]
    if table is not None:
        check_index("block_table", table, "[batch, max_blocks]", (batch, None))
        if 0 in k_cache.shape[:2]:
            refuse("k_cache.shape", list(k_cache.shape), "must have 1 page or more, of 1 key or more")
    elif batch_idx is not None:
        check_index("cache_batch_idx", batch_idx, "[batch]", (batch,))
    elif k_cache.shape[0] < batch:
        limit = f"must begin with q's batch, {batch}, or more: nothing is broadcast"
        refuse("k_cache.shape", list(k_cache.shape), limit, "Pass cache_batch_idx if entries share a row.")
    for name, index in (("cache_seqlens", seqlens), ("cache_leftpad", leftpad)):
        if isinstance(index, torch.Tensor) or (index is not None and name == "cache_leftpad"):
            check_index(name, index, "[batch]", (batch,))
    length = None
    for name, tokens, cache in (("k", new.k, k_cache), ("v", new.v, v_cache)):
        if tokens is None:
            continue
        check_tensor(name, tokens, "[batch, seqlen_new, num_heads_kv, head_dim]")
        length = tokens.shape[1] if length is None else length
        wanted = [batch, length, cache.shape[2], cache.shape[3]]
        if list(tokens.shape) != wanted:
            refuse(f"{name}.shape", list(tokens.shape), f"must be [batch, seqlen_new, num_heads_kv, head_dim] = {wanted}")
        if tokens.dtype != cache.dtype or tokens.device != cache.device:
            limit = f"must be the cache's, {_kind(cache)}"
            refuse(f"{name}.dtype and {name}.device", _kind(tokens), limit, f"Pass {name}.to({name}_cache).")
    for name, table_ in (("rotary_cos", new.cos), ("rotary_sin", new.sin)):
        if table_ is None or new.cos is None:
            continue
        check_tensor(name, table_, "[seqlen_rotary, rotary_dim / 2]")
        if not table_.is_floating_point():
            refuse(f"{name}.dtype", str(table_.dtype).removeprefix("torch."), "must be a float type")
        if table_.shape != new.cos.shape or 2 * table_.shape[1] > q.shape[3]:
            limit = f"must be rotary_cos's shape, {list(new.cos.shape)}, with at most half of head_dim={q.shape[3]} columns"
            refuse(f"{name}.shape", list(table_.shape), limit)


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"


def _check_lengths(
    seqlens: int | torch.Tensor | None, capacity: int, seqlen_new: int, turned: int, cos: torch.Tensor | None
) -> None:
    """Refuse lengths that do not fit the cache with the new keys, or the rotary tables.

    Args:
      seqlens: keys in the cache, as given.
      capacity: keys that a sequence's cache holds.
      seqlen_new: keys that are written.
      turned: positions that q is turned to.
      cos: a rotary table.

    Raises:
      ValueError: see above; no integer.
    """
    most = capacity - seqlen_new
    if seqlens is None:
        return
    lengths = seqlens if isinstance(seqlens, torch.Tensor) else as_int("cache_seqlens", seqlens)
    if most < 0:
        limit = f"must be at most {capacity:,} keys, what a sequence's cache holds"
        refuse("k.shape[1]", seqlen_new, limit, "Pass a larger cache, or fewer new keys.")
    meaning = f"so that it and {seqlen_new:,} new keys fit the cache of {capacity:,}"
    _check_each("cache_seqlens", lengths, most, meaning, "Pass a larger cache, or a longer block_table.")
    if cos is not None:
        reach = max(seqlen_new, turned)
        meaning = f"so that {reach:,} positions from there on are among the {cos.shape[0]:,} of rotary_cos"
        _check_each("cache_seqlens", lengths, cos.shape[0] - reach, meaning, "Pass longer rotary tables.")


def _check_each(name: str, lengths: int | torch.Tensor, most: int, meaning: str, advice: str) -> None:
    if isinstance(lengths, torch.Tensor):
        check_values(name, lengths, 0, most, meaning, advice)
    elif not 0 <= lengths <= most:
        refuse(name, f"{lengths:,}", f"must be 0 to {most:,}, {meaning}", advice)


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
