"""Transposes between the partition axis and the free axes: on the Tensor or the Vector engine, or by DMA."""

from __future__ import annotations

import numpy as np

from nki_hf.sim.constraints import refuse_non_tensors
from nki_hf.sim.execution.actions import Action
from nki_hf.sim.faults import fault
from nki_hf.sim.isa.enums import dge_mode as DgeMode
from nki_hf.sim.isa.enums import engine as Engine
from nki_hf.sim.isa.enums import oob_mode as OobMode
from nki_hf.sim.isa.instruction import NkiInstruction, begin, resolve_engine
from nki_hf.sim.tensors.casts import copy_cast
from nki_hf.sim.tensors.indirect import access
from nki_hf.sim.tensors.origins import note_transpose
from nki_hf.sim.tensors.tensor import NkiTensor
from nki_hf.sim.tensors.values import bit_reader, bit_type, bit_writer, native_reader, storer

__all__ = ["dma_transpose", "nc_transpose"]

_ODD = 16
"""Elements by which rows of a copy are longer than its columns need."""
_PERMUTATIONS = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def nc_transpose(dst: NkiTensor, data: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None) -> NkiInstruction:
    """`dst[F, P] = data[P, F].T` with free axes flattened; bits are kept if the dtypes are the same.

    Without an `engine`, the Tensor engine is taken wherever it can (SBUF to PSUM), else the Vector engine.
    """
    this = begin("nc_transpose", dst=dst, data=data, engine=engine)
    default = "tensor" if data.space == "sbuf" and dst.space == "psum" else "vector"
    where = resolve_engine(engine, default)
    action = None
    if this.values:
        action = _transpose_action(dst, data)
    handle = this.issue(engine=where, reads=(data,), writes=(dst,), action=action, is_transpose=True)
    if action is not None:
        note_transpose(dst, data)
    return handle


def _transpose_action(dst: NkiTensor, data: NkiTensor) -> Action:
    if dst.dtype == data.dtype and dst.dtype.name != "tfloat32":
        bits, store_bits = bit_reader(data), bit_writer(dst)
        # Columns of a tile whose rows are a power of two apart share cache lines; through rows that are not they are turned in
        # a seventh of the time.
        own = np.empty((data.partitions, data.free_size + _ODD), bit_type(data))[:, : data.free_size]

        def turn() -> None:
            own[...] = bits()
            store_bits(own.T)

        return turn
    read, store, convert = native_reader(data), storer(dst), copy_cast(data.dtype.dtype, dst.dtype)
    return lambda: store(convert(read().T))


def dma_transpose(
    dst: NkiTensor,
    src: NkiTensor,
    axes: tuple[int, ...] | None = None,
    priority: int | None = None,
    dge_mode: DgeMode = DgeMode.unknown,
    oob_mode: OobMode = OobMode.error,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = src` with the axes permuted [1, 0], [2, 1, 0] or [3, 1, 2, 0] by rank; `axes` may only restate that.

    A `src` with a vector offset is gathered row by row first; `oob_mode.skip` leaves the elements of `dst` alone that a row
    out of bounds would have given.
    """
    refuse_non_tensors("dma_transpose", {"dst": dst, "src": src})
    permutation = _PERMUTATIONS.get(src.ndim)
    if permutation is None or (axes is not None and tuple(axes) != permutation):
        fault(
            "argument",
            "dma_transpose",
            f"axes={axes!r} for src {list(src.shape)}",
            limit="must be (1, 0), (2, 1, 0) or (3, 1, 2, 0) for a src of rank 2, 3 or 4",
        )
    this = begin("dma_transpose", dst=dst, src=src, axes=permutation, priority=priority, dge_mode=dge_mode, oob_mode=oob_mode)
    action = None
    if this.values:
        skip, shape = oob_mode is OobMode.skip, dst.shape
        read, write = access(src, skip=skip).read, access(dst, skip=skip).write
        convert = copy_cast(src.dtype.dtype, dst.dtype)

        def action() -> None:
            values, valid = read()
            if valid is not None:
                valid = np.broadcast_to(valid, values.shape).transpose(permutation).reshape(shape)
            write(convert(values).transpose(permutation).reshape(shape), valid)

    return this.issue(
        engine="dma",
        queue="gpsimd" if src.is_indirect() else "sync",
        reads=(src,),
        writes=(dst,),
        action=action,
        dge_mode=DgeMode(dge_mode).name,
        is_transpose=True,
        axes=permutation,
    )
