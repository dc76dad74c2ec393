"""Data movement within the core: tensor_copy."""

from __future__ import annotations

from nki_hf.sim.isa.enums import engine as Engine
from nki_hf.sim.isa.instruction import NkiInstruction, begin, resolve_engine
from nki_hf.sim.tensor import NkiTensor
from nki_hf.sim.values import cast, mark_written

__all__ = ["tensor_copy"]


def tensor_copy(dst: NkiTensor, src: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None) -> NkiInstruction:
    """`dst = src` within SBUF and PSUM; bit-exact if the dtypes are the same, else cast through float32."""
    this = begin("tensor_copy", dst=dst, src=src, engine=engine)
    step = None
    if this.values:
        mark_written(dst)
        target, source, dtype, shape = dst.array(), src.array(), dst.dtype, dst.shape

        def step() -> None:
            target[...] = cast(source, dtype).reshape(shape)

    return this.issue(engine=resolve_engine(engine, "vector"), reads=(src,), writes=(dst,), step=step)
