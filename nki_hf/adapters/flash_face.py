"""`flash_attn_func` and `flash_attn_varlen_func`: the names, layouts and meanings of the package `flash_attn`."""

from __future__ import annotations

from typing import Any

import torch

from nki_hf.adapters.attend import attend
from nki_hf.adapters.call import Call
from nki_hf.adapters.fallback import run_fallback_with_lse
from nki_hf.adapters.flash_checks import (
    check_index,
    check_pages,
    check_starts,
    check_tensor,
    read_longest,
    refuse,
)
from nki_hf.adapters.keys import Keys
from nki_hf.adapters.packed.pieces import Segments
from nki_hf.adapters.packed.segments import first_rows
from nki_hf.adapters.scalars import as_float, as_int, learned_scale
from nki_hf.problem import Band

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "lse_of", "read_options"]


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    s_aux: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor, None]:
    """Attention `[batch, seqlen_q, num_heads_q, head_dim_v]` in q's dtype.

    Args:
      q: `[batch, seqlen_q, num_heads_q, head_dim]`.
      k: `[batch, seqlen_kv, num_heads_kv, head_dim]`; query head h uses kv head `h // (num_heads_q / num_heads_kv)`.
      v: `[batch, seqlen_kv, num_heads_kv, head_dim_v]`.
      dropout_p: probability of dropping an attention weight; above 0 torch computes, counted.
      softmax_scale: multiplies the scores; None = `head_dim ** -0.5`.
      causal: row i sees keys up to `i + seqlen_kv - seqlen_q`.
      window_size: (left, right): row i sees keys from `i + seqlen_kv - seqlen_q - left` to `i + seqlen_kv - seqlen_q + right`,
        both included; -1 = no limit, below that it is refused.
      softcap: `softcap * tanh(scores / softcap)` before the mask; 0.0 = off.
      alibi_slopes: must be None.
      deterministic: accepted; results always are.
      return_attn_probs: True also returns lse.
      s_aux: attention sinks, one logit per query head, `[num_heads_q]`; None = off. (Not of FlashAttention 2: Transformers
        passes it to functions that have it.)

    Returns:
      out, or (out, lse, None) with lse `[batch, num_heads_q, seqlen_q]` float32, natural log, the sink included. The third,
      the dropped probabilities, is for tests of that package and never made. Rows that see no key are zeros, their lse the
      sink, or -inf without one.

    Raises:
      UnsupportedProblem: ALiBi; the dropped probabilities; tensors that describe no attention.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, tensor, "[batch, seqlen, num_heads, head_dim]")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.shape[0] != q.shape[0]:
            refuse(f"{name}.shape", list(tensor.shape), f"must begin with q's batch, {q.shape[0]}: nothing is broadcast")
    softcap_, band = read_options(softcap, causal, window_size, alibi_slopes)
    _refuse_probs(dropout_p, return_attn_probs)
    del deterministic
    q, scale = learned_scale(q, softmax_scale, "softmax_scale")
    seqlen_q, seqlen_kv = q.shape[1], k.shape[1]
    keys = _keys(band, seqlen_q, seqlen_kv)
    call = Call(
        q=q.transpose(1, 2),
        k=k.transpose(1, 2),
        v=v.transpose(1, 2),
        keys=keys,
        scale=scale,
        softcap=softcap_,
        sink=s_aux,
        dropout=as_float("dropout_p", dropout_p),
    )
    out, lse, _ = attend(call, "flash_attn_func")
    return (out, lse_of(call, lse), None) if return_attn_probs else out


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
    *,
    s_aux: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor, None]:
    """Attention `[total_q, num_heads_q, head_dim_v]` of many sequences in one row, each over its own keys only.

    Sequences are cut into pieces of a few fixed sizes (adapters/packed/), so that their lengths are data: neither a program
    nor the work per tile depends on them.

    Args:
      q: `[total_q, num_heads_q, head_dim]`, the sequences one after the other.
      k: `[total_k, num_heads_kv, head_dim]`; with `block_table` `[num_blocks, page_block_size, num_heads_kv, head_dim]`.
      v: `[total_k, num_heads_kv, head_dim_v]`, or pages as k.
      cu_seqlens_q, cu_seqlens_k: first row and first key of each sequence and the total, int `[num_sequences + 1]`. They are
        read on the host, once per call, and checked; on `xla` and in a graph only their type and shape are.
      max_seqlen_q, max_seqlen_k: change nothing, since `cu_seqlens` tell it; below the longest sequence they are refused.
      block_table: int `[num_sequences, max_blocks]`: the pages of each sequence in order; those that no row sees may be any
        number. None = k and v hold the keys.
      dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs, s_aux: as in
        `flash_attn_func`, with the lengths of each sequence.

    Returns:
      out, or (out, lse, None) with lse `[num_heads_q, total_q]` float32, the sink included.

    Raises:
      UnsupportedProblem: as `flash_attn_func`; `cu_seqlens` that are no integers from 0 on, fall, or end behind the tokens;
        pages that do not exist. (It is a ValueError.)
    """
    check_tensor("q", q, "[total_q, num_heads_q, head_dim]")
    softcap_, band = read_options(softcap, causal, window_size, alibi_slopes)
    _refuse_probs(dropout_p, return_attn_probs)
    del deterministic
    layout = (
        "[total_k, num_heads_kv, head_dim]" if block_table is None else "[num_blocks, page_block_size, num_heads_kv, head_dim]"
    )
    for name, tensor in (("k", k), ("v", v)):
        check_tensor(name, tensor, layout)
    starts_q, starts_k = _starts(
        cu_seqlens_q, cu_seqlens_k, q.shape[0], k.shape[0] if block_table is None else None, max_seqlen_q, max_seqlen_k
    )
    if block_table is not None:
        _check_table(block_table, k, v, cu_seqlens_q, starts_q, starts_k, band)
        k, v = (_of_pages(pages, block_table, cu_seqlens_k) for pages in (k, v))
    q, scale = learned_scale(q, softmax_scale, "softmax_scale")
    segments = None
    if starts_q is not None and starts_k is not None:
        segments = Segments(cu_q=starts_q, cu_kv=starts_k, window=band.window, ahead=band.ahead)
    keys = Keys().within_segments(
        cu_seqlens_q.to(q.device), cu_seqlens_k.to(q.device), seqlen_q=q.shape[0], window=band.window, ahead=band.ahead
    )
    call = Call(
        q=_row(q),
        k=_row(k),
        v=_row(v),
        keys=keys,
        scale=scale,
        softcap=softcap_,
        sink=s_aux,
        dropout=as_float("dropout_p", dropout_p),
        segments=segments,
    )
    out, lse, _ = attend(call, "flash_attn_varlen_func")
    return (out[0], lse_of(call, lse)[0], None) if return_attn_probs else out[0]


# ---- shared with flash_attn_with_kvcache ----------------------------------------------------------------------------


def read_options(softcap: float, causal: bool, window_size: tuple[int, int], alibi_slopes: Any) -> tuple[float | None, Band]:
    """The cap (None = off), and the band of rows that stand at their positions.

    Raises:
      UnsupportedProblem: ALiBi.
      ValueError: a window that is none.
    """
    if alibi_slopes is not None:
        refuse(
            "alibi_slopes",
            "given",
            "must be None: no kernel adds a bias that grows with the distance",
            "Pass the biases as `mask` to nki_hf.attention.",
        )
    cap = as_float("softcap", softcap)
    return (cap if cap else None), _band(causal, window_size)


def _band(causal: bool, window_size: tuple[int, int]) -> Band:
    """The band that a window of keys left and right of the query's own means."""
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise ValueError(f"window_size={window_size!r} is not a window: it must be (left, right), -1 for no limit.")
    left, right = (as_int(f"window_size[{n}]", size) for n, size in enumerate(window_size))
    for n, size in enumerate((left, right)):
        if size < -1:
            refuse(f"window_size[{n}]", size, "must be 0 or more keys, or -1 for no limit")
    ahead = 1 if causal else None if right < 0 else right + 1
    return Band(window=None if left < 0 else left + 1, ahead=ahead)


