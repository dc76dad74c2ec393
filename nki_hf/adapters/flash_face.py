"""`flash_attn_func` and `flash_attn_varlen_func`: the names, layouts and meanings of the package `flash_attn`."""

from __future__ import annotations

from typing import Any

import torch

from nki_hf.adapters.attend import attend
from nki_hf.adapters.call import Call
from nki_hf.adapters.decision import no_kernel
from nki_hf.adapters.fallback import run_fallback_with_lse
from nki_hf.adapters.keys import Keys
from nki_hf.adapters.packed.pieces import Segments
from nki_hf.adapters.packed.segments import segments_of
from nki_hf.adapters.scalars import as_float, as_int, learned_scale
from nki_hf.errors import UnsupportedProblem

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "lse_of", "read_options", "refuse"]


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
        both included; -1 = no limit.
      softcap: `softcap * tanh(scores / softcap)` before the mask; 0.0 = off.
      alibi_slopes: must be None.
      deterministic: accepted; results always are.
      return_attn_probs: True also returns lse.
      s_aux: attention sinks, one logit per query head, `[num_heads_q]`; None = off. (Not of FlashAttention 2: Transformers
        passes it to functions that have it.)

    Returns:
      out, or (out, lse, None) with lse `[batch, num_heads_q, seqlen_q]` float32, natural log. The third, the dropped
      probabilities, is for tests of that package and never made.

    Raises:
      UnsupportedProblem: ALiBi; the dropped probabilities; tensors that describe no attention.
    """
    _tensors({"q": q, "k": k, "v": v}, 4, "[batch, seqlen, num_heads, head_dim]")
    softcap_, reach = read_options(softcap, causal, window_size, alibi_slopes)
    _refuse_probs(dropout_p, return_attn_probs)
    del deterministic
    q, scale = learned_scale(q, softmax_scale, "softmax_scale")
    seqlen_q, seqlen_kv = q.shape[1], k.shape[1]
    keys = _band(reach, seqlen_q, seqlen_kv)
    call = Call(
        q=q.transpose(1, 2), k=k.transpose(1, 2), v=v.transpose(1, 2), keys=keys, scale=scale, softcap=softcap_, sink=s_aux,
        dropout=as_float("dropout_p", dropout_p),
    )  # fmt: skip
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
        read on the host, once per call.
      max_seqlen_q, max_seqlen_k: accepted; `cu_seqlens` tell it.
      block_table: int `[num_sequences, max_blocks]`: the pages of each sequence in order. None = k and v hold the keys.
      dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs, s_aux: as in
        `flash_attn_func`, with the lengths of each sequence.

    Returns:
      out, or (out, lse, None) with lse `[num_heads_q, total_q]` float32.

    Raises:
      UnsupportedProblem: as `flash_attn_func`.
      ValueError: `cu_seqlens` that are no first rows or keys.
    """
    _tensors({"q": q, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}, None, "")
    _tensors({"q": q}, 3, "[total_q, num_heads_q, head_dim]")
    softcap_, reach = read_options(softcap, causal, window_size, alibi_slopes)
    _refuse_probs(dropout_p, return_attn_probs)
    del deterministic, max_seqlen_q, max_seqlen_k
    if block_table is not None:
        _tensors({"k": k, "v": v}, 4, "[num_blocks, page_block_size, num_heads_kv, head_dim]")
        k, v = (_of_pages(pages, block_table, cu_seqlens_k) for pages in (k, v))
    _tensors({"k": k, "v": v}, 3, "[total_k, num_heads_kv, head_dim]")
    q, scale = learned_scale(q, softmax_scale, "softmax_scale")
    behind, ahead = reach
    segments = segments_of(cu_seqlens_q, cu_seqlens_k, behind=behind, ahead=ahead)
    _check_segments(segments, q.shape[0], k.shape[0])
    keys = Keys().within_segments(
        cu_seqlens_q.to(q.device), cu_seqlens_k.to(q.device), seqlen_q=q.shape[0], behind=behind, ahead=ahead
    )
    call = Call(
        q=_row(q), k=_row(k), v=_row(v), keys=keys, scale=scale, softcap=softcap_, sink=s_aux,
        dropout=as_float("dropout_p", dropout_p), segments=segments,
    )  # fmt: skip
    out, lse, _ = attend(call, "flash_attn_varlen_func")
    return (out[0], lse_of(call, lse)[0], None) if return_attn_probs else out[0]


