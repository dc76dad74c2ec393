"""GpSimd's library instructions: sequence_bounds, nonzero_with_count, topk."""

from __future__ import annotations

import numpy as np

from nki_hf.sim.isa.gathers import GPSIMD_GROUP
from nki_hf.sim.isa.instruction import NkiInstruction, begin
from nki_hf.sim.tensors.casts import cast
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import mark_written, native_reader, reader, storer
from nki_hf.sim.whole import whole

__all__ = ["nonzero_with_count", "sequence_bounds", "topk"]


def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None) -> NkiInstruction:
    """`dst [1, 2, n]`: start (inclusive) and end (exclusive) of the run of equal ids that each element of `[1, n]` is in.

    Elements with id 0 are padding: start n, end -1.
    """
    this = begin("sequence_bounds", dst=dst, segment_ids=segment_ids)
    action = None
    if this.values:
        read, store, dtype, n = native_reader(segment_ids), storer(dst), dst.dtype, segment_ids.size

        def action() -> None:
            ids = read().reshape(-1)
            starts = np.concatenate([[0], np.flatnonzero(ids[1:] != ids[:-1]) + 1])
            run = np.searchsorted(starts, np.arange(n), side="right") - 1
            ends = np.append(starts[1:], n)
            padding = ids == 0
            bounds = np.stack([np.where(padding, n, starts[run]), np.where(padding, -1, ends[run])])
            store(cast(bounds, dtype).reshape(1, -1))

    return this.issue(engine="gpsimd", reads=(segment_ids,), writes=(dst,), action=action)


def nonzero_with_count(
    dst: NkiTensor, src: NkiTensor, index_offset: int = 0, padding_val: int = -1, name: str | None = None
) -> NkiInstruction:
    """On partitions 0, 16, 32, ...: indices of the nonzero elements (plus `index_offset`), padding, and last their count.

    `dst` (int32) has one element per partition more than `src`; its other partitions stay as they are.
    """
    index_offset = whole("nonzero_with_count", "index_offset", index_offset)
    padding_val = whole("nonzero_with_count", "padding_val", padding_val)
    this = begin("nonzero_with_count", dst=dst, src=src, index_offset=index_offset, padding_val=padding_val)
    action = None
    active = np.arange(0, dst.partitions, GPSIMD_GROUP)
    where = np.zeros((dst.partitions, 1), np.bool_)
    where[active] = True
    if this.values:
        read, store, rows, width = native_reader(src), storer(dst), dst.partitions, src.free_size

        def action() -> None:
            values, result = read(), np.zeros((rows, width + 1), np.int32)
            for row in active:
                found = np.flatnonzero(values[row])
                result[row] = padding_val
                result[row, : found.size] = found + index_offset
                result[row, -1] = found.size
            store(result, where)

    issued = this.issue(engine="gpsimd", reads=(src,), writes=(dst,), action=action, marked=(), keeps=(0,))
    mark_written(dst, where)
    return issued


def topk(val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: int, name: str | None = None) -> NkiInstruction:
    """The K largest of `n` bfloat16 values and their indices, in ascending order of value; K = free size of `val_dst`.

    Each group of 16 partitions holds one list: element e lies on partition e % 16 of the group, column e // 16. Every
    partition of the group receives the group's result (public documentation does not say which partitions do). Of equal
    values at the edge, those of lower index are taken; equal values stand in the order of their indices.
    """
    n = whole("topk", "n", n)
    this = begin("topk", val_dst=val_dst, idx_dst=idx_dst, src=src, n=n)
    action = None
    if this.values:
        read, store_values, store_indices = reader(src), storer(val_dst), storer(idx_dst)
        values_dtype, index_type = val_dst.dtype, idx_dst.dtype.dtype
        k, groups = val_dst.free_size, src.partitions // GPSIMD_GROUP

        def action() -> None:
            lists = read().reshape(groups, GPSIMD_GROUP, -1).transpose(0, 2, 1).reshape(groups, -1)[:, :n]
            chosen = np.argsort(-lists, axis=1, kind="stable")[:, :k]
            chosen = np.sort(chosen, axis=1)
            values = np.take_along_axis(lists, chosen, axis=1)
            order = np.argsort(values, axis=1, kind="stable")
            ranked = np.repeat(np.take_along_axis(chosen, order, axis=1), GPSIMD_GROUP, axis=0)
            store_values(cast(np.repeat(np.take_along_axis(values, order, axis=1), GPSIMD_GROUP, axis=0), values_dtype))
            store_indices(ranked.astype(index_type))

    return this.issue(engine="gpsimd", reads=(src,), writes=(val_dst, idx_dst), action=action)
