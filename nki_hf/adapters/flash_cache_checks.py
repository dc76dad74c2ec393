"""What `flash_attn_with_kvcache` checks of its caches, new tokens, lengths and rotary tables before it writes anything."""

from __future__ import annotations

from typing import NamedTuple

import torch

from nki_hf.adapters.flash_checks import check_index, check_tensor, check_values, refuse
from nki_hf.adapters.scalars import as_int

__all__ = ["NewTokens", "check_lengths", "check_options", "check_shapes"]


class NewTokens(NamedTuple):
    """New keys and values, and the tables that turn them."""

    k: torch.Tensor | None
    v: torch.Tensor | None
    cos: torch.Tensor | None
    sin: torch.Tensor | None


def check_options(new: NewTokens, seqlens: object, batch_idx: object, leftpad: object, table: object) -> None:
    """Refuse arguments that exclude or need each other.

    Raises:
      UnsupportedProblem: see above.
    """
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


def check_shapes(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    new: NewTokens,
    seqlens: object,
    batch_idx: object,
    leftpad: object,
    table: object,
) -> None:
    """Refuse tensors of another type or shape than `flash_attn_with_kvcache` documents; nothing is broadcast.

    Raises:
      TypeError, UnsupportedProblem: see above.
    """
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


def check_lengths(
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
        limit = f"must be at most {capacity} keys, what a sequence's cache holds"
        refuse("k.shape[1]", seqlen_new, limit, "Pass a larger cache, or fewer new keys.")
    meaning = f"so that it and {seqlen_new} new keys fit the cache of {capacity}"
    _check_each("cache_seqlens", lengths, most, meaning, "Pass a larger cache, or a longer block_table.")
    if cos is not None:
        reach = max(seqlen_new, turned)
        meaning = f"so that {reach} positions from there on are among the {cos.shape[0]} of rotary_cos"
        _check_each("cache_seqlens", lengths, cos.shape[0] - reach, meaning, "Pass longer rotary tables.")


def _check_each(name: str, lengths: int | torch.Tensor, most: int, meaning: str, advice: str) -> None:
    if isinstance(lengths, torch.Tensor):
        check_values(name, lengths, 0, most, meaning, advice)
    elif not 0 <= lengths <= most:
        refuse(name, f"{lengths}", f"must be 0 to {most}, {meaning}", advice)
