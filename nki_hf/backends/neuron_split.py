"""Several launches for one call whose kernel would unroll too far: over batch, kv heads, query heads, and at last rows.

NKI unrolls every loop, so the compiler's work grows with batch x heads x tiles. Launches of one call that differ in batch or
heads have equal shapes and are one compiled kernel. Query rows are only divided where one head alone is too long; those
launches are one compiled kernel if they visit keys alike, and a few kernels else (a causal mask).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from nki_hf.backends.base import KernelCall
from nki_hf.kernels.flash_prefill.plan import TILE, Span, blocks_of, half_of

__all__ = ["MAX_BLOCKS", "join", "split"]

MAX_BLOCKS = 8_192
"""Score blocks (128 rows x 512 keys) per launch: about 140,000 instructions. Assumed: that a limit exists is documented (errors
EVRF007, EBVF030 and EXTP004), its size is not; public kernels of 12,000 to 41,000 DMAs compile, one of 6.9 million
instructions was refused. Lower it if compilation takes too long (`NeuronBackend(max_blocks=...)`)."""


def split(call: KernelCall, max_blocks: int = MAX_BLOCKS) -> list[KernelCall]:
    """The calls to launch one after the other; the call itself if it is small enough.

    A single query tile of one head is the smallest launch.
    """
    if call.kernel != "flash_prefill":
        return [call]
    q, k, spans = call.tensors["q"], call.tensors["k"], call.constants["spans"]
    batch, heads_q, heads_kv = q.shape[0], q.shape[1], k.shape[1]
    group, one_head = heads_q // heads_kv, max(1, blocks_of(spans))
    rows = _largest_divisor(batch, max_blocks // (one_head * heads_q))
    heads = _largest_divisor(heads_kv, max_blocks // (one_head * group * rows))
    shared = _largest_divisor(group, max_blocks // one_head) if heads == 1 else group
    tiles = list(_runs(spans, max_blocks)) if shared == 1 and one_head > max_blocks else [(0, len(spans))]
    if (rows, heads, shared, len(tiles)) == (batch, heads_kv, group, 1):
        return [call]
    return [
        _rows(_part(call, slice(b, b + rows), slice(h, h + heads), slice(first, first + heads * shared)), *run)
        for b in range(0, batch, rows)
        for h in range(0, heads_kv, heads)
        for first in range(h * group, (h + heads) * group, heads * shared)
        for run in tiles
    ]


def join(call: KernelCall, results: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The outputs of `call` from those of its parts, in `split`'s order."""
    if len(results) == 1:
        return results[0]
    batch, heads, _, seqlen_q = call.tensors["q"].shape
    joined = []
    # out [batch, seqlen_q, heads, head_dim_v], lse [batch, heads, seqlen_q]
    for number, axes in ((0, (1, 2, 0)), (1, (2, 1, 0))):
        pieces = [result[number] for result in results]
        for axis, size in zip(axes, (seqlen_q, heads, batch), strict=True):
            pieces = list(_whole(pieces, axis, size))
        joined.append(pieces[0])
    return tuple(joined)


def _whole(pieces: list[Any], axis: int, size: int) -> Iterator[Any]:
    """Consecutive pieces put together along an axis until it has its size."""
    import torch

    waiting: list[Any] = []
    for piece in pieces:
        waiting.append(piece)
        if sum(each.shape[axis] for each in waiting) == size:
            yield waiting[0] if len(waiting) == 1 else torch.cat(waiting, dim=axis)
            waiting = []


def _part(call: KernelCall, rows: slice, heads_kv: slice, heads_q: slice) -> KernelCall:
    def cut(name: str, tensor: Any) -> Any:
        if tensor is None:
            return None
        if name in ("q", "k", "v"):
            return tensor[rows, heads_q if name == "q" else heads_kv]
        own = tensor[rows] if tensor.shape[0] > 1 else tensor
        return own[:, heads_q] if name in ("bias", "sink") and tensor.shape[1] > 1 else own

    return replace(call, tensors={name: cut(name, tensor) for name, tensor in call.tensors.items()})


def _rows(call: KernelCall, begin: int, end: int) -> KernelCall:
    """The query tiles `[begin, end)` of a call; positions of its mask move with them."""
    spans = call.constants["spans"]
    if (begin, end) == (0, len(spans)):
        return call
    own = slice(begin * TILE, end * TILE)
    constants = {**call.constants, "spans": spans[begin:end]}
    constants["row_split"] = half_of(spans[begin:end]) if call.lnc > 1 else end - begin
    if constants["window"] is not None or constants["ahead"] is not None:
        constants["q_offset"] += begin * TILE
    tensors = dict(call.tensors)
    for name, axis in (("q", 3), ("lo", 1), ("hi", 1), ("bias", 2)):
        tensor = tensors[name]
        if tensor is not None and tensor.shape[axis] > 1:
            tensors[name] = tensor[(slice(None),) * axis + (own,)]
    return replace(call, tensors=tensors, constants=constants)


def _runs(spans: Sequence[Span], max_blocks: int) -> Iterator[tuple[int, int]]:
    """Runs `(begin, end)` of query tiles with at most `max_blocks` blocks each, or one tile; equal in length if spans are."""
    begin = 0
    for end in range(1, len(spans) + 1):
        if end == len(spans) or blocks_of(tuple(spans[begin : end + 1])) > max_blocks:
            yield begin, end
            begin = end


def _largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`; 1 if there is none."""
    return next((d for d in range(min(number, max(1, limit)), 0, -1) if number % d == 0), 1)
