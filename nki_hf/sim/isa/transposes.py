"""Transposes between the partition axis and the free axes on the Tensor or the Vector engine."""

from __future__ import annotations

from nki_hf.sim.casts import copy_cast
from nki_hf.sim.isa.enums import engine as Engine
from nki_hf.sim.isa.instruction import NkiInstruction, begin, resolve_engine
from nki_hf.sim.tensor import NkiTensor
from nki_hf.sim.values import native_reader, storer

__all__ = ["nc_transpose"]


def nc_transpose(dst: NkiTensor, data: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None) -> NkiInstruction:
    """`dst[F, P] = data[P, F].T` with free axes flattened; bits are kept if the dtypes are the same.

    Without an `engine`, the Tensor engine is taken wherever it can (SBUF to PSUM), else the Vector engine.
    """
    default = "tensor" if data.space == "sbuf" and dst.space == "psum" else "vector"
    where = resolve_engine(engine, default)
    this = begin("nc_transpose", dst=dst, data=data, engine=engine)
    step = None
    if this.values:
        read, store, convert = native_reader(data), storer(dst), copy_cast(data.dtype.dtype, dst.dtype)
        step = lambda: store(convert(read().T))  # noqa: E731

    return this.issue(engine=where, reads=(data,), writes=(dst,), step=step, is_transpose=True)
