"""Gathers and shuffles within SBUF: nc_n_gather, local_gather (GpSimd) and nc_stream_shuffle (Vector)."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.chips.common import COMMON
from nki_hf.errors import FaultRecord, KernelFault
from nki_hf.sim.faults import fault, kernel_position
from nki_hf.sim.isa.instruction import NkiInstruction, begin
from nki_hf.sim.tensors.casts import copy_cast
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import Array, mark_written, native_reader, storer
from nki_hf.sim.whole import whole

__all__ = ["GPSIMD_GROUP", "local_gather", "nc_n_gather", "nc_stream_shuffle"]

GPSIMD_GROUP = int(COMMON["gpsimd_core_partitions"])
"""Partitions that one of GpSimd's cores is connected to."""
_QUADRANT, _KEEP = 32, 255


def nc_n_gather(dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None) -> NkiInstruction:
    """`dst[p, i] = data[p, indices[p, i]]` with free axes flattened; bits are kept. Indices out of bounds are a fault."""
    this = begin("nc_n_gather", dst=dst, data=data, indices=indices)
    action = None
    if this.values:
        read, index, store = native_reader(data), native_reader(indices), storer(dst)
        check = _bounds("nc_n_gather", "indices", data.free_size)

        def action() -> None:
            store(np.take_along_axis(read(), check(index()), axis=1))

    return this.issue(engine="gpsimd", reads=(data, indices), writes=(dst,), action=action)


def local_gather(
    dst: NkiTensor,
    src_buffer: NkiTensor,
    index: NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """`dst[p, k, e] = src_buffer[p, list[k] + e]`, with one index list per group of 16 partitions.

    The list is the group's slice of `index` (uint16), read partition by partition and then column by column, cut to
    `num_valid_indices`; `e` counts `num_elem_per_idx` elements. Free axes are flattened; bits are kept.
    """
    num_elem_per_idx = whole("local_gather", "num_elem_per_idx", num_elem_per_idx)
    if num_valid_indices is not None:
        num_valid_indices = whole("local_gather", "num_valid_indices", num_valid_indices)
    this = begin(
        "local_gather",
        dst=dst,
        src_buffer=src_buffer,
        index=index,
        num_elem_per_idx=num_elem_per_idx,
        num_valid_indices=num_valid_indices,
    )
    action = None
    if this.values:
        read, lists, store = native_reader(src_buffer), native_reader(index), storer(dst)
        groups = src_buffer.partitions // GPSIMD_GROUP
        valid = index.free_size * GPSIMD_GROUP if num_valid_indices is None else num_valid_indices
        check = _bounds("local_gather", "index", src_buffer.free_size)
        run = np.arange(num_elem_per_idx)

        def action() -> None:
            data = read().reshape(groups, GPSIMD_GROUP, -1)
            flat = lists().reshape(groups, GPSIMD_GROUP, -1).transpose(0, 2, 1).reshape(groups, -1)[:, :valid]
            chosen = check(flat[:, :, None].astype(np.int64) + run).reshape(groups, 1, -1)
            store(np.take_along_axis(data, chosen, axis=2).reshape(groups * GPSIMD_GROUP, -1))

    return this.issue(engine="gpsimd", reads=(src_buffer, index), writes=(dst,), action=action)


def nc_stream_shuffle(dst: NkiTensor, src: NkiTensor, shuffle_mask: Any, name: str | None = None) -> NkiInstruction:
    """`dst[32 q + i] = src[32 q + shuffle_mask[i]]` in each quadrant `q` of 32 partitions; 255 leaves `dst[32 q + i]` alone.

    The same mask of 32 entries serves every quadrant; `dst` may be `src`.
    """
    mask = tuple(int(entry) for entry in shuffle_mask)
    this = begin("nc_stream_shuffle", dst=dst, src=src, shuffle_mask=mask)
    rows = [
        (row, row - row % _QUADRANT + mask[row % _QUADRANT]) for row in range(dst.partitions) if mask[row % _QUADRANT] != _KEEP
    ]
    outside = [source for _, source in rows if source >= src.partitions]
    if outside:
        fault(
            "bounds",
            "nc_stream_shuffle",
            f"shuffle_mask reads partition {outside[0]} of src {list(src.shape)}",
            limit=f"must be below {src.partitions}, or {_KEEP} to keep dst",
            index=outside[0],
        )
    action = None
    if this.values:
        read, store, convert = native_reader(src), storer(dst), copy_cast(src.dtype.dtype, dst.dtype)
        chosen = np.zeros(dst.partitions, np.int64)
        moves = np.zeros((dst.partitions, 1), np.bool_)
        for row, source in rows:
            chosen[row], moves[row] = source, True
        where = None if moves.all() else moves
        action = lambda: store(convert(read()[chosen]), where)  # noqa: E731
    looked_at = np.zeros((src.partitions,) + (1,) * (src.ndim - 1), np.bool_)
    looked_at[[source for _, source in rows]] = True
    if len(rows) == dst.partitions:
        return this.issue(engine="vector", reads=(src,), writes=(dst,), action=action, parts=(looked_at,))
    issued = this.issue(engine="vector", reads=(src,), writes=(dst,), action=action, parts=(looked_at,), marked=(), keeps=(0,))
    written = np.zeros((dst.partitions, 1), np.bool_)
    written[[row for row, _ in rows]] = True
    mark_written(dst, written)
    return issued


def _bounds(opcode: str, operand: str, size: int) -> Any:
    """Function that passes indices on as int64 if all are below `size`, else raises at the instruction's own line."""
    position = kernel_position()

    def check(index: Array) -> Array:
        index = index.astype(np.int64)
        bad = (index < 0) | (index >= size)
        if bad.any():
            value = int(index[bad][0])
            raise KernelFault(
                FaultRecord(
                    kind="bounds",
                    instruction=opcode,
                    message=f"{operand} holds {value}",
                    limit=f"must be 0 to {size - 1}",
                    file=position[0],
                    line=position[1],
                    details={"index": value, "size": size},
                )
            )
        return index

    return check
