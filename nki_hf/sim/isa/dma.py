"""DMA: data movement between HBM and SBUF, and sums on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nki_hf.sim.execution.actions import Action
from nki_hf.sim.isa.copies import copy_action
from nki_hf.sim.isa.enums import dge_mode as DgeMode
from nki_hf.sim.isa.enums import engine as Engine
from nki_hf.sim.isa.enums import oob_mode as OobMode
from nki_hf.sim.isa.instruction import NkiInstruction, begin, resolve_engine
from nki_hf.sim.isa.operators import Operator, as_operator
from nki_hf.sim.tensors.casts import cast, widen
from nki_hf.sim.tensors.chosen_elements import check_unique
from nki_hf.sim.tensors.indirect import access
from nki_hf.sim.tensors.offsets import VectorOffset
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["dma_compute", "dma_copy"]


def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: Any = None,
    oob_mode: OobMode = OobMode.error,
    dge_mode: DgeMode = DgeMode.unknown,
    engine: Engine = Engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = src`, element by element in row-major order of both views; differing dtypes cast through float32."""
    this = begin("dma_copy", dst=dst, src=src, priority=priority, oob_mode=oob_mode, dge_mode=dge_mode, engine=engine)
    skip = oob_mode is OobMode.skip
    action = copy_action(dst, src, skip=skip) if this.values else None
    keeps = skip and (dst.is_indirect() or src.is_indirect())
    return this.issue(
        engine="dma",
        queue=resolve_engine(engine, "sync"),
        reads=(src,),
        writes=(dst,),
        action=action,
        marked=() if keeps and this.values else None,
        dge_mode=DgeMode(dge_mode).name,
        **_kept(keeps),
    )


def dma_compute(
    dst: NkiTensor,
    srcs: Sequence[NkiTensor],
    reduce_op: Any,
    scales: Sequence[float] | None = None,
    unique_indices: bool = True,
    oob_mode: OobMode = OobMode.error,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = reduce_op(srcs[0] * scales[0], srcs[1] * scales[1], ...)`, element by element in float32, rounded once.

    With a vector offset on `dst` and on the source that stands for it, this scatters into HBM with read-modify-write; on
    another source it gathers. `oob_mode.skip` leaves elements alone whose index is out of bounds.
    """
    op = as_operator(reduce_op)
    this = begin(
        "dma_compute", dst=dst, srcs=tuple(srcs), reduce_op=op, scales=scales, unique_indices=unique_indices, oob_mode=oob_mode
    )
    action = _combine_action(dst, tuple(srcs), op, scales, oob_mode is OobMode.skip) if this.values else None
    indirect = any(tensor.is_indirect() for tensor in (dst, *srcs))
    keeps = indirect and oob_mode is OobMode.skip
    return this.issue(
        engine="dma",
        queue="gpsimd" if indirect else "sync",
        reads=tuple(srcs),
        writes=(dst,),
        action=action,
        op=op.name,
        dge_mode="swdge" if indirect else "none",
        marked=() if keeps and this.values else None,
        **_kept(keeps),
    )


def _kept(keeps: bool) -> dict[str, Any]:
    """The attribute that says that the old bytes of `dst` may show through."""
    return {"keeps": (0,)} if keeps else {}


def _combine_action(
    dst: NkiTensor, srcs: tuple[NkiTensor, ...], op: Operator, scales: Sequence[float] | None, skip: bool
) -> Action:
    write, dtype, shape = access(dst, skip=skip).write, dst.dtype, dst.shape
    reads = [(access(src, skip=skip).read, widen(src.dtype.dtype)) for src in srcs]
    unique = check_unique(dst, "dma_compute") if isinstance(dst.indirection, VectorOffset) else None
    factors = [np.float32(1)] * len(srcs) if scales is None else [np.float32(scale) for scale in scales]

    def action() -> None:
        if unique is not None:
            unique()
        total, valid = None, None
        for (read, convert), factor in zip(reads, factors, strict=True):
            values, inside = read()
            scaled = convert(values).reshape(shape) * factor
            total = scaled if total is None else op.compute(total, scaled)
            if inside is not None:
                inside = np.broadcast_to(inside, values.shape).reshape(shape)
                valid = inside if valid is None else valid & inside
        write(cast(np.asarray(total), dtype), valid)

    return action