# ---- shared with flash_attn_with_kvcache ----------------------------------------------------------------------------


def read_options(
    softcap: float, causal: bool, window_size: tuple[int, int], alibi_slopes: Any
) -> tuple[float | None, tuple[int | None, int | None]]:
    """The cap (None = off), and how many keys a row sees behind and ahead of its position (None = all).

    Raises:
      UnsupportedProblem: ALiBi.
      ValueError: a window that is none.
    """
    if alibi_slopes is not None:
        refuse("alibi_slopes", "given", "must be None: no kernel adds a bias that grows with the distance",
               "Pass the biases as `mask` to nki_hf.attention.")  # fmt: skip
    cap = as_float("softcap", softcap)
    return (cap if cap else None), _reach(causal, window_size)


def _reach(causal: bool, window_size: tuple[int, int]) -> tuple[int | None, int | None]:
    """How many keys a row sees behind and ahead of its position; None = all."""
    if len(window_size) != 2:
        raise ValueError(f"window_size={window_size!r} is not a window: it must be (left, right), -1 for no limit.")
    left, right = (as_int(f"window_size[{n}]", size) for n, size in enumerate(window_size))
    behind = None if left < 0 else left
    ahead = 0 if causal else None if right < 0 else right
    return behind, ahead


def refuse(field: str, value: object, limit: str, advice: str = "") -> None:
    """Raise `UnsupportedProblem` with one reason."""
    raise UnsupportedProblem([no_kernel(field, value, limit, advice)])


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


def _band(reach: tuple[int | None, int | None], seqlen_q: int, seqlen_kv: int) -> Keys:
    behind, ahead = reach
    if behind is None and ahead is None:
        return Keys()
    keys = Keys(
        q_offset=seqlen_kv - seqlen_q, window=None if behind is None else behind + 1, ahead=None if ahead is None else ahead + 1
    )
    return keys if torch.compiler.is_compiling() else keys.narrowed(seqlen_q, seqlen_kv)


def _tensors(given: dict[str, Any], axes: int | None, layout: str) -> None:
    for name, tensor in given.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}={type(tensor).__name__} is not a torch tensor: pass one.")
        if axes is not None and tensor.dim() != axes:
            refuse(f"{name}.shape", list(tensor.shape), f"must have {axes} axes, {layout}")


def _check_segments(segments: Segments | None, tokens_q: int, tokens_k: int) -> None:
    """Refuse sequences that end behind the tokens.

    Raises:
      ValueError: they do.
    """
    if segments is None:
        return
    for name, end, tokens in (("cu_seqlens_q", segments.cu_q[-1], tokens_q), ("cu_seqlens_k", segments.cu_kv[-1], tokens_k)):
        if end > tokens:
            raise ValueError(f"{name}[-1]={end:,} is not supported: there are {tokens:,} tokens.")


def _of_pages(pages: torch.Tensor, block_table: torch.Tensor, cu_seqlens_k: torch.Tensor) -> torch.Tensor:
    """`[total_k, num_heads_kv, head_dim]`: the keys of each sequence out of its pages, in order."""
    page = pages.shape[1]
    starts = cu_seqlens_k.to(torch.int64)
    token = torch.arange(int(starts[-1]), device=pages.device)
    sequence = torch.searchsorted(starts.to(pages.device), token, right=True) - 1
    place = token - starts.to(pages.device)[sequence]
    found = block_table.to(pages.device, torch.int64)[sequence, place // page]
    return pages.flatten(0, 1).index_select(0, found * page + place % page)
