"""Several launches for one call whose kernel would unroll too far: over the batch, then over the kv heads.

NKI unrolls every loop, so the compiler's work grows with batch x heads x tiles. The launches of one call have equal shapes
and are one compiled kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nki_hf.backends.base import KernelCall

__all__ = ["MAX_BLOCKS", "join", "split"]

MAX_BLOCKS = 65_536
"""Score blocks (128 rows x 512 keys) per launch. Assumed: no limit is documented; 65,536 keeps 16 heads of 16,384 x 16,384 in
one launch. Lower it if compilation takes too long (`NeuronBackend(max_blocks=...)`)."""


def split(call: KernelCall, max_blocks: int = MAX_BLOCKS) -> list[KernelCall]:
    """The calls to launch one after the other, equal in every shape; the call itself if it is small enough.

    If even one kv head exceeds the limit, that is the smallest launch: its rows and keys stay together.
    """
    if call.kernel != "flash_prefill":
        return [call]
    q, k = call.tensors["q"], call.tensors["k"]
    batch, heads_q, _, seqlen_q = q.shape
    heads_kv, seqlen_kv = k.shape[1], k.shape[3]
    group = heads_q // heads_kv
    per_head = group * -(-seqlen_q // 128) * -(-seqlen_kv // 512)
    rows = _largest_divisor(batch, max_blocks // max(1, per_head * heads_kv))
    heads = heads_kv if rows * heads_kv * per_head <= max_blocks else _largest_divisor(heads_kv, max_blocks // per_head)
    if rows == batch and heads == heads_kv:
        return [call]
    return [
        _part(call, slice(b, b + rows), slice(h, h + heads), slice(h * group, (h + heads) * group))
        for b in range(0, batch, rows)
        for h in range(0, heads_kv, heads)
    ]


def join(call: KernelCall, results: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The outputs of `call` from those of its parts, in `split`'s order."""
    if len(results) == 1:
        return results[0]
    import torch

    batch = call.tensors["q"].shape[0]
    per_row = len(results) * results[0][0].shape[0] // batch  # parts that share batch rows
    joined = []
    for number, heads_axis in ((0, 2), (1, 1)):  # out [batch, seqlen_q, heads, head_dim_v], lse [batch, heads, seqlen_q]
        rows = [
            torch.cat([result[number] for result in results[start : start + per_row]], dim=heads_axis)
            for start in range(0, len(results), per_row)
        ]
        joined.append(torch.cat(rows, dim=0))
    return tuple(joined)


def _part(call: KernelCall, rows: slice, heads_kv: slice, heads_q: slice) -> KernelCall:
    def cut(name: str, tensor: Any) -> Any:
        if tensor is None:
            return None
        if name in ("q", "k", "v"):
            return tensor[rows, heads_q if name == "q" else heads_kv]
        own = tensor[rows] if tensor.shape[0] > 1 else tensor
        return own[:, heads_q] if name in ("bias", "sink") and tensor.shape[1] > 1 else own

    return replace(call, tensors={name: cut(name, tensor) for name, tensor in call.tensors.items()})


def _largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`; 1 if there is none."""
    return next((d for d in range(min(number, max(1, limit)), 0, -1) if number % d == 0), 1)
