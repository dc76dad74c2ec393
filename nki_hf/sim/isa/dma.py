"""DMA: data movement between HBM and SBUF."""

from __future__ import annotations

from typing import Any

from nki_hf.sim.isa.copies import copy_step
from nki_hf.sim.isa.enums import dge_mode as DgeMode
from nki_hf.sim.isa.enums import engine as Engine
from nki_hf.sim.isa.enums import oob_mode as OobMode
from nki_hf.sim.isa.instruction import NkiInstruction, begin, resolve_engine
from nki_hf.sim.tensor import NkiTensor

__all__ = ["dma_copy"]


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
    step = copy_step(dst, src, skip=oob_mode is OobMode.skip) if this.values else None
    return this.issue(
        engine="dma", queue=resolve_engine(engine, "sync"), reads=(src,), writes=(dst,), step=step, dge_mode=dge_mode.name
    )
