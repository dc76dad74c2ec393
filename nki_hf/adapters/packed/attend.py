"""Attention of packed sequences: every launch of the pieces through the kernels, and their results joined by row statistics.

Gradients in 16 bits are those of whole rows: each launch's backward kernel gets its rows' gradient, output and statistics as
they are after the join. Through the join, autograd would round the gradient of an output times the share of each part, and add
up what keys get from several pieces in 16 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nki_hf.adapters.call import Call
from nki_hf.adapters.keys import Keys
from nki_hf.adapters.packed.pieces import Launch, Pieces, Segments, cut
from nki_hf.adapters.row_parts import RowStatistics, join, of_lse
from nki_hf.adapters.torch_op import backward_op_for

__all__ = ["attend_pieces"]

Run = Callable[[Call], tuple[Tensor, ...]]


def attend_pieces(call: Call, segments: Segments, run: Run) -> tuple[Tensor, RowStatistics]:
    """Out `[1, seqlen_q, num_heads_q, head_dim_v]` and statistics `[1, num_heads_q, seqlen_q]` of packed sequences, in pieces.

    Args:
      call: one that kernels take, of batch 1, without a sink.
      segments: its sequences.
      run: out, lse and, with `row_statistics`, row_shift and row_sum of one launch, with `out_rest` that too; out alone where
        torch took it.
    """
    pieces = cut(segments)
    given = (call.q, call.k, call.v)
    if (
        call.row_statistics
        and call.q.dtype != torch.float32
        and torch.is_grad_enabled()
        and any(x.requires_grad for x in given)
    ):
        out, *rows = _WholeRows.apply(*given, call, pieces, run)
        return out, RowStatistics(*rows)
    return _attend(replace(call, out_rest=False), pieces, run)[:2]


class _WholeRows(torch.autograd.Function):  # type: ignore[misc,unused-ignore]
    """Out and statistics of `attend_pieces`, with gradients by the backward kernel of each launch, added up in float32."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: Call, pieces: Pieces, run: Run) -> tuple[Tensor, ...]:
        out, rows, rest = _attend(replace(call, q=q, k=k, v=v, out_rest=True), pieces, run)
        ctx.options = (call.scale, call.softcap)
        ctx.pieces = pieces
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(rows.row_shift, rows.row_sum)
        ctx.save_for_backward(q, k, v, out, rest, *rows)
        return (out, *rows)

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        q, k, v, out, rest, *rows = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout
        statistics = [each[0].T for each in (*rows, torch.zeros_like(rows[0]) if dlse is None else dlse)]  # [tokens, heads]
        tokens = [each[0].transpose(0, 1) for each in (q, k, v)]  # [tokens, heads, head_dim]
        sums = [torch.zeros(each.shape, dtype=torch.float32, device=q.device) for each in tokens]
        backward, (scale, softcap) = backward_op_for(Call(q=q, k=k, v=v, keys=Keys())), ctx.options
        for launch, index in zip(ctx.pieces.launches, _indices(ctx.pieces, q.device)[1], strict=True):
            places = (index.rows, index.keys, index.keys)
            part = [_taken(each, place, launch) for each, place in zip(tokens, places, strict=True)]
            whole, lost, grads = (_taken(each[0], index.rows, launch).transpose(1, 2) for each in (out, rest, dout))
            lse, shift, total, dpart = (_taken(each[..., None], index.rows, launch)[..., 0] for each in statistics)
            # What nobody read has no gradient.
            unread = ~index.read
            grads, dpart = grads.masked_fill(unread[:, :, None, None], 0.0), dpart.masked_fill(unread[:, None], 0.0)
            seen = index.seen
            found = backward(
                *(grads, dpart, *part, seen.lo, seen.hi, seen.bias, None, whole, lse, scale, softcap),
                *(seen.q_offset, seen.window, seen.ahead, False, shift, total, index.parts, lost),
            )
            for each, place, add in zip(sums, places, found[:3], strict=True):
                each.index_add_(0, place, add.transpose(1, 2).flatten(0, 1).float())
        dq, dk, dv = (each.transpose(0, 1)[None].to(q.dtype) for each in sums)
        return dq, dk, dv, None, None, None


def _attend(call: Call, pieces: Pieces, run: Run) -> tuple[Tensor, RowStatistics, Tensor | None]:
    """As `attend_pieces`, and with `out_rest` that of whole rows."""
    slots, launches = _indices(pieces, call.q.device)
    q, k, v = (each[0].transpose(0, 1) for each in (call.q, call.k, call.v))  # [tokens, heads, head_dim]
    outs, rests, found = [], [], []
    for launch, index in zip(pieces.launches, launches, strict=True):
        part = replace(
            call,
            q=_taken(q, index.rows, launch),
            k=_taken(k, index.keys, launch),
            v=_taken(v, index.keys, launch),
            keys=index.seen,
            segments=None,
            row_statistics=call.row_statistics or launch.kind.shared,
        )
        out, *rest = run(part)
        if not rest:
            raise RuntimeError(f"{launch.kind.name}: a piece ran torch where its pack runs a kernel.")
        statistics = RowStatistics(*rest[:3]) if part.row_statistics else of_lse(*rest)
        outs.append(out.flatten(0, 1))
        rests += [each.flatten(0, 1) for each in rest[3:]]
        found.append(RowStatistics(*(each.transpose(1, 2).flatten(0, 1) for each in statistics)))
    if not outs:  # no row sees a key: zeros, of q, k and v as far as gradients know
        for each in (q, k, v):
            none = each[:0, :1, :1].expand(0, q.shape[1], v.shape[2])
            outs.append(none.to(q.dtype))
            found.append(of_lse(none[..., 0]))
            rests += [none.float()] * call.out_rest
    return _together(call, outs, rests, found, slots)


