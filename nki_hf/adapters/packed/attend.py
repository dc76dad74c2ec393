"""Attention of packed sequences: every launch of the pieces through the kernels, and their results joined by row statistics."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from nki_hf.adapters.keys import Keys
from nki_hf.adapters.packed.pieces import Launch, Pieces, Segments, cut
from nki_hf.adapters.row_parts import RowStatistics, join, of_lse

if TYPE_CHECKING:
    from nki_hf.adapters.call import Call

__all__ = ["attend_pieces"]


def attend_pieces(
    call: Call, segments: Segments, run: Callable[[Call], tuple[torch.Tensor, ...]]
) -> tuple[torch.Tensor, RowStatistics]:
    """Out `[1, seqlen_q, num_heads_q, head_dim_v]` and statistics `[1, num_heads_q, seqlen_q]` of packed sequences, in pieces.

    Args:
      call: one that kernels take, of batch 1, without a sink.
      segments: its sequences.
      run: out, lse and, with `row_statistics`, row_shift and row_sum of one launch; out alone where torch took it.
    """
    pieces = cut(segments)
    slots, launches = _indices(pieces, call.q.device)
    q, k, v = (each[0].transpose(0, 1) for each in (call.q, call.k, call.v))  # [tokens, heads, head_dim]
    outs, found = [], []
    for launch, (rows, keys, seen) in zip(pieces.launches, launches, strict=True):
        part = replace(
            call, q=_taken(q, rows, launch), k=_taken(k, keys, launch), v=_taken(v, keys, launch), keys=seen, segments=None,
            row_statistics=call.row_statistics or launch.kind.shared,
        )  # fmt: skip
        out, *rest = run(part)
        if not rest:
            raise RuntimeError(f"{launch.kind.name}: a piece ran torch where its pack runs a kernel.")
        statistics = RowStatistics(*rest) if part.row_statistics else of_lse(*rest)
        outs.append(out.flatten(0, 1))
        found.append(RowStatistics(*(each.transpose(1, 2).flatten(0, 1) for each in statistics)))
    if not outs:  # no row sees a key: zeros, of q, k and v as far as gradients know
        for each in (q, k, v):
            none = each[:0, :1, :1].expand(0, q.shape[1], v.shape[2])
            outs.append(none.to(q.dtype))
            found.append(of_lse(none[..., 0]))
    return _together(call, outs, found, slots)


_Index = tuple[torch.Tensor, torch.Tensor, Keys]


@functools.lru_cache(maxsize=16)
def _indices(pieces: Pieces, device: torch.device) -> tuple[torch.Tensor, list[_Index]]:
    """`pieces` on a device: the slots, and of each launch its rows, its keys and what they see."""
    with torch.inference_mode(False):  # or what is kept could not be used in training

        def there(array: object) -> torch.Tensor:
            return torch.as_tensor(array).to(device)

        found = [
            (there(launch.rows.reshape(-1)), there(launch.keys.reshape(-1)), _keys(launch, there)) for launch in pieces.launches
        ]
        return there(pieces.slots), found


def _keys(launch: Launch, there: Callable[[object], torch.Tensor]) -> Keys:
    if launch.kind.mask == "causal":
        return Keys(ahead=1)
    if launch.seen is not None:
        return Keys(bias=there(launch.seen)[:, None, None])
    return Keys(lo=there(launch.lo), hi=there(launch.hi), inside=True)


def _taken(tokens: torch.Tensor, index: torch.Tensor, launch: Launch) -> torch.Tensor:
    """`[pieces, heads, rows or keys, head_dim]` of `[tokens, heads, head_dim]`, as a view of fresh token-major memory."""
    return tokens.index_select(0, index).unflatten(0, (launch.kind.pieces, -1)).transpose(1, 2)


def _together(
    call: Call, outs: Sequence[torch.Tensor], found: Sequence[RowStatistics], slots: torch.Tensor
) -> tuple[torch.Tensor, RowStatistics]:
    """Out `[1, tokens, num_heads_q, head_dim_v]` and statistics `[1, num_heads_q, tokens]` from all rows of all launches."""
    heads, width, tokens = call.q.shape[1], call.v.shape[3], call.q.shape[2]
    empty = call.q.new_zeros((1, heads, width))
    every = torch.cat([*outs, empty])
    nothing = of_lse(empty.new_full((1, heads), -torch.inf, dtype=torch.float32))
    rows = [torch.cat(each) for each in zip(*found, nothing, strict=True)]  # [rows of all launches, num_heads_q]
    missing = tokens - slots.shape[0]
    if slots.shape[1] == 0 or missing:
        slots = torch.nn.functional.pad(slots, (0, max(0, 1 - slots.shape[1]), 0, missing), value=every.shape[0] - 1)
    if slots.shape[1] == 1:
        lse, shift, total = (each.index_select(0, slots[:, 0]).T[None] for each in rows)
        return every.index_select(0, slots[:, 0])[None], RowStatistics(lse, shift, total)
    shares, whole = join(RowStatistics(*(each[slots] for each in rows)), dim=1)  # of [tokens, parts, num_heads_q]
    out = torch.zeros((tokens, heads, width), dtype=torch.float32, device=call.q.device)
    for part in range(slots.shape[1]):
        out = out + shares[:, part, :, None] * every.index_select(0, slots[:, part]).float()
    return out.to(call.q.dtype)[None], RowStatistics(*(each.T[None] for each in whole))