def _row(tensor: torch.Tensor) -> torch.Tensor:
    """`[1, heads, tokens, head_dim]` of `[tokens, heads, head_dim]`, as a view."""
    return tensor.transpose(0, 1)[None]


def lse_of(call: Call, lse: torch.Tensor | None) -> torch.Tensor:
    """The lse of a call that `attend` ran, which torch computes where a fallback gave none."""
    return run_fallback_with_lse(call)[1] if lse is None else lse


def _refuse_probs(dropout_p: float, wanted: bool) -> None:
    if wanted and dropout_p > 0:
        limit = "must be False with dropout: which probabilities were dropped is not returned"
        refuse("return_attn_probs", True, limit, "Pass dropout_p=0.0 for lse.")


def _keys(band: Band, seqlen_q: int, seqlen_kv: int) -> Keys:
    if not band.banded:
        return Keys()
    keys = Keys(q_offset=seqlen_kv - seqlen_q, window=band.window, ahead=band.ahead)
    return keys if torch.compiler.is_compiling() else keys.narrowed(seqlen_q, seqlen_kv)


def _starts(
    cu_q: torch.Tensor, cu_k: torch.Tensor, tokens_q: int, tokens_k: int | None, longest_q: Any, longest_k: Any
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """The values of both `cu_seqlens`, checked; None where they must not be read.

    Raises:
      TypeError, ValueError: they are no first rows and keys, or the longest sequences are no lengths of them.
    """
    check_index("cu_seqlens_q", cu_q, "[num_sequences + 1]", (None,))
    if cu_q.shape[0] < 2:
        refuse("cu_seqlens_q.shape", list(cu_q.shape), "must be [num_sequences + 1], 2 entries or more", "Pass [0, total_q].")
    check_index("cu_seqlens_k", cu_k, "[num_sequences + 1]", (cu_q.shape[0],))
    starts_q, starts_k = first_rows(cu_q), first_rows(cu_k)
    for name, starts, tokens, longest in (("q", starts_q, tokens_q, longest_q), ("k", starts_k, tokens_k, longest_k)):
        if starts is not None:
            check_starts(f"cu_seqlens_{name}", starts, tokens)
        read_longest(f"max_seqlen_{name}", longest, starts)
    return starts_q, starts_k


def _check_table(
    table: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_q: torch.Tensor,
    starts_q: tuple[int, ...] | None,
    starts_k: tuple[int, ...] | None,
    band: Band,
) -> None:
    """Refuse pages that do not hold the keys that rows see.

    Raises:
      TypeError, UnsupportedProblem: they do not.
    """
    check_index("block_table", table, "[num_sequences, max_blocks]", (cu_q.shape[0] - 1, None))
    if v.shape[:3] != k.shape[:3]:
        refuse("v.shape", list(v.shape), f"must begin with k's pages, page size and heads, {list(k.shape[:3])}")
    if 0 in k.shape[:2]:
        refuse("k.shape", list(k.shape), "must have 1 page or more, of 1 key or more")
    if starts_q is not None and starts_k is not None:
        lengths = [(b - a, d - c) for a, b, c, d in zip(starts_q, starts_q[1:], starts_k, starts_k[1:], strict=False)]
        # Every key is copied out of its page, so that the table must reach them all.
        longest = max(keys for _, keys in lengths)
        if longest > table.shape[1] * k.shape[1]:
            limit = f"must have pages for {longest:,} keys, the longest sequence, {-(-longest // k.shape[1])} of {k.shape[1]}"
            refuse("block_table.shape", list(table.shape), limit, "Pass a longer table.")
        needed = [(band.interval(keys - rows, keys)[0], keys if rows else 0) for rows, keys in lengths]
        check_pages(table, needed, k.shape[1], k.shape[0])


def _of_pages(pages: torch.Tensor, block_table: torch.Tensor, cu_seqlens_k: torch.Tensor) -> torch.Tensor:
    """`[total_k, num_heads_kv, head_dim]`: the keys of each sequence out of its pages, in order."""
    page = pages.shape[1]
    starts = cu_seqlens_k.to(torch.int64)
    token = torch.arange(int(starts[-1]), device=pages.device)
    sequence = torch.searchsorted(starts.to(pages.device), token, right=True) - 1
    place = token - starts.to(pages.device)[sequence]
    found = block_table.to(pages.device, torch.int64)[sequence, place // page]
    found = found.clamp(0, pages.shape[0] - 1)  # pages that no row sees may be anything
    return pages.flatten(0, 1).index_select(0, found * page + place % page)