class _Index(NamedTuple):
    """One launch on a device.

    Attributes:
      rows, keys: token of each row and key of its pieces.
      seen: what its rows see.
      read: bool `[pieces, rows]`: which rows' results are read.
      parts: True if some of those rows have keys in other pieces as well.
    """

    rows: Tensor
    keys: Tensor
    seen: Keys
    read: Tensor
    parts: bool


@functools.lru_cache(maxsize=16)
def _indices(pieces: Pieces, device: torch.device) -> tuple[Tensor, list[_Index]]:
    """`pieces` on a device: the slots, and of each launch its rows, its keys and what they see."""
    with torch.inference_mode(False):  # or what is kept could not be used in training

        def there(array: object) -> Tensor:
            return torch.as_tensor(array).to(device)

        end = sum(launch.rows.size for launch in pieces.launches)
        read, shared = np.zeros(end + 1, np.bool_), np.zeros(end + 1, np.bool_)
        read[pieces.slots] = True
        shared[pieces.slots[(pieces.slots < end).sum(-1) > 1]] = True
        found, begin = [], 0
        for launch in pieces.launches:
            own, begin = slice(begin, begin + launch.rows.size), begin + launch.rows.size
            found.append(
                _Index(
                    rows=there(launch.rows.reshape(-1)),
                    keys=there(launch.keys.reshape(-1)),
                    seen=_keys(launch, there),
                    read=there(read[own].reshape(launch.rows.shape)),
                    parts=bool(shared[own].any()),
                )
            )
        return there(pieces.slots), found


def _keys(launch: Launch, there: Callable[[object], Tensor]) -> Keys:
    if launch.kind.mask == "causal":
        return Keys(ahead=1)
    if launch.seen is not None:
        return Keys(bias=there(launch.seen)[:, None, None])
    return Keys(lo=there(launch.lo), hi=there(launch.hi), inside=True)


def _taken(tokens: Tensor, index: Tensor, launch: Launch) -> Tensor:
    """`[pieces, heads, rows or keys, head_dim]` of `[tokens, heads, head_dim]`, as a view of fresh token-major memory."""
    return tokens.index_select(0, index).unflatten(0, (launch.kind.pieces, -1)).transpose(1, 2)


def _together(
    call: Call, outs: Sequence[Tensor], rests: Sequence[Tensor], found: Sequence[RowStatistics], slots: Tensor
) -> tuple[Tensor, RowStatistics, Tensor | None]:
    """Out `[1, tokens, num_heads_q, head_dim_v]`, statistics `[1, num_heads_q, tokens]` and, with `out_rest`, that, like out,
    from all rows of all launches.
    """
    heads, width, tokens = call.q.shape[1], call.v.shape[3], call.q.shape[2]
    empty = call.q.new_zeros((1, heads, width))
    every = torch.cat([*outs, empty])
    lost = torch.cat([*rests, empty.float()]) if call.out_rest else None
    nothing = of_lse(empty.new_full((1, heads), -torch.inf, dtype=torch.float32))
    rows = [torch.cat(each) for each in zip(*found, nothing, strict=True)]  # [rows of all launches, num_heads_q]
    missing = tokens - slots.shape[0]
    if slots.shape[1] == 0 or missing:
        slots = torch.nn.functional.pad(slots, (0, max(0, 1 - slots.shape[1]), 0, missing), value=every.shape[0] - 1)
    if slots.shape[1] == 1:
        lse, shift, total = (each.index_select(0, slots[:, 0]).T[None] for each in rows)
        out, rest = (None if each is None else each.index_select(0, slots[:, 0])[None] for each in (every, lost))
        return out, RowStatistics(lse, shift, total), rest
    shares, whole = join(RowStatistics(*(each[slots] for each in rows)), dim=1)  # of [tokens, parts, num_heads_q]
    exact = torch.zeros((tokens, heads, width), dtype=torch.float32, device=call.q.device)
    for part in range(slots.shape[1]):
        rows_of_part = every.index_select(0, slots[:, part]).float()
        if lost is not None:
            rows_of_part = rows_of_part + lost.index_select(0, slots[:, part])
        exact = exact + shares[:, part, :, None] * rows_of_part
    out = exact.to(call.q.dtype)
    rest = None if lost is None else (exact - out.float())[None]
    return out[None], RowStatistics(*(each.T[None] for each in whole)), rest
